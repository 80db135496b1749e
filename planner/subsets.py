"""Which ranks to leave idle, where a plan needs fewer than the cluster has.

Seven GPUs have few divisors; six or four of them may be faster. `rank_counts` says which smaller numbers are worth a
try, `subsets` which ranks to keep then: the first so many in several orders, each with a reason. The evaluator judges
between them (`placement.placed`), and exchanges idle ranks for others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from meshwright.cost_models.cluster import Cluster
from meshwright.planner.seats import Seats

SMOOTH = (2, 3)
"""Factors that degrees are made of; the largest counts of ranks without others are offered."""

MOST_COUNTS = 4


def rank_counts(cluster: Cluster) -> tuple[int, ...]:
    """All ranks, and smaller numbers that may serve better, down to half: the largest that only `SMOOTH` divides, and
    the cluster without one of its pools."""
    total = cluster.ranks
    smooth = [count for count in range(total, 0, -1) if _rest(count) == 1][:MOST_COUNTS]
    without = [total - pool.ranks for pool in cluster.pools]
    return tuple(sorted({count for count in (total, *smooth, *without) if 2 * count >= total}, reverse=True))


def _rest(count: int) -> int:
    """What is left of a number without the factors that are usual."""

    def without(left: int, factor: int) -> int:
        while left % factor == 0:
            left //= factor
        return left

    return reduce(without, SMOOTH, count)


def subsets(cluster: Cluster, needed: int) -> tuple[tuple[int, ...], ...]:
    """So many ranks, chosen in different ways: the fastest, those with the most memory, the best links, the largest
    hosts. Each keeps ranks of one host together as far as it can."""
    seats = Seats(cluster)
    reasons: tuple[Callable[[int], float], ...] = (
        lambda rank: max(peak.value for _, peak in cluster.device(rank).peaks),
        lambda rank: cluster.device(rank).memory.value,
        _reach(cluster, seats),
        lambda rank: len(seats.units[seats.unit_of(rank)].ranks),
    )
    found = []
    for reason in reasons:
        worth = [reason(unit.ranks[0]) for unit in seats.units]
        if seats.by_device:
            order = sorted(range(cluster.ranks), key=lambda rank: (-reason(rank), rank))
        else:
            units = sorted(
                range(len(seats.units)), key=lambda index: (-worth[index], -len(seats.units[index].ranks), index)
            )
            order = [rank for index in units for rank in seats.units[index].ranks]
        found.append(tuple(sorted(order[:needed])))
    return tuple(dict.fromkeys(found))


def _reach(cluster: Cluster, seats: Seats) -> Callable[[int], float]:
    """How much a rank can send to all others, as measured, or else as the links between pools let it."""
    if cluster.matrix is not None:
        rows = cluster.matrix.rows

        def measured(rank: int) -> float:
            row = rank if seats.by_device else seats.unit_of(rank)
            return sum(rate for at, rate in enumerate(rows[row]) if at != row)

        return measured
    first = [next(unit.ranks[0] for unit in seats.units if unit.pool == pool) for pool in range(len(cluster.pools))]

    def linked(rank: int) -> float:
        own = seats.pool_of(rank)
        return sum(cluster.link(rank, other).bandwidth.value for pool, other in enumerate(first) if pool != own)

    return linked
