"""What groups of a pipeline hold at once, as bounds on memory count it: the fullest moments of a schedule
(`meshwright.ir.schedules`), where these are cheap to know, and a few that every schedule comes to where they are not.

Bounds are asked of thousands of configurations with few schedules among them, so that the counts are matrices: one row
for each moment, one column for each stage of the group. What a group holds is then one product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from meshwright.ir.schedules import Moment, Shape, moments_of, stage_groups, work_lists

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Flight:
    """Moments of one group: micro-batches per stage with everything saved, and with only what gradients of weights
    read; the stage on which a forward pass runs, or one that makes gradients of inputs; and whether there are gradients
    of all stages."""

    live: Matrix
    pending: Matrix
    forward: Matrix
    backward: Matrix
    graded: npt.NDArray[np.bool_]

    @staticmethod
    def of(found: tuple[Moment, ...], own: tuple[int, ...]) -> Flight:
        """The moments of a group, equal ones merged."""
        alike = {
            (one.live, one.pending, *(one.stage if runs else -1 for runs in _runs(one)), all(one.graded))
            for one in found
        }
        live, pending, forward, backward, graded = zip(*sorted(alike), strict=True)
        stages = np.array(own)
        return Flight(
            np.array(live, dtype=float),
            np.array(pending, dtype=float),
            (np.array(forward)[:, None] == stages).astype(float),
            (np.array(backward)[:, None] == stages).astype(float),
            np.array(graded),
        )

    @cached_property
    def counts(self) -> Matrix:
        """The counts of all moments side by side: `live`, `pending`, `forward`, `backward`."""
        return np.hstack([self.live, self.pending, self.forward, self.backward])


def _runs(moment: Moment) -> tuple[bool, bool]:
    """Whether a forward pass runs, and whether gradients of inputs are made; on the first stage torch makes none before
    those of weights."""
    return moment.kind == "F", moment.kind == "B" or (moment.kind == "I" and moment.stage > 0)


@lru_cache(maxsize=16384)
def flight(schedule: str, pp: int, vp: int, microbatches: int, group: int) -> Flight:
    """The moments of a group, by its number."""
    return Flight.of(in_flight(schedule, pp, vp, microbatches, group), stage_groups(schedule, pp, vp)[group])


def in_flight(schedule: str, pp: int, vp: int, microbatches: int, group: int) -> tuple[Moment, ...]:
    """The fullest moments that a group comes to, where these are cheap to know."""
    groups = stage_groups(schedule, pp, vp)
    few = min(microbatches, 2 * pp)  # with more there are no more in flight (`tests/planner/test_flights.py`)
    if schedule not in ("gpipe", "1f1b") and pp * vp * few <= MOST_ACTIONS:
        return moments_of(work_lists(schedule, Shape(groups, few)), group)
    own = groups[group]
    most = {"gpipe": microbatches, "1f1b": min(microbatches, pp - own[0])}.get(schedule, 1)
    none, no, yes = (0,) * (len(own) - 1), (False,) * len(own), (True,) * len(own)
    first = Moment("B", own[-1], (most,) * len(own), (0, *none), no, no)
    later = Moment("B", own[0], (min(most, microbatches - 1), *none), (0, *none), yes, no)
    return (first,) * (most == microbatches) + (later,) * (microbatches > 1)


MOST_ACTIONS = 4_000
"""Forward actions of lists that are written for a bound on memory; longer ones are left to the evaluator."""
