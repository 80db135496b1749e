"""Two sweeps of exact min-plus elimination over a tree of buckets.

    objective       sum_v cost_v[x_v] + sum_uv cost_uv[x_u, x_v]        (`problem`; not allowed = infinity, here only)
    upward          message_v[scope_v] = min over v of (own_v + messages of v's children)           `tables.minimised`
    optimum         the sum of the roots' messages; the states by walking back                      `Sweep.states`
    downward        outside_v[scope_v] = the best of everything that is not below v                 `outside`
    min-marginals   best_v[x_v] = min over scope_v of (own_v + children's messages + outside_v)     `min_marginals`

A bucket holds the tables that name its variable and no earlier one (`order`); its message goes to the bucket of the
first variable of its scope. The second sweep costs about as much as the first and answers for every state of every
variable what the best choice with it costs: what is above a known plan can be dropped without loss, and the rest says
why not something else.

Limits are not additive over tables: `elimination` deals with them, on top of these sweeps.

Ties. Walking back, variables are decided in reverse order of elimination, each at its lowest state among those within
1e-12 of the best. The order depends on the problem only, so the same problem gives the same states, in every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.elimination.order import MOST_CELLS, MOST_WORK, Order, order_of
from meshwright.planner.block_solver.elimination.tables import NEVER, Deadline, Table, minimised, projected
from meshwright.planner.block_solver.problem import Array, Mask, Problem

TIE = 1e-12
"""Relative: what sums in another order may differ by."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """A variable on its way out. Must: all its tables name it; its message has what is left of their scopes."""

    variable: int
    own: tuple[Table, ...]
    children: tuple[int, ...]
    message: Table


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Buckets after the upward sweep, children before parents; `rest` are tables over the variables that were kept."""

    buckets: tuple[Bucket, ...]
    roots: tuple[int, ...]
    rest: tuple[Table, ...]

    def inside(self, index: int) -> list[Table]:
        """All tables that name a bucket's variable: its own, and the messages of its children."""
        bucket = self.buckets[index]
        return [*bucket.own, *(self.buckets[child].message for child in bucket.children)]

    @property
    def optimum(self) -> float:
        """The cost of the best choice; infinity if there is none. Must: no variable was kept."""
        return math.fsum(float(self.buckets[root].message.values) for root in self.roots)

    def states(self, count: int, kept: Mapping[int, int] | None = None) -> tuple[int, ...]:
        """The states of a best choice, given those of the variables that were kept."""
        states = [0] * count
        for variable, state in (kept or {}).items():
            states[variable] = state
        for index in range(len(self.buckets) - 1, -1, -1):
            variable = self.buckets[index].variable
            costs = sum(table.at(states, variable) for table in self.inside(index))
            states[variable] = first_least(np.asarray(costs))
        return tuple(states)


@dataclass(frozen=True, slots=True, eq=False)
class MinMarginals:
    """For each state of each variable, the objective of the best choice that has it.

    `best` means nothing where `possible` is false: no allowed choice has such a state.
    """

    best: tuple[Array, ...]
    possible: tuple[Mask, ...]

    def within(self, bound: float) -> tuple[Mask, ...]:
        """The states of choices of at most this cost; dropping all others loses none of them."""
        slack = TIE * max(1.0, abs(bound))
        return tuple(mask & (costs <= bound + slack) for costs, mask in zip(self.best, self.possible, strict=True))


def first_least(costs: Array) -> int:
    """The lowest index among the least, within rounding."""
    least = float(costs.min())
    scale = max((abs(float(one)) for one in costs[np.isfinite(costs)]), default=0.0)
    return int(np.argmax(costs <= least + TIE * scale))


def min_marginals(
    problem: Problem, *, prices: Mapping[str, float] | None = None, limit_s: float | None = None
) -> MinMarginals:
    """The cost of the best choice with each state of each variable.

    Limits are not enforced; uses are paid for at the prices given (`answer.priced`), none if none. `TimeoutError` when
    time is up.
    """
    deadline = Deadline.after(limit_s)
    bare = priced(problem, prices or {})
    sweep = swept(bare, checked(order_of(bare)), deadline=deadline)
    return marginals_of(sweep, outside(sweep, deadline), deadline)


def checked(order: Order) -> Order:
    """The order, if its tables are small enough. Raises `ProblemTooLarge`."""
    if not order.fits:
        raise ProblemTooLarge(
            place="elimination",
            cause=f"a table of {order.cells} numbers, {order.work} sums; at most {MOST_CELLS} and {MOST_WORK}",
            fix="solve it as an integer program, or with fewer states",
        )
    return order


def own_tables(problem: Problem) -> list[Table]:
    """The problem's costs as tables; what is not allowed is infinite."""
    tables = [Table((index,), variable.costs) for index, variable in enumerate(problem.variables)]
    for pair in problem.pairs:
        costs = pair.costs if pair.allowed is None else np.where(pair.allowed, pair.costs, np.inf)
        tables.append(Table((pair.first, pair.second), costs))
    return tables


def swept(problem: Problem, order: Order, *, deadline: Deadline = NEVER) -> Sweep:
    """The upward sweep. Limits play no part."""
    place = {step.variable: index for index, step in enumerate(order.steps)}
    waiting: list[list[Table]] = [[] for _ in order.steps]
    children: list[list[int]] = [[] for _ in order.steps]
    rest: list[Table] = []
    roots: list[int] = []
    for table in own_tables(problem):
        home = min((place[one] for one in table.scope if one in place), default=None)
        (rest if home is None else waiting[home]).append(table)
    buckets: list[Bucket] = []
    for index, step in enumerate(order.steps):
        deadline.check()
        said = [buckets[child].message for child in children[index]]
        message = minimised([*waiting[index], *said], step.variable, deadline)
        buckets.append(Bucket(step.variable, tuple(waiting[index]), tuple(children[index]), message))
        home = min((place[one] for one in message.scope if one in place), default=None)
        if home is not None:
            children[home].append(index)
            continue
        roots.append(index)
        rest.append(message)
    return Sweep(tuple(buckets), tuple(roots), tuple(rest))


def outside(sweep: Sweep, deadline: Deadline = NEVER) -> tuple[tuple[Table, ...], ...]:
    """The downward sweep: for each bucket, tables over its scope whose sum is the best of all that is not below it."""
    above: list[tuple[Table, ...]] = [() for _ in sweep.buckets]
    for root in sweep.roots:
        others = [sweep.buckets[other].message for other in sweep.roots if other != root]
        above[root] = tuple(others)
    for index in range(len(sweep.buckets) - 1, -1, -1):
        bucket = sweep.buckets[index]
        for child in bucket.children:
            deadline.check()
            siblings = [sweep.buckets[other].message for other in bucket.children if other != child]
            scope = frozenset(sweep.buckets[child].message.scope)
            above[child] = tuple(projected([*bucket.own, *siblings, *above[index]], scope, deadline))
    return tuple(above)


def marginals_of(sweep: Sweep, above: tuple[tuple[Table, ...], ...], deadline: Deadline = NEVER) -> MinMarginals:
    """The min-marginals of every variable, from both sweeps."""
    best: list[Array] = [np.empty(0)] * len(sweep.buckets)
    for index, bucket in enumerate(sweep.buckets):
        tables = projected([*sweep.inside(index), *above[index]], frozenset({bucket.variable}), deadline)
        best[bucket.variable] = np.asarray(sum(table.values for table in tables))
    possible = tuple(np.isfinite(costs) for costs in best)
    finite = tuple(np.where(mask, costs, 0.0) for costs, mask in zip(best, possible, strict=True))
    return MinMarginals(finite, possible)
