"""Integer programs as a solver in this process takes them: cuts, bounds, time that is up."""

from __future__ import annotations

import time
from math import inf

import numpy as np
import pytest

from meshwright.planner.block_solver.problem import Limit, Pair, Problem, Variable
from meshwright.planner.block_solver.programs import milp
from meshwright.planner.block_solver.programs.linear import Linear, Solution
from meshwright.planner.block_solver.programs.process import Finding

pytestmark = pytest.mark.filterwarnings("ignore:.*in PuLP 4.0:DeprecationWarning")
"""What the process of its own that a solver has otherwise keeps to itself."""


def linear(upper: float, rows: tuple[object, ...] = ()) -> Linear:
    """x whole, from 2.5; y from 0; x + 2 y is to be small, x + y at least 4.25."""
    row = (((0, -1.0), (1, -1.0)), -4.25)
    given = {"lower": (2.5, 0.0), "upper": (inf, upper), "costs": (1.0, 2.0)}
    return Linear(**given, whole=(True, False), rows=(row, *rows))  # type: ignore[arg-type]


def test_programs_of_plain_numbers() -> None:
    """At 3 the rest is dear, at 4 a quarter is left, for 4.5; where y is at most 0.2, five it must be."""
    never = (((0, 1.0),), 2.75)
    for upper, expected, bound in ((inf, (4.0, 0.25), 4.5), (0.2, (5.0, 0.0), 5.0)):
        found = milp.solved(linear(upper), inf, milp.HIGHS)
        assert found.values == pytest.approx(expected)
        assert found.proved
        assert found.bound == pytest.approx(bound - 1e-6, abs=1e-8)
    assert milp.solved(linear(inf, (never,)), inf, milp.HIGHS) == Solution(None, proved=True, bound=None)
    late = milp.solved(linear(inf), time.time() - 1, milp.HIGHS)
    assert late == Solution(None, proved=False, bound=None)


def overfull() -> Problem:
    """Two halves that together are more than there is by 1.5e-9 of it: legal to a solver, whose tolerance is 1e-6 of a
    capacity of 512, and not to us. The second best gives up the first half, for 1."""
    half = 0.5 * (1 + 1.5e-9)
    return Problem(
        (Variable("a", np.array([0.0, 1.0])), Variable("b", np.array([0.0, 2.0]))),
        (),
        (Limit("memory", 1.0, (np.array([half, 0.0]), np.array([half, 0.0]))),),
    )


def test_a_choice_that_only_the_solver_calls_legal_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not overfull().legal((0, 0))
    found = milp.find(overfull(), inf, milp.HIGHS)
    assert (found.states, found.proved) == ((1, 0), True)
    assert found.bound == pytest.approx(1.0, abs=1e-7)
    monkeypatch.setattr(milp, "CUTS", 1)
    assert milp.find(overfull(), inf, milp.HIGHS) == Finding(None, proved=False, bound=None)


def test_problems_as_programs() -> None:
    """Costs far from one, which are scaled; a pair of which two choices are not allowed, one of them the cheapest."""
    pair = Pair(
        0, 1, np.array([[0.0, 9.0, 9.0], [4.0, 0.0, 1.0]]), np.array([[False, True, True], [True, False, True]])
    )
    for unit in (1e-7, 1.0, 1e7):
        scaled = Pair(0, 1, pair.costs * unit, pair.allowed)
        variables = (Variable("a", np.array([0.0, 2.0]) * unit), Variable("b", np.array([0.0, 0.0, 2.0]) * unit))
        # (0, 1) 9, (0, 2) 11, (1, 0) 6, (1, 2) 5
        found = milp.find(Problem(variables, (scaled,)), inf, milp.HIGHS)
        assert (found.states, found.proved) == ((1, 2), True)
        # a millionth of what the solver sees, for which the largest cost lies between 512 and 1024
        assert found.bound is not None
        assert 0 < 5 - found.bound / unit < 9 * 1e-6 / 512 * 1.001
    nowhere = Pair(0, 1, np.zeros((2, 3)), np.zeros((2, 3), dtype=bool))
    assert milp.find(Problem(variables, (nowhere,)), inf, milp.HIGHS) == Finding(None, proved=True, bound=None)
    assert milp.find(overfull(), time.time() - 1, milp.HIGHS) == Finding(None, proved=False, bound=None)
