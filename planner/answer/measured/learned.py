"""What one run of a plan teaches a profile: the values that were fitted on whole steps, moved towards its step.

    T(x) + g dx = T measured,  dx = S g / (g S g + noise) (T measured - T(x)),  S = diag(doubt)

A profile has no record of the steps that it was fitted on, so a run is taken in by itself, as in a Kalman filter: each
value moves by its share in the step and by how much it is doubted, and the noise of a measurement keeps a single run
from deciding all. A prediction that was right moves nothing; of many runs the later ones count more. An interval that
did not hold the run is widened until it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from meshwright.cost_models.measured.measured import Learned, Measured, Spread, family_of
from meshwright.cost_models.profile import calibrated
from meshwright.planner.answer.compare import Run
from meshwright.planner.answer.measured.residuals import (
    LEAST_SCALE,
    ROUNDS_OF_FIT,
    Priced,
    Vector,
    prices,
    slopes_at,
    values_of,
    with_values,
)
from meshwright.planner.answer.traced.step import Measured as Traced
from meshwright.planner.plan.reload import Reloaded, program_of

DOUBT = 0.3
"""Of a value that was fitted, as a share of it (standard deviation; assumed, as the next two are)."""
UNKNOWN = 0.02
"""Of a step, as a share of it: what any value may add to it, though the fit found less or none."""
NOISE = 0.03
"""Of a measured step, as a share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a run taught the profile of a file: its step, as it was predicted by the profile before and is after."""

    profile: str
    runs: int
    """That the profile has learned from by now."""
    measured_s: float
    before_s: float
    after_s: float


def taught(found: Measured, again: Reloaded, run: Run | Traced, profile: str) -> tuple[Measured, Lesson]:
    """The profile of a file after a run of a plan."""
    calibrated(found).check_of(again.ask.cluster)
    one = Priced(program=program_of(again.plan, again.setting), ask=again.ask)
    before_s = float(prices(found, [one])[0])
    told = Learned(
        config=str(again.plan.config),
        made=datetime.now(UTC).date().isoformat(),
        steps=run.steps,
        measured_s=run.step_time_s,
        predicted_s=before_s,
    )
    after = learned(found, one, told)
    after_s = float(prices(after, [one])[0])
    runs = len(after.learned)
    return after, Lesson(profile=profile, runs=runs, measured_s=run.step_time_s, before_s=before_s, after_s=after_s)


def learned(found: Measured, one: Priced, told: Learned) -> Measured:
    """The profile after a run of this plan, of which it keeps what is `told`."""
    start, measured_s = values_of(found), told.measured_s
    x = start
    for _ in range(ROUNDS_OF_FIT):
        base_s, slopes = float(prices(with_values(found, x), [one])[0]), slopes_at(found, [one], x)[0]
        x = _moved(start, slopes, measured_s - base_s + float(slopes @ (x - start)), measured_s)
    spread = _holding(found, family_of(len(one.program.stages)), measured_s / told.predicted_s)
    others = [other for other in found.spreads if other.family != spread.family]
    spreads = tuple(sorted((*others, spread), key=lambda one: one.family))
    return replace(with_values(found, x), spreads=spreads, learned=(*found.learned, told))


def _moved(start: Vector, slopes: Vector, missing_s: float, measured_s: float) -> Vector:
    """The values for which a step takes about `missing_s` longer than with those of the start."""
    costs = np.abs(slopes)
    least = np.divide(UNKNOWN * measured_s, costs, out=np.zeros_like(costs), where=costs > 0)
    variances = np.maximum(DOUBT * start, least) ** 2
    gain = variances * slopes / (slopes @ (variances * slopes) + (NOISE * measured_s) ** 2)
    x = np.maximum(start + gain * missing_s, 0)
    x[0] = max(x[0], min(LEAST_SCALE, start[0]))
    return np.asarray(x)


def _holding(found: Measured, family: str, ratio: float) -> Spread:
    """The spread of this family, or what stands for it, so that it holds a step that took `ratio` times what was
    predicted."""
    low, high = found.spread(family)
    plans = sum(one.plans for one in found.spreads if one.family == family)
    return Spread(family=family, plans=plans + 1, low=min(low, ratio), high=max(high, ratio))
