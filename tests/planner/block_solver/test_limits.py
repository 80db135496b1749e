"""Limits: elimination with labels, and the frontier, against every choice one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.block_solver import brute
from meshwright.planner.block_solver.elimination import solve
from meshwright.planner.block_solver.pareto import frontier
from meshwright.planner.block_solver.problem import Problem
from tests.planner.block_solver.problems import problems, same


@settings(max_examples=300)
@given(st.integers(1, 3).flatmap(lambda limits: problems(limits=limits)))
def test_elimination_within_limits_is_brute_force(problem: Problem) -> None:
    answer, expected = solve(problem), brute.solve(problem)
    answer.check(problem)
    assert answer.status is expected.status
    assert same(answer.objective, expected.objective)
    assert answer == solve(problem)


@settings(max_examples=150)
@given(st.integers(0, 2).flatmap(lambda limits: problems(limits=limits)))
def test_the_frontier_is_brute_force(problem: Problem) -> None:
    found = frontier(problem)
    every = {(round(problem.objective(one), 9), problem.used(one)) for one in brute.choices(problem)}
    best = {
        one
        for one in every
        if not any(other != one and other[0] <= one[0] and np.less_equal(other[1], one[1]).all() for other in every)
    }
    assert found.complete
    assert {(round(point.objective, 9), point.used) for point in found.points} == best
    for point in found.points:
        assert problem.legal(point.states)
        assert point.objective == problem.objective(point.states)
    few = frontier(problem, most_points=2)
    assert few.complete == (len(best) <= 2)
    assert set(few.points) <= set(found.points)
