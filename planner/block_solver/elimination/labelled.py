"""Elimination with labels in place of numbers: exact where limits bind.

The buckets are those of a sweep; a bucket's message is a relation (`labels`) instead of a table. After every join, a
partial choice is dropped if, seen through one of several lenses, it cannot end well:

    weight x cost + weights . uses + least of all that is still to come   >   the most that is of use

where the least to come, at the states of the partial choice, is exact for the lens: it stands in the tables of two
plain sweeps (`sweeps.outside`). Two lenses look at the objective, with uses paid for and without, and the most is what
the best known choice costs; one for each limit looks at its use, and the most is the capacity. Near the optimum little
survives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.elimination.dual import capacities, named, only_use, rounding
from meshwright.planner.block_solver.elimination.labels import (
    Labels,
    concatenated,
    joined,
    looked_up,
    of_table,
    of_variable,
    onto,
    undominated,
)
from meshwright.planner.block_solver.elimination.order import Order
from meshwright.planner.block_solver.elimination.sweeps import Sweep, outside, swept
from meshwright.planner.block_solver.elimination.tables import Deadline, Table, projected
from meshwright.planner.block_solver.problem import Array, Problem

PIECE = 1 << 18
"""Rows that are joined at a time: some tens of MB."""

MOST_LABELS = 1 << 19
"""Rows of one relation above which exactness is given up: some hundred MB with their copies."""

MOST_JOINED = 1 << 27
"""Rows made in all above which exactness is given up: about half a minute."""

USE_GRAIN = 1e-12
"""Of the largest use: what differs by less is equal."""

TINY = 1e-300
"""Keeps a grain above zero where all numbers are zero."""


class TooManyLabelsError(Exception):
    """Exactness would take too many labels; never leaves this folder."""


@dataclass(frozen=True, slots=True, eq=False)
class Lens:
    """A weighted sum that must stay at or below `most`, and both sweeps of it."""

    cost: float
    uses: Array
    most: float
    sweep: Sweep
    above: tuple[tuple[Table, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A factor to join: its values through every lens, and the numbers of its rows."""

    labels: Labels
    column: int | None
    seen: tuple[Table, ...]


@dataclass(slots=True)
class Run:
    """One sweep with labels, and its limits."""

    problem: Problem
    order: Order
    lenses: tuple[Lens, ...]
    deadline: Deadline
    most_labels: int
    most_joined: int
    cost_grain: float
    use_grain: Array
    made: int = 0
    messages: list[Labels] = field(default_factory=list)


def run_of(
    problem: Problem,
    order: Order,
    deadline: Deadline,
    prices: Sequence[float] = (),
    most: float = math.inf,
) -> Run:
    """A run that looks for choices up to this objective, through a lens with these prices."""
    caps = capacities(problem)
    lenses = []
    for weights in dict.fromkeys([(0.0,) * len(caps), *([tuple(prices)] if prices else [])]):
        bare = priced(problem, named(problem, weights))
        paid = math.fsum(price * cap for price, cap in zip(weights, caps, strict=True))
        lenses.append(_lens(bare, order, deadline, 1.0, np.array(weights), most + paid))
    for limit, cap in enumerate(caps):
        unit = np.eye(len(caps))[limit]
        lenses.append(_lens(only_use(problem, limit), order, deadline, 0.0, unit, cap))
    largest = [max((float(use.max()) for use in limit.uses), default=0.0) for limit in problem.limits]
    return Run(
        problem,
        order,
        tuple(lenses),
        deadline,
        most_labels=MOST_LABELS,
        most_joined=MOST_JOINED,
        cost_grain=max(rounding(problem), TINY),
        use_grain=np.maximum(np.array(largest) * USE_GRAIN, TINY),
    )


def _lens(problem: Problem, order: Order, deadline: Deadline, cost: float, uses: Array, most: float) -> Lens:
    sweep = swept(problem, order, deadline=deadline)
    return Lens(cost, uses, most, sweep, outside(sweep, deadline))


def labelled(run: Run) -> Labels:
    """All undominated choices: none is matched or beaten by another in cost and every use.

    The origins are rows of the roots' messages; `choice` reads them.
    """
    for index in range(len(run.order.steps)):
        run.messages.append(_message(run, index))
    roots = run.lenses[0].sweep.roots
    limits = len(run.problem.limits)
    origins = np.full((1, len(roots)), -1, dtype=np.intp)
    whole = Labels((), np.empty((1, 0), dtype=np.intp), np.zeros(1), np.zeros((1, limits)), origins)
    pieces = [
        Piece(run.messages[root], column, tuple(lens.sweep.buckets[root].message for lens in run.lenses))
        for column, root in enumerate(roots)
    ]
    return _all_joined(run, whole, pieces, [[] for _ in run.lenses])


def choice(run: Run, whole: Labels, row: int) -> tuple[int, ...]:
    """The states of every variable behind a row of the result."""
    buckets = run.lenses[0].sweep.buckets
    rows = dict(zip(run.lenses[0].sweep.roots, map(int, whole.origins[row]), strict=True))
    states = [0] * len(buckets)
    for index in range(len(buckets) - 1, -1, -1):
        state, *below = map(int, run.messages[index].origins[rows[index]])
        states[buckets[index].variable] = state
        rows |= dict(zip(buckets[index].children, below, strict=True))
    return tuple(states)


def _message(run: Run, index: int) -> Labels:
    limits = run.problem.limits
    buckets = [lens.sweep.buckets[index] for lens in run.lenses]
    bucket = buckets[0]
    uses = np.stack([limit.uses[bucket.variable] for limit in limits], axis=1) if limits else None
    costs = np.asarray(run.problem.variables[bucket.variable].costs, dtype=np.float64)
    # The variable's own state is noted in the first column, its children's rows in the others.
    start = of_variable(
        bucket.variable, costs, np.zeros((len(costs), 0)) if uses is None else uses, 1 + len(bucket.children)
    )
    start.origins[:, 0] = start.states[:, 0]
    pieces = [
        Piece(of_table(table, len(limits)), None, tuple(one.own[place] for one in buckets))
        for place, table in enumerate(bucket.own)
        if table.scope != (bucket.variable,)
    ]
    pieces += [
        Piece(run.messages[child], 1 + column, tuple(lens.sweep.buckets[child].message for lens in run.lenses))
        for column, child in enumerate(bucket.children)
    ]
    above = [list(lens.above[index]) for lens in run.lenses]
    whole = _all_joined(run, start, pieces, above)
    return _reduced(run, onto(whole, bucket.message.scope))


def _all_joined(run: Run, labels: Labels, pieces: list[Piece], above: list[list[Table]]) -> Labels:
    """Pieces joined one by one, smallest first; after each, what cannot end well is dropped."""
    labels = _alive(run, labels, _ahead(labels.scope, pieces, above, run.deadline))
    waiting = list(pieces)
    while waiting and len(labels):
        taken = min(waiting, key=lambda piece: (len(set(piece.labels.scope) - set(labels.scope)), len(piece.labels)))
        waiting.remove(taken)
        scope = tuple(dict.fromkeys((*labels.scope, *taken.labels.scope)))
        ahead = _ahead(scope, waiting, above, run.deadline)
        parts = []
        for part in joined(labels, taken.labels, taken.column, PIECE):
            run.deadline.check()
            run.made += len(part)
            if run.made > run.most_joined:
                raise TooManyLabelsError
            parts.append(_reduced(run, _alive(run, part, ahead)))
        labels = _reduced(run, concatenated(parts))
    return labels if len(labels) else _none(labels, pieces)


def _none(labels: Labels, pieces: list[Piece]) -> Labels:
    """A piece without rows, over the scope that rows would have had."""
    scope = tuple(dict.fromkeys((*labels.scope, *(one for piece in pieces for one in piece.labels.scope))))
    return Labels(
        scope, np.empty((0, len(scope)), dtype=np.intp), labels.costs[:0], labels.uses[:0], labels.origins[:0]
    )


def _reduced(run: Run, labels: Labels) -> Labels:
    labels = undominated(labels, run.cost_grain, run.use_grain)
    if len(labels) > run.most_labels:
        raise TooManyLabelsError
    return labels


def _ahead(
    scope: tuple[int, ...], waiting: list[Piece], above: list[list[Table]], deadline: Deadline
) -> list[list[Table]]:
    """The least that is still to come through every lens, by states of the scope."""
    inside = frozenset(scope)
    return [
        projected([*(piece.seen[index] for piece in waiting), *tables], inside, deadline)
        for index, tables in enumerate(above)
    ]


def _alive(run: Run, labels: Labels, ahead: list[list[Table]]) -> Labels:
    keep = np.ones(len(labels), dtype=bool)
    for lens, tables in zip(run.lenses, ahead, strict=True):
        total = lens.cost * labels.costs + labels.uses @ lens.uses + looked_up(tables, labels)
        # Infinity to come is never of use, whatever the most.
        keep &= np.isfinite(total) & (total <= lens.most)
    return labels.rows(keep)
