"""Idle ranks: which to leave out where a plan needs fewer than the cluster has.

Seven GPUs have few divisors; a plan for six leaves one of them idle. `subsets` says which ranks to keep then: the first
so many in several orders, each with a reason. The evaluator judges between them (`placement.Placement`), and exchanges
idle ranks for others.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.planner.refine.placement.symmetry import Symmetry


def subsets(cluster: Cluster, needed: int) -> tuple[tuple[int, ...], ...]:
    """Choices of so many ranks: the fastest, those with the most memory, the best links, the largest hosts. Each keeps
    ranks of one host together as far as it can."""
    symmetry = Symmetry(cluster)
    reasons: tuple[Callable[[int], float], ...] = (
        lambda rank: max(peak.value for _, peak in cluster.device(rank).peaks),
        lambda rank: cluster.device(rank).memory.value,
        _reach(cluster, symmetry),
        lambda rank: len(symmetry.units[symmetry.unit_of(rank)].ranks),
    )
    found = []
    for reason in reasons:
        worth = [reason(unit.ranks[0]) for unit in symmetry.units]
        if symmetry.by_device:
            order = sorted(range(cluster.ranks), key=lambda rank: (-reason(rank), rank))
        else:
            units = sorted(
                range(len(symmetry.units)), key=lambda index: (-worth[index], -len(symmetry.units[index].ranks), index)
            )
            order = [rank for index in units for rank in symmetry.units[index].ranks]
        found.append(tuple(sorted(order[:needed])))
    return tuple(dict.fromkeys(found))


def _reach(cluster: Cluster, symmetry: Symmetry) -> Callable[[int], float]:
    """A rank's total rate to all others, as measured, or else by the links between pools."""
    if cluster.matrix is not None:
        rows = cluster.matrix.rows

        def measured(rank: int) -> float:
            row = rank if symmetry.by_device else symmetry.unit_of(rank)
            return sum(rate for at, rate in enumerate(rows[row]) if at != row)

        return measured
    first = [next(unit.ranks[0] for unit in symmetry.units if unit.pool == pool) for pool in range(len(cluster.pools))]

    def linked(rank: int) -> float:
        own = symmetry.pool_of(rank)
        return sum(cluster.link(rank, other).bandwidth.value for pool, other in enumerate(first) if pool != own)

    return linked
