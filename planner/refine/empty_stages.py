"""Plans that leave a stage without layers, under the other configurations of their kind.

Where a stage runs nothing but the embedding or the head, what made one micro-batch or schedule the better one,
transfers between stages above all, may be gone. So the same shares of layers, on the same ranks, are priced under every
configuration of the kind that the search has priced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.ir.errors import MeshwrightError
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench


@dataclass(frozen=True, slots=True)
class EmptyStages:
    """Other micro-batches, schedules and storage for a plan with a stage without layers.

    - `limit`: prices for one plan: a second or less, with few layers as such plans have.
    """

    limit: int = 60

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return plan.config is not None and 0 in plan.counts

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate | None]:
        ranked = sorted(bench.search.found.values(), key=lambda one: (one.step_s, str(one.config)))
        kind = _kind(plan.named)
        alike = [one.config for one in ranked if _kind(one.config) == kind and one.config != plan.origin]
        for config in alike[: self.limit]:
            if not bench.stop():
                yield _under(config, plan, bench)


def _kind(config: Config) -> tuple[object, ...]:
    """The values that other micro-batches, schedules or storage leave alone, as a key."""
    return config.tp, config.pp, config.vp, config.cp, config.ep, config.dp


def _under(origin: Config, plan: Candidate, bench: Bench) -> Candidate | None:
    """A configuration with its layers shared out as in a plan, on the same ranks; None if it cannot be."""
    config = replace(origin, split="even", stage_blocks=plan.counts)
    try:
        made = bench.decisions(config)
    except MeshwrightError:
        return None
    ranks = dict(zip(made.groups, plan.decisions.groups, strict=True))
    decisions = replace(made, stages=tuple(replace(stage, ranks=ranks[stage.ranks]) for stage in made.stages))
    prediction = bench.judged(decisions, bench.setting.fold(config))
    return Candidate(decisions, prediction, plan.counts, plan.idle, config=config, origin=origin)
