"""Message passing against every choice one by one: no best choice is lost, and on trees little else is left."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.planner.block_solver import brute
from meshwright.planner.block_solver.elimination import passing
from meshwright.planner.block_solver.elimination.elimination import solve
from meshwright.planner.block_solver.elimination.order import order_of
from meshwright.planner.block_solver.elimination.passing import least, narrowed
from meshwright.planner.block_solver.problem import Pair, Problem, Variable
from tests.planner.block_solver.problems import problems, same


@settings(max_examples=400)
@given(problems(limits=0))
def test_no_best_choice_is_left_out(problem: Problem) -> None:
    expected = brute.solve(problem)
    with patch.object(passing, "WORTH_PASSING", 0):
        kept = narrowed(problem, order_of(problem))
        found = solve(problem)
    assert found.status is expected.status
    assert found == solve(problem)
    if kept is None or expected.objective is None:
        return
    for choice in brute.choices(problem):
        if problem.objective(choice) <= expected.objective:
            assert all(state in own for state, own in zip(choice, kept.kept, strict=True))


@settings(max_examples=200)
@given(problems(limits=1))
def test_limits_are_held_with_messages_too(problem: Problem) -> None:
    with patch.object(passing, "WORTH_PASSING", 0):
        found = solve(problem)
    expected = brute.solve(problem)
    found.check(problem)
    assert found.status is expected.status
    assert same(found.objective, expected.objective)


def test_on_a_tree_one_choice_is_left() -> None:
    random = np.random.default_rng(0)
    variables = tuple(Variable(f"v{at}", random.random(6)) for at in range(20))
    pairs = tuple(Pair((at - 1) // 2, at, random.random((6, 6))) for at in range(1, 20))
    problem = Problem(variables, pairs)
    with patch.object(passing, "WORTH_PASSING", 0):
        kept = narrowed(problem, order_of(problem))
    assert kept is not None
    assert [len(own) for own in kept.kept] == [1] * 20
    assert kept.back((0,) * 20) == solve(problem).states


def test_small_problems_are_swept_at_once() -> None:
    problem = Problem((Variable("v", np.array([1.0, 2.0])),))
    order = order_of(problem)
    assert narrowed(problem, order) is None
    assert least(problem, order) == (1.0, (0,))


def test_where_nothing_is_allowed_there_is_no_choice() -> None:
    never = np.zeros((2, 2), dtype=bool)
    problem = Problem(tuple(Variable(name, np.zeros(2)) for name in "ab"), (Pair(0, 1, np.zeros((2, 2)), never),))
    with patch.object(passing, "WORTH_PASSING", 0):
        optimum, states = least(problem, order_of(problem))
    assert states is None
    assert optimum == pytest.approx(float("inf"))
