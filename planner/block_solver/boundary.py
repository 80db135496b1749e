"""Boundary tables: the cost of a block between a state at its entry and a state at its exit.

    T[p, q]  =  least objective with x_entry = p and x_exit = q                                   `boundary_table`
    (T * U)[p, r]  =  min over q of T[p, q] + U[q, r]                                             `min_plus`
    n equal blocks in a row  =  T * T * ... * T, by squaring                                      `min_plus_power`

With free ends a block leaves its result half reduced and the next one has it for nothing; with a table the next block
pays, and the chain's optimum is that of all layers written out, as long as a boundary's own cost is told once (the
exit of one block is the entry of the next; the problem of a block has it at one of the two).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.ir.errors import ProblemMalformed
from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.elimination.order import order_of
from meshwright.planner.block_solver.elimination.sweeps import Sweep, checked, first_least, swept
from meshwright.planner.block_solver.elimination.tables import Deadline, Table, minimised, summed
from meshwright.planner.block_solver.problem import Array, Mask, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """Costs by entry state (rows) and exit state (columns); they mean nothing where not allowed (as of a `Pair`)."""

    costs: Array
    allowed: Mask

    @classmethod
    def of(cls, table: Array) -> Boundary:
        """The boundary of a table in which infinity is not allowed."""
        allowed = np.isfinite(table)
        return cls(np.where(allowed, table, 0.0), allowed)

    @property
    def table(self) -> Array:
        """The costs as a table, with infinity for what is not allowed."""
        return np.where(self.allowed, self.costs, np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A boundary table, and the states behind every entry of it."""

    boundary: Boundary
    entry: int
    exit: int
    variables: int
    sweep: Sweep

    def states(self, entry_state: int, exit_state: int) -> tuple[int, ...]:
        """The states of a best choice with this entry and exit, which must be allowed together."""
        if not self.boundary.allowed[entry_state, exit_state]:
            raise ProblemMalformed(
                place=f"boundary table, entry {entry_state}, exit {exit_state}",
                cause="no allowed choice has these two states",
                fix="ask for a pair that `allowed` has",
            )
        return self.sweep.states(self.variables, {self.entry: entry_state, self.exit: exit_state})


def boundary_table(
    problem: Problem,
    entry: int,
    exit_: int,
    *,
    prices: Mapping[str, float] | None = None,
    limit_s: float | None = None,
) -> Block:
    """The optimum for every pair of states of two different variables, by index.

    Limits are not enforced; uses are paid for at the prices given (`answer.priced`), none if none. `TimeoutError` when
    time is up.
    """
    if entry == exit_:
        raise ProblemMalformed(
            place="boundary table", cause=f"entry and exit are both {entry}", fix="give the block an exit of its own"
        )
    bare = priced(problem, prices or {})
    sweep = swept(bare, checked(order_of(bare, (entry, exit_))), deadline=Deadline.after(limit_s))
    scope = (min(entry, exit_), max(entry, exit_))
    shape = (len(problem.variables[scope[0]].costs), len(problem.variables[scope[1]].costs))
    table = summed(sweep.rest, scope, shape)
    return Block(Boundary.of(table if entry < exit_ else table.T), entry, exit_, len(problem.variables), sweep)


def min_plus(first: Boundary, second: Boundary) -> Boundary:
    """The boundary of one block after another, at the best state between them."""
    through = minimised([Table((0, 1), first.table), Table((1, 2), second.table)], 1)
    return Boundary.of(through.values)


def min_plus_power(block: Boundary, count: int) -> Boundary:
    """The boundary of a number of equal blocks in a row, at least one; by squaring, in about 2 log2(count) products."""
    if count < 1 or block.costs.shape[0] != block.costs.shape[1]:
        raise ProblemMalformed(
            place="min-plus power",
            cause=f"{count} blocks with a table of {block.costs.shape}",
            fix="repeat a block at least once, with equal states at entry and exit",
        )
    out: Boundary | None = None
    square = block
    while True:
        if count & 1:
            out = square if out is None else min_plus(out, square)
        count >>= 1
        if not count:
            return out if out is not None else square
        square = min_plus(square, square)


def chained(blocks: Sequence[Boundary], first: int, last: int) -> tuple[int, ...]:
    """The states at all boundaries of blocks in a row on the cheapest way between two states, ends included.

    Ties go to the lowest state, last boundary first. No allowed way raises `ProblemMalformed`.
    """
    costs = np.full(blocks[0].costs.shape[0], np.inf)
    costs[first] = 0.0
    reached = [costs]
    for block in blocks:
        reached.append((reached[-1][:, None] + block.table).min(axis=0))
    if not math.isfinite(reached[-1][last]):
        raise ProblemMalformed(
            place=f"chain of {len(blocks)} blocks", cause=f"no way from {first} to {last}", fix="ask for allowed ends"
        )
    states = [last]
    for block, before in zip(reversed(blocks), reversed(reached[:-1]), strict=True):
        states.append(first_least(before + block.table[:, states[-1]]))
    return tuple(reversed(states))
