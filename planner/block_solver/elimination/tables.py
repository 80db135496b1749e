"""Tables over a few variables, and the operation that eliminates one of them.

A table gives a cost for every choice of the variables in its scope. Infinity stands for what is not allowed: inside
the tables only, since it adds and compares as "never" should; nothing that leaves this folder holds one.

`minimised` is the step of bucket elimination (R. Dechter, "Bucket elimination: a unifying framework for reasoning",
Artificial Intelligence 113, 1999) in the min-plus semiring:

    out[rest] = min over v of  sum of the tables that name v

Three things make it quick. A large sum is never written down: it is made in pieces that fit a core's cache, each
reduced at once. States of the rest that the tables at hand cannot tell apart (most strategies of an operator ask the
same placement of one operand) are one column: the step is taken once for all of them, and the result copied. And of
states of v that one of two tables cannot tell apart, the least in the other table stands for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import cast

import numpy as np
import numpy.typing as npt

from meshwright.planner.block_solver.problem import Array

Index = npt.NDArray[np.intp]

PIECE = 1 << 15
"""Numbers that are summed at a time: 256 KiB, well within the second cache of any server core since 2017."""

WORTH_MERGING = 1 << 14
"""Sums below which looking for equal columns takes longer than summing them."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs over some variables. Must: an ascending scope, and one axis for each of its variables."""

    scope: tuple[int, ...]
    values: Array

    def at(self, states: Sequence[int], free: int) -> Array:
        """The costs of all states of one variable of the scope, when the others are as given."""
        where = tuple(slice(None) if one == free else states[one] for one in self.scope)
        return np.asarray(self.values[where])


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time to stop at, on the clock `time.perf_counter`."""

    at_s: float = math.inf

    @classmethod
    def after(cls, limit_s: float | None) -> Deadline:
        """The deadline so many seconds from now; None is never."""
        return cls() if limit_s is None else cls(time.perf_counter() + limit_s)

    def check(self) -> None:
        """Raise `TimeoutError` when it has passed."""
        if time.perf_counter() > self.at_s:
            raise TimeoutError


NEVER = Deadline()


def scope_of(tables: Sequence[Table]) -> tuple[int, ...]:
    """All variables that some table names."""
    return tuple(sorted({one for table in tables for one in table.scope}))


def minimised(tables: Sequence[Table], variable: int, deadline: Deadline = NEVER) -> Table:
    """The sum of tables that name a variable, at its best state for every choice of the others."""
    wide = _folded([table for table in tables if len(table.scope) > 1])
    scope = tuple(one for one in scope_of(wide) if one != variable)
    own = np.asarray(sum(table.values for table in tables if len(table.scope) == 1))
    if not wide:
        return Table((), np.asarray(own.min()))
    # The variable leads, then the others as in the scope of the result.
    parts = [_spread(_led(table, variable), (-1, *scope)) for table in wide]
    copies: list[tuple[int, Index]] = []
    if math.prod(np.broadcast_shapes(*(part.shape for part in parts))) >= WORTH_MERGING:
        parts, copies = _merged(parts, len(scope))
        parts, own = _grouped(parts, own)
    small = min(range(len(parts)), key=lambda index: parts[index].size)
    parts[small] = parts[small] + own.reshape(-1, *[1] * len(scope))
    values = _least(parts, np.broadcast_shapes(*(part.shape for part in parts)), deadline)
    for axis, index in copies:
        values = values.take(index, axis=axis)
    return Table(scope, values)


def projected(tables: Sequence[Table], onto: frozenset[int], deadline: Deadline = NEVER) -> list[Table]:
    """Tables over `onto` only, whose sum is that of the given ones at the best choice of all other variables.

    The variables with the smallest tables go first.
    """
    left = list(tables)
    while others := [one for one in scope_of(left) if one not in onto]:
        variable = min(others, key=lambda one: (_cells([table for table in left if one in table.scope]), one))
        touched = [table for table in left if variable in table.scope]
        left = [table for table in left if variable not in table.scope]
        left.append(minimised(touched, variable, deadline))
    return left


def _cells(tables: Sequence[Table]) -> int:
    sizes = {one: size for table in tables for one, size in zip(table.scope, table.values.shape, strict=True)}
    return math.prod(sizes.values())


def _spread(table: Table, scope: tuple[int, ...]) -> Array:
    """The table's values with an axis of length one for every variable of the scope that it lacks."""
    where = tuple(slice(None) if one in table.scope else None for one in scope)
    return np.asarray(table.values[where])


def _led(table: Table, variable: int) -> Table:
    """The table with one variable's axis in front, under the name -1, which sorts before every other."""
    others = tuple(one for one in table.scope if one != variable)
    return Table((-1, *others), np.moveaxis(table.values, table.scope.index(variable), 0))


def _folded(tables: Sequence[Table]) -> list[Table]:
    """The same sum in fewer tables: one whose scope lies within another's is added to the smallest such table."""
    wide: list[Table] = []
    for table in sorted(tables, key=lambda table: -len(table.scope)):
        homes = [index for index, home in enumerate(wide) if set(table.scope) <= set(home.scope)]
        if not homes:
            wide.append(table)
            continue
        home = min(homes, key=lambda index: (wide[index].values.size, index))
        wide[home] = Table(wide[home].scope, wide[home].values + _spread(table, wide[home].scope))
    return wide


def _merged(parts: list[Array], axes: int) -> tuple[list[Array], list[tuple[int, Index]]]:
    """The parts with equal columns kept once, and how to copy the result back: (axis of the result, index)."""
    copies: list[tuple[int, Index]] = []
    for axis in range(1, axes + 1):
        touched = [index for index, part in enumerate(parts) if part.shape[axis] > 1]
        if not touched:
            continue
        columns = [np.moveaxis(parts[index], axis, 0) for index in touched]
        kept, index = _alike(columns)
        if len(kept) < len(index):
            for touch in touched:
                parts[touch] = parts[touch].take(kept, axis=axis)
            copies.append((axis - 1, index))
    return parts, copies


def _grouped(parts: list[Array], own: Array) -> tuple[list[Array], Array]:
    """Two parts, in one of which states of the variable have equal rows, with the other's least among these."""
    if len(parts) != 2:
        return parts, own
    fewer = [_alike([part]) for part in parts]
    side = min((0, 1), key=lambda one: len(fewer[one][0]))
    kept, index = fewer[side]
    if len(kept) == len(index):
        return parts, own
    other = parts[1 - side] + own.reshape(-1, *[1] * (parts[0].ndim - 1))
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(kept)))
    other = np.minimum.reduceat(other[order], starts, axis=0)
    return [parts[side].take(kept, axis=0), other], np.zeros(len(kept))


def _alike(tables: Sequence[Array]) -> tuple[Index, Index]:
    """Rows that are equal in all tables, kept once: the first ones, and the number of its equal for every row."""
    rows = np.concatenate([table.reshape(len(table), -1) for table in tables], axis=1)
    bytes_of_row = np.dtype((np.void, rows.shape[1] * rows.itemsize))
    keys = cast("list[bytes]", np.ascontiguousarray(rows).view(bytes_of_row).ravel().tolist())
    seen: dict[bytes, int] = {}
    index = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.intp)
    kept = np.empty(len(seen), dtype=np.intp)
    kept[index[::-1]] = np.arange(len(index))[::-1]
    return kept, index


def _least(parts: list[Array], shape: tuple[int, ...], deadline: Deadline) -> Array:
    """The least sum of the parts along the leading axis."""
    if math.prod(shape) <= PIECE:
        return np.asarray(reduce(np.add, parts).min(axis=0))
    if math.prod(shape[1:]) > PIECE and shape[1] > 1:
        return _in_slabs(parts, shape, deadline)
    deadline.check()
    if math.prod(shape[1:]) > PIECE:
        inner = [part[:, 0] for part in parts]
        return _least(inner, (shape[0], *shape[2:]), deadline)[None]
    return _in_steps(parts, shape)


def _in_slabs(parts: list[Array], shape: tuple[int, ...], deadline: Deadline) -> Array:
    """The least sum, computed piece by piece along the first axis of the result."""
    out = np.empty(shape[1:])
    rows = max(1, PIECE // math.prod(shape[2:]))
    for start in range(0, shape[1], rows):
        slab = slice(start, start + rows)
        some = [part[:, slab] if part.shape[1] > 1 else part for part in parts]
        out[slab] = _least(some, (shape[0], len(out[slab]), *shape[2:]), deadline)
    return out


def _in_steps(parts: list[Array], shape: tuple[int, ...]) -> Array:
    """The least sum, computed for some states of the leading axis at a time."""
    out = np.full(shape[1:], np.inf)
    step = max(1, PIECE // max(1, math.prod(shape[1:])))
    piece = np.empty((step, *shape[1:]))
    if len(parts) == 1:
        return np.asarray(np.broadcast_to(parts[0].min(axis=0), shape[1:]))
    for start in range(0, shape[0], step):
        some = [part[start : start + step] for part in parts]
        here = np.add(some[0], some[1], out=piece[: len(some[0])])
        for part in some[2:]:
            here += part
        np.minimum(out, here.min(axis=0) if step > 1 else here[0], out=out)
    return out
