"""Elimination orders of variables, and the size of the tables that they lead to.

Eliminating a variable makes one table over its neighbours, who are neighbours of each other from then on. The best
order is hard to find (S. Arnborg, D. Corneil, A. Proskurowski, "Complexity of finding embeddings in a k-tree", SIAM
Journal on Algebraic and Discrete Methods 8, 1987); greedy ones are good on graphs of small width, and those of models
are (two, when every value with several consumers has a hub). Both usual rules are tried, and the order with less
work is taken: the variable whose table is smallest, and the one that makes the fewest new neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from meshwright.planner.block_solver.problem import Problem

MOST_CELLS = 1 << 25
"""Numbers in one table above which a problem is refused: 256 MiB."""

MOST_WORK = 1 << 34
"""Sums over all steps above which a problem is refused: 20 s at 1 ns each (one core of 2020, measured 2026-11)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One variable's elimination. Must: `scope` are its neighbours at that time, ascending."""

    variable: int
    scope: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Steps, one for each variable that is not kept, and what they take."""

    steps: tuple[Step, ...]
    cells: int
    work: int

    @property
    def fits(self) -> bool:
        """Whether the tables are small enough to be written down."""
        return self.cells <= MOST_CELLS and self.work <= MOST_WORK


Score = Callable[[int, "dict[int, set[int]]"], tuple[int, ...]]


def order_of(problem: Problem, keep: Iterable[int] = ()) -> Order:
    """A good order in which to eliminate all variables but those to keep."""
    sizes = tuple(len(variable.costs) for variable in problem.variables)
    return _order(sizes, tuple((pair.first, pair.second) for pair in problem.pairs), frozenset(keep))


@lru_cache(maxsize=64)
def _order(sizes: tuple[int, ...], pairs: tuple[tuple[int, int], ...], kept: frozenset[int]) -> Order:
    """The order of every problem of these sizes whose pairs are these, made once: costs do not matter to it."""

    def table(variable: int, near: dict[int, set[int]]) -> tuple[int, ...]:
        return (sizes[variable] * math.prod(sizes[one] for one in near[variable]), variable)

    def fill(variable: int, near: dict[int, set[int]]) -> tuple[int, ...]:
        around = near[variable]
        missing = sum(len(around) - 1 - len(around & near[one]) for one in around)
        return (missing, *table(variable, near))

    orders = [_greedy(sizes, pairs, kept, score) for score in (table, fill)]
    return min(orders, key=lambda order: (order.work, order.cells))


def _greedy(sizes: tuple[int, ...], pairs: tuple[tuple[int, int], ...], kept: frozenset[int], score: Score) -> Order:
    near: dict[int, set[int]] = {variable: set() for variable in range(len(sizes))}
    for first, second in pairs:
        near[first].add(second)
        near[second].add(first)
    scores = {variable: score(variable, near) for variable in near if variable not in kept}
    steps: list[Step] = []
    cells, work = 1, 0
    while scores:
        variable = min(scores, key=scores.__getitem__)
        around = tuple(sorted(near.pop(variable)))
        del scores[variable]
        steps.append(Step(variable, around))
        size = math.prod(sizes[one] for one in around)
        cells, work = max(cells, size), work + size * sizes[variable]
        for one in around:
            near[one] |= set(around)
            near[one] -= {variable, one}
        # Fill depends on the neighbours' neighbours too.
        changed = set(around).union(*(near[one] for one in around)) if around else set()
        scores |= {one: score(one, near) for one in changed if one in scores}
    return Order(tuple(steps), cells, work)
