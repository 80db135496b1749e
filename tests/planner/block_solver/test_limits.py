"""Limits: elimination with labels, against every choice one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.block_solver import brute, solve
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
