"""Local search: moves along the longest path, as long as one of them helps.

What a step takes is the length of a path: actions that follow one another on a group without a wait (a *block*), then
the result that another group waited for, and so on. Only moves on that path can make it shorter, and within a block
only two kinds (as in job shops: Nowicki and Smutnicki 1996): the last action of a block, whose result the next one
waits for, goes earlier; or another action goes behind it. Weight gradients, for which nobody waits, may go behind any
later block too. The first move that helps is taken; where none does, one that leaves the step as long but ends groups
sooner. A move that does not fit in memory, or makes groups wait in a circle, is none.

Where no move helps, a few at random lead away from there, and the search begins anew (iterated local search); the best
order is kept.

Work is counted in actions that were timed, not in seconds: the answer is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from meshwright.ir.schedules import WEIGHT
from meshwright.planner.scheduling.job import Job, Lists, Ordered, fits, ordered

LEAST = 1e-9
"""Of a step: less is rounding."""

REACH = 12
"""Places by which an action goes earlier or later at most, but for weight gradients that leave a block."""


KICKS = 3
"""Moves at random that lead away from where no move helps."""

KICKED = 4
"""Places by which each of them moves an action, at most."""

TRIES = 20


@dataclass(slots=True)
class Budget:
    """The number of actions that may still be timed."""

    left: int

    def spend(self, actions: int) -> bool:
        """Take so many from the budget; false if they are not there."""
        if self.left < actions:
            return False
        self.left -= actions
        return True


def improved(job: Job, start: Ordered, budget: Budget, enough_s: float = 0.0) -> Ordered:
    """The best order that moves lead to. Must: the start fits. `enough_s`: a lower bound, at which to stop."""
    best, seen = start, {start.lists}
    while best.step_s > enough_s * (1 + LEAST):
        step = _step(job, best, budget, seen)
        if step is None:
            return best
        best = step
    return best


def shaken(job: Job, best: Ordered, budget: Budget, enough_s: float = 0.0) -> Ordered:
    """The best order that random moves and local search lead to, until the budget is spent."""
    draw = Random(job.size)
    while best.step_s > enough_s * (1 + LEAST):
        other = _kicked(job, best, draw, budget)
        if other is None:
            return best
        found = improved(job, other, budget, enough_s)
        if not _better(best, found):
            best = found
    return best


def _kicked(job: Job, best: Ordered, draw: Random, budget: Budget) -> Ordered | None:
    """The order with some actions elsewhere; None where the budget is spent, or no move is legal."""
    for _ in range(TRIES):
        lists = best.lists
        for _ in range(KICKS):
            lists = _moved(job, lists, draw)
        if lists == best.lists:
            continue
        if not budget.spend(job.size):
            return None
        found = ordered(job, lists)
        if found is not None:
            return found
    return None


def _moved(job: Job, lists: Lists, draw: Random) -> Lists:
    """The lists with one action elsewhere, if that is legal."""
    group = draw.randrange(len(lists))
    codes = list(lists[group])
    source = draw.randrange(len(codes))
    target = source + draw.choice((-1, 1)) * (1 + draw.randrange(KICKED))
    if not 0 <= target < len(codes):
        return lists
    codes.insert(target, codes.pop(source))
    if not _in_order(job, codes, source, target) or not fits(job, group, codes):
        return lists
    return (*lists[:group], tuple(codes), *lists[group + 1 :])


def _step(job: Job, best: Ordered, budget: Budget, seen: set[Lists]) -> Ordered | None:
    """The first neighbour that is better."""
    for group, source, target in _moves(job, best):
        codes = list(best.lists[group])
        codes.insert(target, codes.pop(source))
        if not _in_order(job, codes, source, target) or not fits(job, group, codes):
            continue
        lists = (*best.lists[:group], tuple(codes), *best.lists[group + 1 :])
        if lists in seen:
            continue
        if not budget.spend(job.size):
            return None
        seen.add(lists)
        found = ordered(job, lists)
        if found is not None and _better(found, best):
            return found
    return None


def _better(one: Ordered, other: Ordered) -> bool:
    unit = LEAST * other.step_s
    if one.step_s < other.step_s - unit:
        return True
    return one.step_s <= other.step_s + unit and one.spare_s < other.spare_s - unit


def _in_order(job: Job, codes: list[int], source: int, target: int) -> bool:
    """Whether a moved action still follows its inputs on its own group, with micro-batches in order."""
    moved, period = codes[target], 4 * job.shape.depth
    return not any(
        code != moved and (code % period == moved % period or code >> 2 == moved >> 2)
        for code in codes[min(source, target) : max(source, target) + 1]
    )


def _moves(job: Job, best: Ordered) -> Iterator[tuple[int, int, int]]:
    """Moves along the longest path, from its end: group, from where, to where."""
    for group, first, last in _blocks(job, best):
        codes = best.lists[group]
        for target in range(last - 1, max(first, last - REACH) - 1, -1):
            yield group, last, target
        for source in range(last - 1, max(first, last - REACH) - 1, -1):
            yield group, source, last
        late = [at for at in range(first, last + 1) if codes[at] & 3 == WEIGHT]
        for source in late[:REACH]:
            for target in _later(codes, last):
                yield group, source, target


def _later(codes: tuple[int, ...], last: int) -> list[int]:
    """Places behind a block where a weight gradient may go: near ones, and the end."""
    end = len(codes) - 1
    return sorted({min(last + step, end) for step in (1, 2, 4, 8, 16, 32)} | {end})


def _blocks(job: Job, best: Ordered) -> list[tuple[int, int, int]]:
    """The longest path from its end: of every block its group, and the places of its first and last action in the
    group's list."""
    ran, made = best.ran, best.ran.compiled
    free = list(ran.release_s)
    places = [0] * len(free)
    last_of = [0] * len(free)
    starts, before, where = [0.0], [0], [(0, 0)]
    waits: list[bool] = [False]
    for of, after, seconds in zip(made.classes, made.after, ran.seconds, strict=True):
        group = made.group_of[of >> 2]
        there = ran.arrivals[after]
        waited = there > free[group]
        starts.append(there if waited else free[group])
        waits.append(waited)
        before.append(after if waited else last_of[group])
        where.append((group, places[group]))
        places[group] += 1
        free[group] = starts[-1] + seconds
        last_of[group] = len(starts) - 1
    begins = ran.begin_s if job.rolling else (0.0,) * len(free)
    ends = [end + after - begin for end, after, begin in zip(free, job.ending_s, begins, strict=True)]
    at = last_of[max(range(len(ends)), key=ends.__getitem__)]
    found: list[tuple[int, int, int]] = []
    while at:
        group, last = where[at]
        first = last
        while at and where[at][0] == group:
            first = where[at][1]
            waited, at = waits[at], before[at]
            if waited and where[at][0] != group:
                break
        found.append((group, first, last))
    return found
