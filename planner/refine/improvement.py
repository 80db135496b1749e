"""The one shape of everything that makes plans better.

    Candidate -> accepts -> neighbours, priced -> the better one, and so on -> Candidate

An `Improvement` is a frozen dataclass whose fields are its options. It says of a plan whether there may be anything to
gain, and yields plans near it, each priced by the evaluator. `climb` goes from neighbour to neighbour as long as one is
better. The order in which improvements are tried is data: `planner.refine.order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.prices import Prices
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting
from meshwright.planner.refine.candidate import WORTH, Candidate, counts_of, idle_ranks
from meshwright.planner.search.search import Search


@dataclass(frozen=True, slots=True)
class Bench:
    """What improvements work with: a search that has ended, what was asked for, and when to stop.

    - `notes`: what was left untried, and why.
    """

    search: Search
    asked: Asked = field(default_factory=Asked)
    stop: Callable[[], bool] = lambda: False
    notes: list[str] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        return self.search.setting

    @property
    def prices(self) -> Prices:
        return self.search.prices

    @property
    def cluster(self) -> Cluster:
        return self.search.prices.cluster

    @property
    def global_batch(self) -> int:
        return self.search.space.global_batch

    @property
    def layers_asked(self) -> bool:
        """Whether somebody asks how layers are shared out."""
        return self.asks("split", "stage_blocks")

    def asks(self, *names: str) -> bool:
        """Whether values of any of these names are asked for."""
        return not self.asked.constraints.only.keys().isdisjoint(names)

    def fold(self, plan: Candidate) -> Fold:
        """The model at the plan's batch."""
        return self.setting.fold(plan.origin or plan.named)

    def lowered(self, decisions: Decisions, fold: Fold) -> Program:
        return self.setting.lowered(fold, decisions, self.global_batch)

    def judged(self, decisions: Decisions, fold: Fold) -> Prediction:
        """The evaluator's price."""
        return self.setting.price(self.lowered(decisions, fold))

    def decisions(self, config: Config) -> Decisions:
        """The plan that a configuration means, on as many ranks as its degrees multiply to."""
        needed = config.tp * config.pp * config.cp * config.dp
        return replace(self.setting, ranks=needed).decisions(config, self.global_batch)

    def as_is(self, config: Config) -> Candidate:
        """A configuration as the search priced it."""
        decisions, prediction = self.decisions(config), self.search.found[config].prediction
        return self.candidate(decisions, prediction, self.setting.fold(config), config=config, origin=config)

    def candidate(
        self,
        decisions: Decisions,
        prediction: Prediction,
        fold: Fold,
        config: Config | None = None,
        origin: Config | None = None,
    ) -> Candidate:
        """A plan, with its layers counted and its idle ranks named."""
        counts, idle = counts_of(decisions, fold), idle_ranks(decisions, self.cluster)
        return Candidate(decisions, prediction, counts, idle, config, origin)

    def written(self, plans: Iterable[Candidate]) -> Candidate | None:
        """The best of these plans that code is written for. What is no better than the search's answer is not asked
        about: it is not taken."""
        for one in sorted(plans, key=WORTH):
            if not one.prediction.fits or one.step_s >= self.search.upper_s or self.writes(one):
                return one
        return None

    def writes(self, plan: Candidate) -> bool:
        """Whether code is written for a plan."""
        return self.search.writes(plan.named, plan.decisions, plan.prediction)


class Improvement(Protocol):
    """One way to make a plan better; its fields are its options."""

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether there may be anything to gain."""

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate | None]:
        """Plans near this one, priced; None for those that cannot be."""


def climb(
    plan: Candidate, improvement: Improvement, bench: Bench, *, steepest: bool = False, moves: int | None = None
) -> Candidate:
    """The plan at the end of a climb: from neighbour to neighbour as long as one is better, the first that is, or,
    `steepest`, the best of all; no more than so many `moves`."""
    while (moves is None or moves > 0) and improvement.accepts(plan, bench):
        better = (one for one in improvement.neighbours(plan, bench) if one is not None and one.worth < plan.worth)
        found = min(better, key=WORTH, default=None) if steepest else next(better, None)
        if found is None:
            break
        plan, moves = found, moves and moves - 1
    return plan
