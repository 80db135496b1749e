"""What bounds on memory count of schedules is what these come to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from meshwright.ir.schedules import SCHEDULES, Moment, Shape, moments, stage_groups, work_lists
from meshwright.planner.bounds.in_flight import Flight, in_flight
from tests.ir.schedules.exceeding import exceeds


def virtual(name: str) -> tuple[int, ...]:
    """How many stages a group of a schedule may hold."""
    return (2,) if SCHEDULES[name].vee else (2, 3) if name == "interleaved" else (1,)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "gpipe"])
@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_no_more_are_in_flight_with_more_micro_batches_than_twice_the_stages(name: str, pp: int) -> None:
    """But for GPipe, which holds all of them."""
    for vp in virtual(name):
        groups = stage_groups(name, pp, vp)
        few, many = (moments(work_lists(name, Shape(groups, count))) for count in (2 * pp, 5 * pp))
        for own, later in zip(few, many, strict=True):
            assert all(any(exceeds(one, other) for one in later) for other in own)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_told_of_flight_happens(name: str) -> None:
    """Every moment that a bound on memory counts is one that the schedule comes to, or less than one."""
    for pp, microbatches in ((2, 4), (4, 8), (4, 16), (8, 16)):
        for vp in virtual(name):
            real = moments(work_lists(name, Shape(stage_groups(name, pp, vp), microbatches)))
            for group, own in enumerate(real):
                told = in_flight(name, pp, vp, microbatches, group)
                assert told
                assert all(any(exceeds(one, other) for one in own) for other in told)


def held(one: Moment, own: tuple[int, ...], sizes: npt.NDArray[np.float64]) -> Iterator[float]:
    """`sizes`: of what is kept, of what waits, and of what a forward and a backward pass add, for each stage."""
    kept, waiting, forward, backward = sizes
    at = own.index(one.stage)
    yield from (count * size for count, size in zip(one.live, kept, strict=True))
    yield from (count * size for count, size in zip(one.pending, waiting, strict=True))
    if one.kind == "F":
        yield forward[at]
    if one.kind == "B" or (one.kind == "I" and one.stage > 0):
        yield backward[at]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rows_of_a_flight_are_its_moments(name: str) -> None:
    """With any sizes, what a row holds is what a moment holds; and every moment has a row."""
    sizes = np.random.default_rng(0).random((4, virtual(name)[0]))
    stages = stage_groups(name, 4, virtual(name)[0])
    for own, found in zip(stages, moments(work_lists(name, Shape(stages, 8))), strict=True):
        flying = Flight.of(found, own)
        rows = flying.counts @ sizes.ravel()
        expected = {(round(sum(held(one, own, sizes)), 9), all(one.graded)) for one in found}
        assert {(round(float(row), 9), bool(has)) for row, has in zip(rows, flying.graded, strict=True)} == expected
