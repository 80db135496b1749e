"""Problems and assignments are what they say, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.ir.errors import ProblemMalformed
from meshwright.planner.block_solver.problem import Assignment, Limit, Pair, Problem, Status, Variable

ONE, TWO = np.array([1.0]), np.array([1.0, 2.0])
FINE = Problem(
    (Variable("a", TWO), Variable("b", TWO)),
    (Pair(0, 1, np.array([[0.0, 5.0], [1.0, 0.0]]), np.array([[False, True], [True, True]])),),
    (Limit("memory", 3.0, (TWO, TWO)),),
)
"""The cheapest choice is not allowed, the cheapest of the allowed is (1, 0)."""

PAIRED = (Variable("a", TWO), Variable("b", TWO))


def test_a_choice_is_priced_and_checked() -> None:
    assert FINE.objective((1, 0)) == 2.0 + 1.0 + 1.0
    assert FINE.used((1, 0)) == (3.0,)
    assert FINE.legal((1, 0))
    assert not FINE.legal((0, 0))  # not allowed
    assert not FINE.legal((1, 1))  # uses four of three


@pytest.mark.parametrize(
    "make",
    [
        lambda: Problem((Variable("a", np.array([])),)),
        lambda: Problem((Variable("a", np.array([np.inf])),)),
        lambda: Problem((Variable("a", ONE),), (Pair(0, 0, np.zeros((1, 1))),)),
        lambda: Problem((Variable("a", ONE), Variable("b", TWO)), (Pair(0, 1, np.zeros((2, 1))),)),
        lambda: Problem((Variable("a", ONE), Variable("b", ONE)), (Pair(0, 1, np.array([[np.nan]])),)),
        lambda: Problem((Variable("a", ONE),), (), (Limit("memory", 1.0, (TWO,)),)),
        lambda: Problem((Variable("a", ONE),), (), (Limit("memory", 1.0, (-ONE,)),)),
        lambda: Problem((Variable("a", np.ones((2, 1))),)),
        lambda: Problem(PAIRED, (Pair(-1, 1, np.zeros((2, 2))),)),
        lambda: Problem(PAIRED, (Pair(1, 0, np.zeros((2, 2))),)),
        lambda: Problem(PAIRED, (Pair(0, 2, np.zeros((2, 2))),)),
        lambda: Problem(PAIRED, (Pair(0, 1, np.zeros((2, 2))),) * 2),
        lambda: Problem(PAIRED, (Pair(0, 1, np.zeros((2, 2)), np.ones((2, 1), dtype=bool)),)),
        lambda: Problem(PAIRED, (), (Limit("memory", 1.0, (TWO, TWO - 2)),)),
    ],
)
def test_tables_that_do_not_fit_are_refused(make: Callable[[], Problem]) -> None:
    with pytest.raises(ProblemMalformed):
        make()


@pytest.mark.parametrize(
    "lie",
    [
        Assignment(Status.OPTIMAL, (0, 0), 2.0, 2.0),
        Assignment(Status.OPTIMAL, (1, 0), 3.0, 3.0),
        Assignment(Status.OPTIMAL, (1, 0), 4.0, 3.0),
        Assignment(Status.FEASIBLE, (1, 0), 4.0, 5.0),
        Assignment(Status.FEASIBLE, (1, 0), 4.0, None),
        Assignment(Status.INFEASIBLE, (1, 0)),
        Assignment(Status.INFEASIBLE, (), 4.0),
        Assignment(Status.TIMED_OUT, (1, 0)),
        Assignment(Status.TIMED_OUT, (), 4.0),
        Assignment(Status.FEASIBLE, (1, 0), None, 3.0),
        Assignment(Status.FEASIBLE, (0, 0), 2.0, 1.0),
        Assignment(Status.FEASIBLE, (1, 0), 5.0, 3.0),
        # by a little more than 4e-9, the tolerance of an objective of four
        Assignment(Status.FEASIBLE, (1, 0), 4 + 5e-9, 3.0),
        Assignment(Status.FEASIBLE, (1, 0), 4.0, 4 + 5e-9),
        Assignment(Status.OPTIMAL, (1, 0), 4.0, 4 - 5e-9),
    ],
)
def test_lies_are_found(lie: Assignment) -> None:
    with pytest.raises(ProblemMalformed):
        lie.check(FINE)


def test_the_truth_passes() -> None:
    Assignment(Status.OPTIMAL, (1, 0), 4.0, 4.0).check(FINE)
    Assignment(Status.FEASIBLE, (1, 0), 4.0, 3.0).check(FINE)
    Assignment(Status.FEASIBLE, (1, 0), 4.0, -9.0).check(FINE)
    Assignment(Status.TIMED_OUT).check(FINE)
    Assignment(Status.INFEASIBLE).check(FINE)


def test_what_differs_by_less_than_the_tolerance_is_equal() -> None:
    """A billionth of the objective; of small ones, of one. So it is for what is used, of the capacity."""
    for objective, bound in ((4 + 3e-9, 4.0), (4 - 3e-9, 4.0), (4.0, 4 + 3e-9), (4.0, 4 - 3e-9)):
        Assignment(Status.OPTIMAL, (1, 0), objective, bound).check(FINE)
    tiny = Problem((Variable("a", ONE * 1e-3),))
    Assignment(Status.OPTIMAL, (0,), 1e-3 + 5e-10, 1e-3).check(tiny)
    for use, legal in ((3 + 2e-9, True), (3 + 4e-9, False)):
        one = Problem((Variable("a", ONE),), (), (Limit("memory", 3.0, (ONE * use,)),))
        assert one.legal((0,)) == legal
    edge = Problem((Variable("a", ONE),), (), (Limit("memory", 0.0, (ONE * 0,)),))
    assert edge.legal((0,))


def test_every_pair_and_every_limit_must_allow_a_choice() -> None:
    """Three variables of two states; one pair forbids (0, 1), the other nothing, and each limit one state."""
    forbids = np.array([[True, False], [True, True]])
    never, free = np.zeros(2), np.zeros((2, 2))
    three = tuple(Variable(name, TWO) for name in "abc")
    first, second = np.array([0.0, 2.0]), np.array([2.0, 0.0])
    pairs = (Pair(0, 1, free, forbids), Pair(1, 2, free))
    assert [Problem(three, pairs).legal(one) for one in ((0, 0, 0), (0, 1, 0), (1, 1, 0))] == [True, False, True]
    scarce = (Limit("one", 1.0, (first, never, never)), Limit("two", 1.0, (never, second, never)))
    limited = Problem(three, (), scarce)
    assert limited.used((1, 0, 1)) == (2.0, 2.0)
    found = [limited.legal(one) for one in ((0, 1, 0), (1, 1, 0), (0, 0, 0), (1, 0, 0))]
    assert found == [True, False, False, False]
