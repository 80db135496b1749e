"""Elimination and min-marginals against every choice one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver import brute
from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.elimination.elimination import solve
from meshwright.planner.block_solver.elimination.order import order_of
from meshwright.planner.block_solver.elimination.sweeps import min_marginals
from meshwright.planner.block_solver.problem import Pair, Problem, Status, Variable
from tests.planner.block_solver.problems import problems, same, written


@settings(max_examples=1000)
@given(problems(limits=0))
def test_elimination_is_brute_force(problem: Problem) -> None:
    answer, expected = solve(problem), brute.solve(problem)
    answer.check(problem)
    expected.check(problem)
    assert answer.status is expected.status
    assert same(answer.objective, expected.objective)
    assert answer == solve(problem)


@settings(max_examples=150)
@given(problems(limits=1), st.sampled_from([0.0, 0.7]))
def test_min_marginals_are_brute_force(problem: Problem, price: float) -> None:
    found = min_marginals(problem, prices={"limit0": price})
    bare = priced(problem, {"limit0": price})
    for index, variable in enumerate(problem.variables):
        for state in range(len(variable.costs)):
            least = min((bare.objective(one) for one in brute.choices(bare) if one[index] == state), default=None)
            assert found.possible[index][state] == (least is not None)
            assert least is None or same(found.best[index][state], least)
    best = brute.solve(bare)
    if best.objective is not None:
        assert all(mask[state] for mask, state in zip(found.within(best.objective), best.states, strict=True))


def test_large_sums_are_made_in_pieces() -> None:
    """Three variables of 120 states around a fourth, some states alike: far above one piece, and known by numpy."""
    rng = np.random.default_rng(7)
    tables = [rng.normal(size=(120, 120))[:, rng.integers(0, 60, 120)] for _ in range(2)]
    hub = rng.normal(size=(120, 120))
    problem = Problem(
        tuple(Variable(str(index), rng.normal(size=120)) for index in range(3)),
        (Pair(0, 1, tables[0]), Pair(0, 2, tables[1]), Pair(1, 2, hub)),
    )
    own = [variable.costs for variable in problem.variables]
    cube = own[0][:, None, None] + own[1][:, None] + own[2] + tables[0][:, :, None] + tables[1][:, None, :] + hub
    answer = solve(problem)
    answer.check(problem)
    assert same(answer.objective, float(cube.min()))
    marginals = min_marginals(problem).best
    for axes, best in zip([(1, 2), (0, 2), (0, 1)], marginals, strict=True):
        assert np.allclose(best, cube.min(axis=axes), rtol=0, atol=1e-12)


def test_what_is_too_large_is_refused_before_it_is_begun() -> None:
    rng = np.random.default_rng(1)
    clique = written(rng, [30] * 8, [(one, two) for two in range(8) for one in range(two)])
    assert not order_of(clique).fits
    with pytest.raises(ProblemTooLarge, match="elimination"):
        solve(clique)
    with pytest.raises(ProblemTooLarge, match="brute force"):
        brute.solve(clique)


def test_a_graph_of_width_two_is_eliminated_at_width_two() -> None:
    """A ladder with a hub at every second rung: no table has more than two variables."""
    edges = [(2 * rung, 2 * rung + 1) for rung in range(30)]
    edges += [(2 * rung + side, 2 * rung + side + 2) for rung in range(29) for side in (0, 1)]
    order = order_of(written(np.random.default_rng(0), [4] * 60, edges))
    assert max(len(step.scope) for step in order.steps) == 2
    assert order.cells == 16


def test_no_time_is_said() -> None:
    problem = written(np.random.default_rng(0), [40] * 12, [(one, one + 1) for one in range(11)])
    answer = solve(problem, limit_s=0.0)
    answer.check(problem)
    assert answer.status is Status.TIMED_OUT
    started = solve(problem, limit_s=0.0, start=(0,) * 12)
    started.check(problem)
    assert started.status is Status.FEASIBLE
    assert started.states == (0,) * 12
    with pytest.raises(TimeoutError):
        min_marginals(problem, limit_s=0.0)


def test_ties_go_to_the_lowest_states() -> None:
    problem = Problem(tuple(Variable(str(index), np.zeros(3)) for index in range(3)), (Pair(0, 1, np.zeros((3, 3))),))
    assert solve(problem).states == (0, 0, 0)
    assert solve(Problem(())).status is Status.OPTIMAL
