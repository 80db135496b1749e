"""Labels: sets of partial choices, none of which is worse than another in every way.

A relation lists, for states of the variables in its scope, what partial choices cost and use. Of two with equal states
one that costs and uses no less than the other can go (R. Bellman's principle, with several objectives; as in
constrained shortest paths, H. Joksch, Journal of Mathematical Analysis and Applications 14, 1966): whatever follows
sees only the states of the scope.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshwright.planner.block_solver.elimination.tables import Table
from meshwright.planner.block_solver.problem import Array, Mask

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Partial choices, a row each. Must: as many rows everywhere.

    `states` has a column for each variable of the scope, `uses` one for each limit, `origins` one for each relation
    that has been or will be joined to this one: the row there.
    """

    scope: tuple[int, ...]
    states: Index
    costs: Array
    uses: Array
    origins: Index

    def __len__(self) -> int:
        return len(self.costs)

    def rows(self, which: Index | Mask) -> Labels:
        """The labels of these rows only."""
        return Labels(self.scope, self.states[which], self.costs[which], self.uses[which], self.origins[which])


def of_variable(variable: int, costs: Array, uses: Array, origins: int) -> Labels:
    """One label per state of a variable."""
    states = np.arange(len(costs), dtype=np.intp)[:, None]
    return Labels((variable,), states, costs, uses, np.full((len(costs), origins), -1, dtype=np.intp))


def of_table(table: Table, limits: int) -> Labels:
    """One label per choice that a table allows; it uses nothing of limits."""
    states = np.argwhere(np.isfinite(table.values))
    costs = np.asarray(table.values[tuple(states.T)])
    return Labels(table.scope, states, costs, np.zeros((len(costs), limits)), np.empty((len(costs), 0), dtype=np.intp))


def joined(left: Labels, right: Labels, column: int | None, most: int) -> Iterator[Labels]:
    """All combinations that agree on the common variables, in pieces of at most about `most` rows.

    The row of `right` is noted in this column of the origins, if any.
    """
    common = [one for one in left.scope if one in right.scope]
    new = [index for index, one in enumerate(right.scope) if one not in left.scope]
    left_code, right_code = _codes(left, right, common)
    order = np.argsort(right_code, kind="stable")
    ordered = right_code[order]
    starts = np.searchsorted(ordered, left_code, side="left")
    counts = np.searchsorted(ordered, left_code, side="right") - starts
    ends = np.cumsum(counts)
    scope = (*left.scope, *(right.scope[index] for index in new))
    begin = 0
    while begin < len(left):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + most, side="right")))
        count = counts[begin:end]
        mine = np.repeat(np.arange(begin, end), count)
        offset = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count)
        theirs = order[np.repeat(starts[begin:end], count) + offset]
        origins = left.origins[mine]
        if column is not None:
            origins[:, column] = theirs
        yield Labels(
            scope,
            np.concatenate([left.states[mine], right.states[theirs][:, new]], axis=1),
            left.costs[mine] + right.costs[theirs],
            left.uses[mine] + right.uses[theirs],
            origins,
        )
        begin = end


def concatenated(pieces: Sequence[Labels]) -> Labels:
    """Rows of one scope, put together."""
    return Labels(
        pieces[0].scope,
        np.concatenate([one.states for one in pieces]),
        np.concatenate([one.costs for one in pieces]),
        np.concatenate([one.uses for one in pieces]),
        np.concatenate([one.origins for one in pieces]),
    )


def onto(labels: Labels, scope: tuple[int, ...]) -> Labels:
    """The labels with the states of fewer variables."""
    columns = [labels.scope.index(one) for one in scope]
    return Labels(scope, labels.states[:, columns], labels.costs, labels.uses, labels.origins)


def undominated(labels: Labels, cost_grain: float, use_grain: Array) -> Labels:
    """The labels without rows that another of the same states matches or beats in cost and in every use.

    What differs by less than a grain is equal; the first of equals stays. Rows come out by states, then cost.
    """
    if len(labels) < 2:
        return labels
    costs = np.round(labels.costs / cost_grain)
    uses = np.round(labels.uses / use_grain)
    code = _code(labels.states)
    order = np.lexsort((*uses.T[::-1], costs, code))
    group = np.cumsum(np.concatenate([[0], np.diff(code[order]) != 0]))
    uses = uses[order]
    if uses.shape[1] == 1:
        return labels.rows(order[_falling(group, uses[:, 0])])
    if not uses.shape[1]:
        return labels.rows(order[np.concatenate([[True], np.diff(group) != 0])])
    keep = np.ones(len(order), dtype=bool)
    edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    for begin, end in pairwise(edges):
        if end - begin > 1:
            keep[begin:end] = _front(uses[begin:end])
    return labels.rows(order[keep])


def looked_up(tables: Sequence[Table], labels: Labels) -> Array:
    """The sum of tables at the states of every row; their scopes lie within the labels'."""
    total = np.zeros(len(labels))
    for table in tables:
        columns = [labels.scope.index(one) for one in table.scope]
        total += table.values[tuple(labels.states[:, column] for column in columns)]
    return total


def _codes(left: Labels, right: Labels, common: Sequence[int]) -> tuple[Index, Index]:
    mine = left.states[:, [left.scope.index(one) for one in common]]
    theirs = right.states[:, [right.scope.index(one) for one in common]]
    code = _code(np.concatenate([mine, theirs]))
    return code[: len(left)], code[len(left) :]


def _code(states: Index) -> Index:
    """One number for the states of a row; in the order of the rows' states."""
    code = np.zeros(len(states), dtype=np.intp)
    for column in states.T:
        code = code * (int(column.max(initial=0)) + 1) + column
        # Numbers stay small however many variables there are.
        code = np.unique(code, return_inverse=True)[1].astype(np.intp)
    return code


def _falling(group: Index, use: Array) -> Mask:
    """Whether a use is below all before it in its group. Exact: on ranks, which do not round."""
    rank = np.unique(use, return_inverse=True)[1].astype(np.intp)
    top = int(rank.max()) + 1
    # Each group lies wholly below those before it, so that the running minimum starts anew.
    sunk = rank + (int(group[-1]) - group) * top
    least = np.minimum.accumulate(sunk)
    return np.asarray(np.concatenate([[True], sunk[1:] < least[:-1]]))


def _front(uses: Array) -> Mask:
    """Rows by rising cost that no earlier row matches or beats in every use."""
    kept: list[int] = []
    keep = np.zeros(len(uses), dtype=bool)
    for row in range(len(uses)):
        if not (uses[kept] <= uses[row]).all(axis=1).any():
            kept.append(row)
            keep[row] = True
    return keep
