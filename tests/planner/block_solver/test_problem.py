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
    ],
)
def test_lies_are_found(lie: Assignment) -> None:
    with pytest.raises(ProblemMalformed):
        lie.check(FINE)


def test_the_truth_passes() -> None:
    Assignment(Status.OPTIMAL, (1, 0), 4.0, 4.0).check(FINE)
    Assignment(Status.FEASIBLE, (1, 0), 4.0, 3.0).check(FINE)
    Assignment(Status.TIMED_OUT).check(FINE)
