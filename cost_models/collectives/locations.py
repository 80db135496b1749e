"""Locations of a cluster's ranks, as arrays: `topology` asks about thousands of groups at once.

`Cluster.link` answers for one pair, with words and provenance; here the same places and rates are plain numbers, one
entry per rank, made once for every cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from meshwright.cost_models.collectives.facts import facts
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.parts import BYTES_PER_S_OF_GBPS, TIERS, Pool, Tier
from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.ir.same import Same

Ints = NDArray[np.int64]

MESHED = ("xgmi",)
"""Scale-up links that lead from device to device instead of through a switch
(AMD Instinct MI300X data sheet, 2023-12)."""


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """The pool, unit, island and host of every rank of a cluster; ids rise with the rank."""

    pool: Ints
    unit: Ints
    island: Ints
    host: Ints
    pools: tuple[Wires, ...]
    matrix: NDArray[np.float64] | None
    by_host: bool


@dataclass(frozen=True, slots=True)
class Wires:
    """The link rates of one pool, as floats."""

    island: float
    island_size: int
    island_kind: str
    host: float
    host_kind: str
    port: float
    total: float
    """Of a host; of all hosts of an island that spans some."""
    nic_kinds: tuple[str, ...]
    device: str
    """Its name; of a user's own, what it is like."""
    quantities: tuple[Quantity, ...]


@lru_cache(maxsize=64)
def locations_of(keyed: Same[Cluster]) -> Locations:
    cluster = keyed.of
    pools, units, islands, hosts = [], [], [], []
    first_host = first_unit = first_island = 0
    for index, pool in enumerate(cluster.pools):
        slot = np.tile(np.arange(pool.gpus_per_host), pool.hosts)
        host = np.repeat(np.arange(pool.hosts), pool.gpus_per_host)
        unit = host // pool.hosts_per_island
        if pool.device.island is None:
            island = np.arange(pool.ranks)
        elif pool.hosts_per_island > 1:
            island = unit
        else:
            size = pool.device.island.devices
            island = host * -(-pool.gpus_per_host // size) + slot // size
        pools.append(np.full(pool.ranks, index))
        hosts.append(host + first_host)
        units.append(unit + first_unit)
        islands.append(island + first_island)
        first_host += pool.hosts
        first_unit = int(units[-1][-1]) + 1
        first_island = int(islands[-1][-1]) + 1
    matrix = None if cluster.matrix is None else np.asarray(cluster.matrix.rows, dtype=np.float64)
    if matrix is not None:
        matrix = np.minimum(matrix, matrix.T) * BYTES_PER_S_OF_GBPS
    return Locations(
        pool=np.concatenate(pools),
        unit=np.concatenate(units),
        island=np.concatenate(islands),
        host=np.concatenate(hosts),
        pools=tuple(map(_wires, cluster.pools)),
        matrix=matrix,
        by_host=matrix is not None and len(matrix) == cluster.hosts,
    )


def _wires(pool: Pool) -> Wires:
    island = pool.device.island
    host = pool.host_gbps * BYTES_PER_S_OF_GBPS
    quantities = [pool.device.host_link.bandwidth, *(nic.rate for nic in pool.adapters)]
    return Wires(
        island=island.bandwidth.value if island else float("inf"),
        island_size=min(island.devices, pool.gpus_per_host * pool.hosts_per_island) if island else 1,
        island_kind=island.kind if island else "",
        host=pool.device.host_link.bandwidth.value,
        host_kind=pool.device.host_link.kind,
        port=host / pool.ports if pool.adapters else float("inf"),
        total=host * pool.hosts_per_island if pool.adapters else float("inf"),
        nic_kinds=tuple(dict.fromkeys(nic.kind for nic in pool.adapters)),
        device=pool.device.like or pool.device.name,
        quantities=(*quantities, island.bandwidth) if island else tuple(quantities),
    )


def torus_share(name: str, devices: int) -> float:
    """The share of a chip's links on a torus that a group reaches: two on every side that wraps around, one on a
    shorter side, none on a side of one. The group is taken to lie as a compiler lays it, with sides as equal as can be.
    """
    torus = facts()["torus"].get(name)
    if torus is None:
        return 1.0
    dimensions, left, links = torus["dimensions"], devices, 0
    for open_sides in range(dimensions, 0, -1):
        side = ceil(left ** (1 / open_sides) - ROOT_SLACK)
        left = ceil(left / side)
        links += 0 if side == 1 else 2 if side >= torus["wraps_from"] else 1
    share: float = links / (2 * dimensions)
    return share


ROOT_SLACK = 1e-9
"""Roots of whole cubes come out a little above; this is far below any other distance to a whole number."""


def measured_rates(locations: Locations, group: Ints, tier: Tier) -> tuple[float, float] | None:
    """Rates from the link matrix: the slowest neighbours of the ring on this tier, and the slowest pair."""
    if locations.matrix is None or (locations.by_host and tier not in ("rail", "pools")):
        return None
    ids = locations.host[group] if locations.by_host else group
    ring = _tiers(locations, group, np.roll(group, -1)) == TIERS.index(tier)
    rates = locations.matrix[ids, np.roll(ids, -1)][ring]
    every = _tiers(locations, group[:, None], group[None, :]) == TIERS.index(tier)
    apart = every & (ids[:, None] != ids[None, :])
    if not apart.any():
        return None
    pair = float(locations.matrix[np.ix_(ids, ids)][apart].min())
    return (float(rates.min()) if rates.size else pair), pair


def _tiers(locations: Locations, one: Ints, other: Ints) -> Ints:
    """The tier between ranks, as its index in `TIERS`."""
    tier = np.full(np.broadcast(one, other).shape, TIERS.index("pools"), dtype=np.int64)
    tier[np.broadcast_to(locations.pool[one] == locations.pool[other], tier.shape)] = TIERS.index("rail")
    tier[np.broadcast_to(locations.host[one] == locations.host[other], tier.shape)] = TIERS.index("host")
    tier[np.broadcast_to(locations.island[one] == locations.island[other], tier.shape)] = TIERS.index("island")
    return tier
