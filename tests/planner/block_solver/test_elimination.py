"""Elimination, min-marginals and boundary tables against every choice one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.ir.errors import ProblemMalformed, ProblemTooLarge
from meshwright.planner.block_solver import brute
from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.boundary import Boundary, boundary_table, chained, min_plus_power
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


@settings(max_examples=150)
@given(problems(limits=0), st.data())
def test_boundary_tables_are_brute_force(problem: Problem, data: st.DataObject) -> None:
    count = len(problem.variables)
    assume(count > 1)
    entry, last = data.draw(st.permutations(range(count)))[:2]
    block = boundary_table(problem, entry, last)
    for p in range(len(problem.variables[entry].costs)):
        for q in range(len(problem.variables[last].costs)):
            alike = [one for one in brute.choices(problem) if (one[entry], one[last]) == (p, q)]
            assert block.boundary.allowed[p, q] == bool(alike)
            if not alike:
                with pytest.raises(ProblemMalformed, match="no allowed choice"):
                    block.states(p, q)
                continue
            states = block.states(p, q)
            assert states in alike
            assert same(block.boundary.costs[p, q], min(map(problem.objective, alike)))
            assert same(problem.objective(states), block.boundary.costs[p, q])


def in_a_row(block: Problem, entry: int, last: int, count: int) -> Problem:
    """The block's layers written out, where the exit of one is the entry of the next.

    What both ends cost by themselves is told at each end, as the table does.
    """
    size = len(block.variables)
    variables: list[Variable] = []
    pairs: list[Pair] = []
    names: list[dict[int, int]] = []
    for layer in range(count):
        name: dict[int, int] = {}
        for index in range(size):
            if index == entry and layer:
                name[index] = names[-1][last]
                shared = variables[name[index]]
                variables[name[index]] = Variable(shared.name, shared.costs + block.variables[entry].costs)
                continue
            name[index] = len(variables)
            variables.append(Variable(f"{layer}.{index}", block.variables[index].costs))
        names.append(name)
        for pair in block.pairs:
            one, two = name[pair.first], name[pair.second]
            allowed = pair.allowed
            if one > two:
                one, two, costs, allowed = two, one, pair.costs.T, None if allowed is None else allowed.T
            else:
                costs = pair.costs
            pairs.append(Pair(one, two, costs, allowed))
    return Problem(tuple(variables), tuple(pairs))


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.4]))
def test_powers_of_the_table_are_the_layers_written_out(count: int, seed: int, forbidden: float) -> None:
    edges = [(0, 1), (1, 2), (0, 3), (2, 3), (1, 4), (3, 4)]
    block = written(np.random.default_rng(seed), [3, 4, 2, 3, 3], edges, forbidden=forbidden)
    table = boundary_table(block, 0, 4).boundary
    power = min_plus_power(table, count)
    direct = solve(in_a_row(block, 0, 4, count))
    assert power.allowed.any() == (direct.status is Status.OPTIMAL)
    if direct.status is not Status.OPTIMAL:
        return
    assert same(float(power.table.min()), direct.objective)
    first, last = map(int, np.unravel_index(int(power.table.argmin()), power.costs.shape))
    way = chained([table] * count, first, last)
    assert (way[0], way[-1], len(way)) == (first, last, count + 1)
    assert same(math.fsum(table.table[one, two] for one, two in itertools.pairwise(way)), direct.objective)


def test_powers_and_chains_that_cannot_be_are_refused() -> None:
    oblong = Boundary.of(np.zeros((2, 3)))
    with pytest.raises(ProblemMalformed, match="equal states at entry and exit"):
        min_plus_power(oblong, 2)
    with pytest.raises(ProblemMalformed, match="0 blocks"):
        min_plus_power(Boundary.of(np.zeros((2, 2))), 0)
    with pytest.raises(ProblemMalformed, match="no way from 0 to 1"):
        chained([Boundary.of(np.array([[0.0, np.inf], [0.0, 0.0]]))], 0, 1)
    with pytest.raises(ProblemMalformed, match="an exit of its own"):
        boundary_table(written(np.random.default_rng(0), [2, 2], [(0, 1)]), 1, 1)


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
    assert np.allclose(boundary_table(problem, 2, 0).boundary.costs, cube.min(axis=1).T, rtol=0, atol=1e-12)


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
