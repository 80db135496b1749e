"""Placement: the rank of the cluster for every place of a plan.

    Decisions, Cluster -> Decisions, the same but for the ranks of their stages

A template puts stage s on the ranks s n .. (s + 1) n, tensor parallelism innermost. Where hosts, NICs and links are not
all alike another order may be faster; nothing is assumed of which axis belongs where. Every assignment that is tried is
lowered and priced by the evaluator, and the answer is the best of them, never worse than the plan that came in:

1. *Orders.* The places of a plan are a box: groups of ranks x mesh axes. Some factor of every dimension, together a
   host's devices, goes inside the hosts; what is left goes over the hosts in every order of the dimensions, with the
   pools in every order. Plans whose groups have different meshes keep each group together, and the groups are ordered.
2. *Exchanges.* From the best of these, blocks of ranks are exchanged between units that differ (`Symmetry`), also for
   blocks that the plan leaves idle, until no exchange helps. Where there are no more than `FEW` arrangements of blocks
   all of them are tried, so that small clusters are solved exactly over them.

Of assignments that differ only by exchanging what is alike one is priced. What ranks the assignments is first whether
the plan fits (the bytes that its stages lack), then its step time, then the seconds of all stages together, so that of
equal steps the one with less work wins. Everything is tried in a fixed order, and the number of prices is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice, permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from meshwright.cost_models.prediction import Prediction, Worth
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import RanksMissing
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.placement.symmetry import Assignment, Symmetry

MOST_PRICED = 400
"""Assignments that are priced for one plan, unless told otherwise: about a second."""

FEW = 120
"""Arrangements of blocks that are all tried: those of five different hosts."""

MOST_SINGLE = 16
"""Ranks of a plan that are exchanged one by one where devices are measured; more are exchanged by blocks only."""

MOST_SHAPES = 1
"""Shapes from which blocks are exchanged, beside that of the plan that came in."""

MOST_WAYS = 8
"""Ways to give kinds of devices to groups that `placements` answers."""

MOST_POOL_ORDERS = 24
MOST_GROUP_ORDERS = 24
"""Orders of pools, and of groups with different meshes: all of them up to four."""


_Way = tuple[tuple[str, ...], ...]
"""For every group the devices that its ranks are."""


def assignment_of(decisions: Decisions) -> Assignment:
    """The ranks of a plan, group by group."""
    return tuple(rank for group in decisions.groups for rank in group)


def on_ranks(decisions: Decisions, assignment: Sequence[int]) -> Decisions:
    """The plan with its places on these ranks, group by group."""
    sizes = [len(group) for group in decisions.groups]
    if sum(sizes) != len(assignment):
        raise RanksMissing(
            place="placement",
            cause=f"{len(assignment)} ranks for a plan of {sum(sizes)}",
            fix="give every place of the plan one rank",
        )
    starts = np.cumsum([0, *sizes]).tolist()
    groups = {
        group: _one_of_equals(tuple(assignment[start:end]))
        for group, start, end in zip(decisions.groups, starts[:-1], starts[1:], strict=True)
    }
    stages = tuple(replace(stage, ranks=groups[stage.ranks]) for stage in decisions.stages)
    return replace(decisions, stages=stages)


@lru_cache(maxsize=4096)
def _one_of_equals(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """One object for equal groups: what is known of a group is remembered by identity."""
    return ranks


@dataclass(frozen=True, slots=True)
class Placement:
    """An improvement: the plan on the ranks where it is fastest, as far as `limit` prices go.

    - `offered` are ranks that it may be put on beside those that it has; the first are taken up to the number that it
      needs.
    """

    offered: tuple[tuple[int, ...], ...] = ()
    limit: int = MOST_PRICED

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return bench.cluster.ranks > 1

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        """The best placement, and behind it the best of every other way to give kinds of devices to groups: which of
        those is fastest may change when layers are shared out by speed. Those whose groups keep to one kind come
        first."""
        search = _Search(plan, bench, self.limit)
        held = [sorted(search.best), *(sorted(_first(ranks, len(search.best))) for ranks in self.offered)]
        for ranks in dict.fromkeys(map(tuple, held)):
            for assignment in _ordered(plan.decisions, search.symmetry, ranks):
                search.consider(assignment)
        search.exchange()
        others = sorted(
            (_straddling(pools), at, assignment, prediction)
            for pools, (at, assignment, prediction) in search.ways.items()
            if assignment != search.best
        )
        found = [
            (search.best, search.prediction),
            *((assignment, prediction) for _, _, assignment, prediction in others),
        ]
        for assignment, prediction in found[:MOST_WAYS]:
            yield replace(plan, decisions=on_ranks(plan.decisions, assignment), prediction=prediction)


def _straddling(way: _Way) -> int:
    return sum(len(devices) > 1 for devices in way)


def _first(ranks: Sequence[int], needed: int) -> Sequence[int]:
    if len(set(ranks)) < needed:
        raise RanksMissing(
            place="placement", cause=f"{len(set(ranks))} ranks for a plan of {needed}", fix=f"offer at least {needed}"
        )
    return ranks[:needed]


class _Search:
    """The assignments tried so far, and the best of them."""

    def __init__(self, plan: Candidate, bench: Bench, limit: int) -> None:
        self.decisions, self.bench, self.limit = plan.decisions, bench, limit
        self.fold = bench.fold(plan)
        self.symmetry = Symmetry(bench.cluster)
        self.matrix = bench.cluster.matrix
        self.prediction, self.worth = plan.prediction, plan.worth
        self.priced = 1
        self.best = self.symmetry.canonical(assignment_of(plan.decisions))
        self.seen = {self.best: self.worth}
        self.ways: dict[_Way, tuple[Worth, Assignment, Prediction]] = {}
        """The best assignment of every way to give kinds of devices to groups."""
        self._note(self.best, self.worth, self.prediction)

    def consider(self, assignment: Sequence[int]) -> Worth | None:
        """The worth of an assignment, remembered or priced now; None if no price is left."""
        canonical = self.symmetry.canonical(assignment)
        if canonical in self.seen:
            return self.seen[canonical]
        if self.priced >= self.limit:
            return None
        self.priced += 1
        prediction = self.bench.judged(on_ranks(self.decisions, canonical), self.fold)
        found = self.seen[canonical] = prediction.worth
        self._note(canonical, found, prediction)
        if found < self.worth:
            self.best, self.prediction, self.worth = canonical, prediction, found
        return found

    def _note(self, assignment: Assignment, found: Worth, prediction: Prediction) -> None:
        way, start = [], 0
        for group in self.decisions.groups:
            held = assignment[start : start + len(group)]
            way.append(tuple(sorted({self.symmetry.device_of(rank) for rank in held})))
            start += len(group)
        if tuple(way) not in self.ways or found < self.ways[tuple(way)][0]:
            self.ways[tuple(way)] = found, assignment, prediction

    def exchange(self) -> None:
        """Exchange blocks between units that differ, as long as that helps; then, where devices do, single ranks."""
        self._exchange(self.symmetry.blocks(self.symmetry.block))
        if self.symmetry.by_device and len(self.best) <= MOST_SINGLE:
            self._exchange(self.symmetry.blocks(1))

    def _exchange(self, blocks: Sequence[tuple[int, ...]]) -> None:
        kinds = [self.symmetry.kind(block[0]) for block in blocks]
        if self.symmetry.by_device:
            kinds = [block[:1] for block in blocks]
        if len(set(kinds)) == 1:
            return
        few = _arrangements(kinds) <= FEW
        for start in self._starts():
            if few:
                self._try_all(start, blocks, kinds)
            else:
                self._climb(start, blocks, kinds)

    def _starts(self) -> list[Assignment]:
        """The best assignment of each shape (assignments that are equal once units count as alike), the shape that came
        in first."""
        shapes: dict[Assignment, Assignment] = {}
        first = self.symmetry.shape(assignment_of(self.decisions))
        for assignment in sorted(self.seen, key=lambda one: (self.seen[one], one)):
            shapes.setdefault(self.symmetry.shape(assignment), assignment)
        others = [assignment for shape, assignment in shapes.items() if shape != first]
        return [shapes[first], *others[:MOST_SHAPES]]

    def _try_all(self, start: Assignment, blocks: Sequence[tuple[int, ...]], kinds: Sequence[tuple[int, ...]]) -> None:
        for order in _different(Counter(kinds)):
            seats = {kind: [block for block, own in zip(blocks, kinds, strict=True) if own == kind] for kind in order}
            there = _flat([seats[kind].pop(0) for kind in order])
            self.consider(_exchanged(start, dict(zip(_flat(blocks), there, strict=True))))

    def _climb(self, start: Assignment, blocks: Sequence[tuple[int, ...]], kinds: Sequence[tuple[int, ...]]) -> None:
        slow = [self._slowest_link(block) for block in blocks]
        order = sorted(range(len(blocks)), key=lambda index: (slow[index], index))
        at, better = self.seen[start], True
        while better:
            better = False
            for one, other in combinations(order, 2):
                if kinds[one] == kinds[other]:
                    continue
                there = dict(zip(blocks[one] + blocks[other], blocks[other] + blocks[one], strict=True))
                moved = _exchanged(start, there)
                found = self.consider(moved)
                if found is None:
                    return
                if found < at:
                    start, at, better = moved, found, True

    def _slowest_link(self, block: Sequence[int]) -> float:
        """The slowest measured link of a block; the block with the slowest is exchanged first."""
        if self.matrix is None:
            return 0.0
        row = block[0] if self.symmetry.by_device else self.symmetry.unit_of(block[0])
        if row >= len(self.matrix.rows):
            return 0.0
        return min((rate for at, rate in enumerate(self.matrix.rows[row]) if at != row), default=0.0)


def _arrangements(kinds: Sequence[tuple[int, ...]]) -> int:
    """The number of ways to put different blocks on units of these kinds."""
    return factorial(len(kinds)) // prod(factorial(count) for count in Counter(kinds).values())


def _different(kinds: Counter[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The distinct orders of kinds with these counts."""
    if not kinds:
        yield ()
    for kind in sorted(kinds):
        for rest in _different(kinds - Counter([kind])):
            yield kind, *rest


def _exchanged(assignment: Sequence[int], there: dict[int, int]) -> Assignment:
    return tuple(there.get(rank, rank) for rank in assignment)


def _flat(blocks: Iterable[Sequence[int]]) -> Iterator[int]:
    return (rank for block in blocks for rank in block)


# Orders --------------------------------------------------------------------------------------------------------------


def _ordered(decisions: Decisions, symmetry: Symmetry, ranks: Sequence[int]) -> Iterator[Assignment]:
    """Assignments to these ranks, by every order of places that `_places` yields."""
    pools = list(dict.fromkeys(map(symmetry.pool_of, ranks)))
    by_pool = {pool: [rank for rank in ranks if symmetry.pool_of(rank) == pool] for pool in pools}
    for places in _places(decisions, symmetry, several=len(pools) > 1):
        for order in islice(permutations(pools), MOST_POOL_ORDERS):
            found = np.empty(len(ranks), dtype=np.int64)
            found[places] = [rank for pool in order for rank in by_pool[pool]]
            yield tuple(found.tolist())


def _places(decisions: Decisions, symmetry: Symmetry, *, several: bool) -> Iterator[NDArray[np.int64]]:
    """The places of a plan in the order in which they take ranks."""
    groups = decisions.groups
    meshes = {stage.ranks: stage.mesh for stage in decisions.stages}
    if len(set(meshes.values())) > 1:
        yield from _whole_groups([len(group) for group in groups])
        return
    mesh = meshes[groups[0]]
    sizes = (len(groups), *(axis.size for axis in mesh.axes))
    box = np.arange(prod(sizes), dtype=np.int64)
    all_orders = several or symmetry.measured
    for inner in _inside(sizes, symmetry.block):
        outer = [size // part for size, part in zip(sizes, inner, strict=True)]
        halves = box.reshape([part for pair in zip(outer, inner, strict=True) for part in pair])
        insides = [2 * dim + 1 for dim in range(len(sizes))]
        moved = [2 * dim for dim, size in enumerate(outer) if size > 1]
        fixed = [2 * dim for dim, size in enumerate(outer) if size == 1]
        for over in permutations(moved) if all_orders else [tuple(moved)]:
            for within in _within(insides, inner) if symmetry.nested else [insides]:
                yield halves.transpose([*fixed, *over, *within]).reshape(-1)


def _within(dims: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Orders inside a unit; dimensions of one place stay where they are."""
    moved = [dim for dim, size in zip(dims, sizes, strict=True) if size > 1]
    for order in permutations(moved):
        yield [dim for dim in dims if dim not in moved] + list(order)


def _inside(sizes: Sequence[int], block: int) -> list[tuple[int, ...]]:
    """Factors of the dimensions that together fill a block, or as much of one as possible; later dimensions first."""
    fits = [size for size in range(block, 0, -1) if block % size == 0]
    divisors = [[part for part in range(1, size + 1) if size % part == 0 and part <= block] for size in sizes]
    found = [parts for parts in product(*divisors) if block % prod(parts) == 0]
    most = next(size for size in fits if any(prod(parts) == size for parts in found))
    return sorted((parts for parts in found if prod(parts) == most), key=lambda parts: parts[::-1], reverse=True)


def _whole_groups(sizes: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """The groups one after another, in every order."""
    starts = np.cumsum([0, *sizes])
    for order in islice(permutations(range(len(sizes))), MOST_GROUP_ORDERS):
        yield np.concatenate([np.arange(starts[group], starts[group + 1]) for group in order])
