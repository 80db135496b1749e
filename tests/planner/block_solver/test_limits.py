"""Limits: elimination with labels, and the frontier, against every choice one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.block_solver import Frontier, brute, frontier, pareto, solve
from meshwright.planner.block_solver.elimination import elimination, labelled
from meshwright.planner.block_solver.problem import Limit, Problem, Status
from tests.planner.block_solver.problems import problems, same, written


@settings(max_examples=200)
@given(st.integers(1, 3).flatmap(lambda limits: problems(limits=limits)))
def test_elimination_within_limits_is_brute_force(problem: Problem) -> None:
    answer, expected = elimination.solve(problem), brute.solve(problem)
    answer.check(problem)
    assert answer.status is expected.status
    assert same(answer.objective, expected.objective)
    assert answer == elimination.solve(problem)


def undominated(problem: Problem) -> set[tuple[float, tuple[float, ...]]]:
    every = {(round(problem.objective(one), 9), problem.used(one)) for one in brute.choices(problem)}
    return {
        one
        for one in every
        if not any(other != one and other[0] <= one[0] and np.less_equal(other[1], one[1]).all() for other in every)
    }


@settings(max_examples=80)
@given(st.integers(0, 2).flatmap(lambda limits: problems(limits=limits)))
def test_the_frontier_is_brute_force(problem: Problem) -> None:
    found = frontier(problem)
    best = undominated(problem)
    assert found.complete
    assert {(round(point.objective, 9), point.used) for point in found.points} == best
    for point in found.points:
        assert problem.legal(point.states)
        assert point.objective == problem.objective(point.states)
    few = frontier(problem, most_points=2)
    assert len(few.points) == min(2, len(best))
    assert few.complete == (len(best) <= 2)
    assert set(few.points) <= set(found.points)


@settings(max_examples=10)
@given(problems(limits=1))
def test_a_sample_that_may_be_large_is_the_frontier_too(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pareto, "MOST_LABELS", 0)
        # Uses are whole numbers, of which no sum is above fifty: gaps of one are looked into.
        patch.setattr(pareto, "NARROW", 1 / 50)
        found = frontier(problem, most_points=1000)
    # Nothing at all is proved, and then it is all.
    assert found.complete == (not found.points)
    assert {(round(point.objective, 9), point.used) for point in found.points} == undominated(problem)
    assert all(problem.legal(point.states) for point in found.points)


@settings(max_examples=30)
@given(st.integers(1, 2).flatmap(lambda limits: problems(limits=limits)), st.sampled_from((2, 5, 30)))
def test_a_sample_begins_with_the_cheapest_and_ends_with_the_most_frugal(problem: Problem, most: int) -> None:
    """What is little is not worth any cost, so that the least use is that among whole numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pareto, "MOST_LABELS", 0)
        found = frontier(problem, most_points=most)
    every = [(problem.objective(one), problem.used(one)) for one in brute.choices(problem)]
    assert bool(found.points) == bool(every)
    assert len(found.points) <= most
    for point in found.points:
        assert problem.legal(point.states)
        if len(problem.limits) == 1:
            assert same(point.objective, min(cost for cost, used in every if used[0] <= point.used[0]))
    if every and most > 5:
        assert same(found.points[0].objective, min(cost for cost, _ in every))
        for at in range(len(problem.limits)):
            assert min(point.used[at] for point in found.points) == min(used[at] for _, used in every)


def test_with_too_many_labels_the_best_known_is_not_called_optimal() -> None:
    """Six variables of twenty states around a hub, costs and uses against each other: a bound, and no proof."""
    rng = np.random.default_rng(11)
    bare = written(rng, [20] * 7, [(0, one) for one in range(1, 7)])
    uses = tuple(rng.random(20) + 1 - variable.costs / 3 for variable in bare.variables)
    uses = tuple(use - use.min() for use in uses)
    problem = Problem(bare.variables, bare.pairs, (Limit("memory", 4.0, uses),))
    exact = elimination.solve(problem)
    exact.check(problem)
    assert exact.status is Status.OPTIMAL
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "MOST_JOINED", 10)
        rough = elimination.solve(problem)
        again = solve(problem)
    rough.check(problem)
    assert rough.status is Status.FEASIBLE
    assert rough.bound <= exact.objective <= rough.objective
    again.check(problem)
    assert again.status is Status.OPTIMAL
    assert same(again.objective, exact.objective)


def test_a_frontier_that_has_no_time_is_not_complete() -> None:
    problem = written(np.random.default_rng(0), [5] * 6, [(0, 1), (1, 2)], limits=1)
    assert frontier(problem, limit_s=0.0) == Frontier((), complete=False)
