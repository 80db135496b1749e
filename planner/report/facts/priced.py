"""Step time and memory of the plan, of those that it is held against, and of the frontier of all that was priced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.cost_models.prediction import Prediction
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.words import short


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A configuration with its price; `kind` is `plan`, `baseline`, `alternative` or `frontier`."""

    kind: str
    name: str
    config: str
    step_s: float
    peak_bytes: float
    fits: bool


def priced_of(plan: Plan, prediction: Prediction) -> tuple[Priced, ...]:
    """The plan as it is priced now, then all that the file has a price of."""
    own = Priced(
        kind="plan",
        name="the plan",
        config=short(plan.config),
        step_s=prediction.step_time_s,
        peak_bytes=prediction.peak_memory_bytes,
        fits=prediction.fits,
    )
    return (own, *_rivals(plan), *_frontier(plan))


def _rivals(plan: Plan) -> Iterator[Priced]:
    for kind, rivals in (("baseline", plan.baselines), ("alternative", plan.alternatives)):
        for number, one in enumerate(rivals, 1):
            if one.config is not None:
                yield Priced(
                    kind=kind,
                    name=one.name or f"alternative {number}",
                    config=short(one.config),
                    step_s=one.step_time_s,
                    peak_bytes=one.peak_memory_bytes,
                    fits=one.fits,
                )


def _frontier(plan: Plan) -> Iterator[Priced]:
    """Configurations of the frontier that are none of the others."""
    known = {plan.config, *(one.config for one in (*plan.baselines, *plan.alternatives))}
    others = (one for one in plan.frontier if one.config not in known)
    for number, one in enumerate(others, 1):
        yield Priced(
            kind="frontier",
            name=f"priced {number}",
            config=short(one.config),
            step_s=one.step_time_s,
            peak_bytes=one.peak_memory_bytes,
            fits=one.fits,
        )
