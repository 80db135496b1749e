"""Sums of tables at the best state of a variable, in pieces of any size, against all choices written out."""

from __future__ import annotations

from itertools import product
from math import inf, prod
from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.planner.block_solver.elimination import tables
from meshwright.planner.block_solver.elimination.tables import Deadline, Table, minimised, projected, scope_of

SIZES = {0: 5, 1: 3, 2: 4, 3: 2, 4: 6}
"""States of five variables."""


def table(draw: Random, *scope: int, kinds: int = 0) -> Table:
    """Costs at random, of which a twentieth is never; `kinds`: of so many rows on the last axis, that come again."""
    shape = tuple(SIZES[one] for one in scope)
    costs = [draw.random() if draw.random() > 0.05 else inf for _ in range(prod(shape))]
    values = np.array(costs).reshape(shape)
    if kinds:
        values = values[..., np.arange(shape[-1]) % kinds]
    return Table(scope, values)


def brute(found: list[Table], scope: tuple[int, ...]) -> Any:
    """The least over all variables that are not in the scope, choice by choice."""
    every = sorted({one for own in found for one in own.scope})
    out = np.full(tuple(SIZES[one] for one in scope), inf)
    for states in product(*(range(SIZES[one]) for one in every)):
        at = dict(zip(every, states, strict=True))
        cost = sum(float(own.values[tuple(at[one] for one in own.scope)]) for own in found)
        where = tuple(at[one] for one in scope)
        out[where] = min(out[where], cost)
    return out


SCOPES: list[list[tuple[int, ...]]] = [
    [(0,)],
    [(0,), (0,), (0, 1)],
    [(0, 4), (0,)],
    [(0, 1), (0, 2)],
    [(0, 4), (0, 1), (0,)],
    [(0, 1, 2), (0, 2, 3), (0, 4)],
    [(0, 1, 4), (0, 1), (0,)],
    [(0, 1), (0, 2), (0, 3), (0, 4)],
]


@pytest.mark.parametrize("merging", [1, 1 << 14])
@pytest.mark.parametrize("piece", [1, 2, 7, 24, 1 << 15])
@pytest.mark.parametrize("scopes", SCOPES, ids=str)
def test_pieces_of_any_size_give_the_least(
    monkeypatch: pytest.MonkeyPatch, scopes: list[tuple[int, ...]], piece: int, merging: int
) -> None:
    """Whichever variable is left out, with columns that are equal and without."""
    monkeypatch.setattr(tables, "PIECE", piece)
    monkeypatch.setattr(tables, "WORTH_MERGING", merging)
    draw = Random(7)
    for kinds in (0, 2):
        for variable in (0, max(max(scope) for scope in scopes)):
            own = [table(draw, *scope, kinds=kinds) for scope in scopes if variable in scope]
            found = minimised(own, variable)
            assert found.scope == tuple(one for one in scope_of(own) if one != variable)
            assert found.values == pytest.approx(brute(own, found.scope))


def test_states_that_one_of_two_tables_cannot_tell_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least in the other stands for them: of five states the first, third and last are alike here."""
    monkeypatch.setattr(tables, "WORTH_MERGING", 1)
    rows = np.array([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]])[[0, 1, 0, 1, 0]]
    one, own = Table((0, 1), rows), Table((0,), np.array([5.0, 0.0, 0.0, 1.0, 2.0]))
    other = Table((0, 3), np.array([[9.0, 0.0], [1.0, 1.0], [3.0, 4.0], [0.0, 0.0], [1.0, 6.0]]))
    # Of the first kind at least 3 and 4, of the second 1 and 1.
    expected = [[min(1 + 3, 4 + 1), min(1 + 4, 4 + 1)], [min(2 + 3, 0 + 1), min(2 + 4, 0 + 1)], [2, 2]]
    assert minimised([one, other, own], 0).values.tolist() == expected


@pytest.mark.parametrize("onto", [(), (0,), (1, 3), (0, 1, 2, 3, 4)])
def test_tables_over_fewer_variables_have_the_same_best(onto: tuple[int, ...]) -> None:
    draw = Random(3)
    own = [table(draw, 0, 1), table(draw, 1, 2), table(draw, 2, 3), table(draw, 3, 4), table(draw, 4)]
    found = projected(own, frozenset(onto))
    assert all(set(one.scope) <= set(onto) for one in found)
    for states in product(*(range(SIZES[one]) for one in onto)):
        at = dict(zip(onto, states, strict=True))
        total = sum(float(one.values[tuple(at[variable] for variable in one.scope)]) for one in found)
        assert total == pytest.approx(float(brute(own, onto)[states]))


def test_the_costs_of_one_variable() -> None:
    own = Table((1, 3), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert own.at({1: 2, 3: 0}, 3).tolist() == [5, 6]  # type: ignore[arg-type]
    assert own.at({1: 0, 3: 1}, 1).tolist() == [2, 4, 6]  # type: ignore[arg-type]


def test_a_deadline_that_has_passed_is_told() -> None:
    """Between pieces; without a limit there is none."""
    Deadline.after(None).check()
    Deadline.after(1e6).check()
    with pytest.raises(TimeoutError):
        Deadline.after(-1.0).check()


def test_large_sums_watch_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PIECE", 4)
    own = [table(Random(1), 0, 1), table(Random(2), 0, 2)]
    with pytest.raises(TimeoutError):
        minimised(own, 0, Deadline.after(-1.0))
