"""What is made of what solvers find: bounds, proofs that are none, which solver is asked next; by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meshwright.ir.errors import ProblemTooLarge, SolverFailed
from meshwright.planner.block_solver import methods
from meshwright.planner.block_solver.answer import found, priced, same_cost, simple_bound, timed_out
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Assignment, Limit, Pair, Problem, Status, Variable
from meshwright.planner.block_solver.programs import process
from meshwright.planner.block_solver.programs.linear import Linear, Solution
from meshwright.planner.block_solver.programs.process import Finding

OPTIMAL, FEASIBLE = Status.OPTIMAL, Status.FEASIBLE
INFEASIBLE, TIMED_OUT = Status.INFEASIBLE, Status.TIMED_OUT

ONE = Problem((Variable("a", np.array([3.0, 1.0, 2.0])),), (), (Limit("memory", 1.0, (np.array([0.0, 2.0, 1.0]),)),))
"""The cheapest state does not fit: the optimum is state 2, at a cost of 2; nothing costs less than 1."""


def told(answer: Assignment) -> tuple[object, ...]:
    return answer.status, answer.states, answer.objective, answer.bound


def test_a_choice_is_optimal_where_the_bound_meets_it() -> None:
    """Within a billionth of the objective, of one at least."""
    costs = (4.0, 1e-3, -4.0)
    own = Problem((Variable("a", np.array(costs)),))
    for state, below, status in (
        (0, 3e-9, OPTIMAL),
        (0, 5e-9, FEASIBLE),
        (0, -1.0, OPTIMAL),
        (1, 5e-10, OPTIMAL),
        (1, 2e-9, FEASIBLE),
        (2, 3e-9, OPTIMAL),
        (2, 5e-9, FEASIBLE),
    ):
        cost = costs[state]
        bound = cost if status is OPTIMAL else cost - below
        assert told(found(own, (state,), cost - below, 0.0)) == (status, (state,), cost, bound)


def test_choices_of_one_cost() -> None:
    own = Problem((Variable("a", np.array([4.0, 4 + 3e-9, 4 + 5e-9, 1e-3, 1e-3 + 5e-10])),))
    alike = [(0, 1), (1, 0), (3, 4), (1, 2)]
    assert all(same_cost(own, (one,), (other,)) for one, other in alike)
    assert not any(same_cost(own, (one,), (other,)) for one, other in ((0, 2), (2, 0), (0, 3)))


def test_what_nothing_is_below() -> None:
    """Least costs of two variables, 1 and 2, and of the allowed of two pairs, 5 and, where nothing is, nothing."""
    pair = np.array([[0.0, 7.0], [5.0, 6.0]])
    variables = tuple(Variable(name, np.array(costs)) for name, costs in (("a", [1.0, 9.0]), ("b", [3.0, 2.0])))
    some, none = np.array([[False, True], [True, True]]), np.zeros((2, 2), dtype=bool)
    assert simple_bound(Problem(variables, (Pair(0, 1, pair, some),))) == 1 + 2 + 5
    assert simple_bound(Problem(variables, (Pair(0, 1, pair),))) == 1 + 2 + 0
    assert simple_bound(Problem(variables, (Pair(0, 1, pair, none),))) == 1 + 2


def test_uses_are_paid_for_at_the_prices_that_are_named() -> None:
    uses = (np.array([1.0, 2.0]), np.array([3.0]))
    own = Problem(
        (Variable("a", np.array([10.0, 20.0])), Variable("b", np.array([30.0]))),
        (Pair(0, 1, np.zeros((2, 1))),),
        (Limit("one", 9.0, uses), Limit("two", 9.0, tuple(100 * use for use in uses))),
    )
    for prices, first, second in (
        ({}, [10, 20], [30]),
        ({"one": 2.0}, [12, 24], [36]),
        ({"one": 2.0, "two": 1.0}, [112, 224], [336]),
    ):
        paid = priced(own, prices)
        assert [one.costs.tolist() for one in paid.variables] == [first, second]
        assert (paid.limits, paid.pairs) == ((), own.pairs)


def test_when_time_is_up_a_start_is_kept_if_it_is_legal() -> None:
    for start, bound, expected in (
        (None, None, (TIMED_OUT, (), None, None)),
        ((1,), None, (TIMED_OUT, (), None, None)),
        ((0,), None, (FEASIBLE, (0,), 3.0, 1.0)),
        ((0,), 2.5, (FEASIBLE, (0,), 3.0, 2.5)),
        ((0,), 0.0, (FEASIBLE, (0,), 3.0, 0.0)),
    ):
        assert told(timed_out(ONE, start, bound, 0.0)) == expected


def test_what_a_solver_says_is_held_against_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is cheaper shows that a proof is none; then the solver's bound is none either."""
    cases: list[tuple[Finding, tuple[int, ...] | None, tuple[object, ...]]] = [
        (Finding((2,), True, None), None, (OPTIMAL, (2,), 2.0, 2.0)),
        (Finding((2,), True, 1.5), (0,), (OPTIMAL, (2,), 2.0, 2.0)),
        (Finding((0,), True, None), (2,), (FEASIBLE, (2,), 2.0, 1.0)),
        (Finding((0,), True, 1.75), (2,), (FEASIBLE, (2,), 2.0, 1.0)),
        (Finding((0,), False, 1.5), None, (FEASIBLE, (0,), 3.0, 1.5)),
        (Finding((0,), False, 0.5), None, (FEASIBLE, (0,), 3.0, 1.0)),
        (Finding((2,), False, 7.0), None, (OPTIMAL, (2,), 2.0, 2.0)),
        (Finding((2,), False, None), None, (FEASIBLE, (2,), 2.0, 1.0)),
        (Finding((2,), False, 1.5), (1,), (FEASIBLE, (2,), 2.0, 1.5)),
        (Finding(None, True, None), None, (INFEASIBLE, (), None, None)),
        (Finding(None, True, None), (1,), (INFEASIBLE, (), None, None)),
        (Finding(None, False, None), None, (TIMED_OUT, (), None, None)),
        (Finding(None, True, None), (2,), (FEASIBLE, (2,), 2.0, 1.0)),
        (Finding(None, False, 1.75), (0,), (FEASIBLE, (0,), 3.0, 1.75)),
    ]
    asked: list[tuple[object, ...]] = []

    def said(problems: Sequence[Problem], *words: object) -> tuple[list[Finding], None]:
        asked.append((len(problems), *words))
        return [finding for finding, _, _ in cases], None

    monkeypatch.setattr(process, "_asked", said)
    # Two more of which the child said nothing.
    starts = [*(start for _, start, _ in cases), (2,), None]
    answers = process.solve_all([ONE] * len(starts), limit_s=7.0, starts=starts, solver="own")
    expected = [*(told for _, _, told in cases), (FEASIBLE, (2,), 2.0, 1.0), (TIMED_OUT, (), None, None)]
    assert list(map(told, answers)) == expected
    assert asked == [(len(starts), 7.0, "own")]
    assert told(process.solve_all([ONE])[0]) == expected[0]


def test_a_child_that_breaks_leaves_what_it_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = Linear(costs=(1.0,), lower=(0.0,), upper=(1.0,), whole=(True,), rows=())
    said: list[Any] = [Solution((0.0,), proved=True, bound=0.0), Finding((2,), True, None)]
    monkeypatch.setattr(process, "_asked", lambda *_: (said, "it broke"))
    assert process.solve_linear([linear]) == said[:1]
    assert process.solve(ONE).states == (2,)
    for broken in (lambda: process.solve_linear([linear] * 2), lambda: process.solve_all([ONE] * 2)):
        with pytest.raises(SolverFailed, match=r"integer program 1.*it broke"):
            broken()
    monkeypatch.setattr(process, "_asked", lambda *_: (said, None))
    nothing = Solution(None, proved=False, bound=None)
    assert process.solve_linear([linear] * 3) == [said[0], nothing, nothing]


def test_whom_is_asked_after_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    """The integer program, where elimination refuses or leaves a gap and there is time; the higher bound counts."""
    gap, closed = Assignment(FEASIBLE, (0,), 3.0, 1.5), Assignment(OPTIMAL, (2,), 2.0, 2.0)
    never, low = Assignment(INFEASIBLE), Assignment(FEASIBLE, (2,), 2.0, 1.25)
    high, late = Assignment(FEASIBLE, (2,), 2.0, 1.75), Assignment(TIMED_OUT)
    cases: list[tuple[Assignment | None, Assignment, float | None, tuple[object, ...], object]] = [
        (closed, low, None, told(closed), "not asked"),
        (never, low, None, told(never), "not asked"),
        (late, low, None, told(late), "not asked"),
        (gap, low, 0.0, told(gap), "not asked"),
        (gap, low, None, (FEASIBLE, (2,), 2.0, 1.5), (None, (0,))),
        (gap, high, None, (FEASIBLE, (2,), 2.0, 1.75), (None, (0,))),
        (gap, closed, None, told(closed), (None, (0,))),
        (gap, late, None, told(late), (None, (0,))),
        (None, low, None, told(low), (None, (1,))),
        (None, late, 0.0, told(late), (0.0, (1,))),
        (None, never, None, told(never), (None, (1,))),
    ]
    for first, second, limit_s, expected, asked in cases:
        seen: list[object] = []

        def eliminated(*_: object, answer: Assignment | None = first, **words: object) -> Assignment:
            assert words == {"limit_s": limit_s, "start": (1,)}  # noqa: B023
            if answer is None:
                raise ProblemTooLarge(place="here", cause="too large", fix="none")
            return answer

        def programmed(*_: object, answer: Assignment = second, **words: object) -> Assignment:
            seen.append((words["limit_s"], words["start"]))  # noqa: B023
            return answer

        monkeypatch.setattr(elimination, "solve", eliminated)
        monkeypatch.setattr(process, "solve", programmed)
        assert told(methods.solve(ONE, limit_s=limit_s, start=(1,))) == expected
        assert (seen or ["not asked"]) == [asked]
