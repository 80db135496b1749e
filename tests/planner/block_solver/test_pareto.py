"""Trades between cost and use, of one variable whose states are known: which are shown, and in which order sought."""

from __future__ import annotations

import pytest

from meshwright.planner.block_solver import frontier, pareto
from meshwright.planner.block_solver.problem import Problem
from tests.planner.block_solver.problems import traded


def test_points_of_a_frontier_are_spread_evenly() -> None:
    """Seven trades, of which so many are shown: the ends and what lies in the middle between."""
    own = traded(*[(cost, (7 - cost) ** 2) for cost in range(1, 8)], (5, 30), capacity=(99,))
    for most, costs in ((7, [1, 2, 3, 4, 5, 6, 7]), (9, [1, 2, 3, 4, 5, 6, 7]), (4, [1, 3, 5, 7]), (3, [1, 4, 7])):
        found = frontier(own, most_points=most)
        assert [point.objective for point in found.points] == costs
        assert [point.used for point in found.points] == [((7 - cost) ** 2,) for cost in costs]
        assert found.complete == (most >= 7)


def sampled(problem: Problem, most: int) -> list[float]:
    """What the points of a sample cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pareto, "MOST_LABELS", 0)
        found = frontier(problem, most_points=most)
    assert not found.complete
    assert [point.objective for point in found.points] == [problem.objective(point.states) for point in found.points]
    return [point.objective for point in found.points]


HOLLOW = traded((120, 0), (0, 16), (60, 12), (90, 8), (97, 4), (99, 2), (100, 0), capacity=(16,))
"""All between the ends, 0 and 100, lies above the line between these: prices see none of it."""

BOWED = traded((0, 16), (16, 12), (64, 8), (144, 4), (256, 0), capacity=(99,))
"""Squares: each lies below the line between its neighbours."""


def test_what_prices_cannot_see_is_sought_in_the_middle_of_gaps() -> None:
    """The widest gap first, of equal ones that of the most use: at 8, 12 and 4. At 14, 10 and 6 there is nothing new,
    and of as many looks as points are asked for the seventh finds what uses 2."""
    for most, costs in (
        (2, [0, 100]),
        (3, [0, 90, 100]),
        (4, [0, 60, 90, 100]),
        (5, [0, 60, 90, 97, 100]),
        (6, [0, 60, 90, 97, 100]),
        (7, [0, 60, 90, 97, 99, 100]),
    ):
        assert sampled(HOLLOW, most) == costs


def test_gaps_that_are_narrow_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of all use is as wide as those behind the third look."""
    for narrow, costs in ((0.25, [0, 60, 90, 97, 100]), (0.24, [0, 60, 90, 97, 99, 100]), (0.5, [0, 90, 100])):
        monkeypatch.setattr(pareto, "NARROW", narrow)
        assert sampled(HOLLOW, 7) == costs


def test_half_of_the_points_may_be_corners() -> None:
    """The middle, then between it and the cheapest; what is left is sought in the widest gap, below the middle."""
    for most, costs in (
        (2, [0, 256]),
        (3, [0, 64, 256]),
        (4, [0, 16, 64, 256]),
        (5, [0, 16, 64, 144, 256]),
        (9, [0, 16, 64, 144, 256]),
    ):
        assert sampled(BOWED, most) == costs


def test_the_most_frugal_is_legal_for_other_limits_too() -> None:
    """What uses least of the first uses nine of the second, of which there are five; the cheapest uses none of it."""
    assert sampled(traded((0, 4, 0), (10, 0, 9), (7, 1, 1), capacity=(9, 5)), 4) == [0, 7]
    assert sampled(traded((0, 4, 0), (10, 0, 9), (7, 1, 1), capacity=(9, 9)), 4) == [0, 7, 10]
    assert sampled(traded((3, 1), (2, 1), (5, 1), capacity=(1,)), 4) == [2]
