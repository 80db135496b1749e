"""A plan that may become the answer, and how better ones are found near it.

    Candidate, its neighbours -> climb -> the best Candidate on the way

What ranks candidates is `Prediction.worth`: whether they fit, then how long a step takes. Layers, ranks, shares,
operators and schedules each have neighbours of their own; the evaluator's price of the lowered program is the only
judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from meshwright.cost_models.prediction import Prediction, Worth
from meshwright.ir.decisions.decisions import Decisions
from meshwright.planner.question.pins import Config

Counts = tuple[int, ...]
"""The layers of every stage, along the model."""

WORTH = attrgetter("worth")


@dataclass(frozen=True, slots=True)
class Custom:
    """What a schedule made for a plan (`planner.refine.schedule`) stands for.

    - `before` is the schedule in whose place it is; `before_s` the step with that, 0 where it does not fit.
    """

    before: str
    before_s: float
    least_s: float
    """What no order of the plan's work takes less than."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, its price, and what it came of.

    - `counts` are the layers of its stages, `idle` the ranks of the cluster that it does not use.
    - `origin` is the configuration that it was made of, `config` the same with these layers; None where its stages have
      unlike meshes.
    """

    decisions: Decisions
    prediction: Prediction
    counts: Counts = ()
    idle: tuple[int, ...] = ()
    config: Config | None = None
    origin: Config | None = None
    changed: tuple[str, ...] = ()
    """Bodies in which axes do something else than names say (`planner.refine.operators`)."""
    custom: Custom | None = None
    """If the schedule was made for it."""

    @property
    def step_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def worth(self) -> Worth:
        return self.prediction.worth


def climb(
    start: Candidate,
    neighbours: Callable[[Candidate], Iterable[Candidate | None]],
    *,
    steepest: bool = False,
    moves: int | None = None,
) -> Candidate:
    """From neighbour to neighbour as long as one is better: the first that is, or, `steepest`, the best of all; no more
    than so many `moves`. Neighbours that cannot be are None."""
    while moves is None or moves > 0:
        better = (one for one in neighbours(start) if one is not None and one.worth < start.worth)
        found = min(better, key=WORTH, default=None) if steepest else next(better, None)
        if found is None:
            break
        start, moves = found, moves and moves - 1
    return start
