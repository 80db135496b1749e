"""The shape of a group: which wires a collective runs over, how many ranks share them, and where it is slowest.

A group along mesh axes is nested, from inside out, in *levels*; a level that joins one part only is absent:

    island   devices of one scale-up domain            part = a device
    host     islands (or single devices) of one host   part = an island
    rail     hosts of one pool; or racks, where an island spans hosts: a *unit* is either
    pools    pools

With m ranks of the group in a unit, c groups of the same axes on its NICs at once, p the rate of one port and T that of
all ports of a host (`Cluster`), a unit sends for one group at

    m ranks at once    min(m p, T / c)          (a ring over all NICs that the group covers; m = 1: one NIC's share)
    one rank alone     min(p, T / c)            (a shift around the group, a pipeline's send)

and between pools with a link of total rate L, and C groups crossing it, at no more than L / C. Inside an island every
device has its own wires, so groups there do not meet. Where scale-up wires lead straight from device to device (xGMI)
a group of n out of N can use n - 1 of the N - 1 wires that a device has.

Rings go host by host in order of the ranks, as a library orders them whatever the mesh says; with a *link matrix* the
slowest neighbours of that ring count, and the slowest pair for an exchange of all with all. A group that crosses pools
speaks the transport that all of them have, the slower kind. Groups of the same axes may differ (ranks that straddle
hosts, two pools, a matrix); all start together and the step waits for the slowest: the one with the narrowest ring, then
with the most units, is returned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.cost_models.cluster import BYTES_PER_S_OF_GBPS, TIERS, Cluster, Pool, Tier, route
from meshwright.cost_models.hardware import latency_of
from meshwright.cost_models.quantity import Kind, Quantity, weakest
from meshwright.ir.errors import BadGroup
from meshwright.ir.mesh import Mesh

MESHED = ("xgmi",)
"""Scale-up links that lead from device to device instead of through a switch (AMD Instinct MI300X data sheet, 2023-12)."""

TRANSPORTS = ("infiniband", "roce", "ethernet")
"""From the most capable on; a group that has several falls back to the last of them."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One nesting of a group.

    - It joins at least two parts, each of at least one rank; rates are positive and in one direction.
    - `part_bytes_per_s`: what a part has while all its `members` of the group send, and the other groups too.
      `rank_bytes_per_s`: the same while one member sends. `pair_bytes_per_s`: the slowest pair of parts.
    """

    tier: Tier
    kind: str
    parts: int
    members: int
    part_bytes_per_s: float
    rank_bytes_per_s: float
    pair_bytes_per_s: float
    latency_s: float
    groups: int = 1

    def __post_init__(self) -> None:
        rates = (self.part_bytes_per_s, self.rank_bytes_per_s, self.pair_bytes_per_s)
        if self.tier not in TIERS or self.parts < 2 or self.members < 1 or min(rates) <= 0 or self.latency_s < 0:
            raise BadGroup(place="a level of a group", cause=repr(self), fix="give two parts or more, and positive rates")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A group as a collective sees it; equal shapes cost the same.

    - Without levels it is one rank. `units` is how many hosts (racks, where islands span hosts) it covers.
    - `devices` names what it runs on, sorted; `weakest` is the provenance of the weakest rate.
    """

    ranks: int
    units: int
    levels: tuple[Level, ...]
    devices: tuple[str, ...]
    weakest: Kind = "datasheet"
    digest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.ranks < 1 or (self.ranks > 1) != bool(self.levels) or not 1 <= self.units <= self.ranks:
            raise BadGroup(
                place="a group",
                cause=f"{self.ranks} ranks in {self.units} units, {len(self.levels)} levels",
                fix="give a level for every nesting of two parts or more",
            )
        # Prices are kept by shape; hashing all levels anew would cost more than the price.
        object.__setattr__(self, "digest", hash((self.ranks, self.units, self.levels, self.devices, self.weakest)))

    def __hash__(self) -> int:
        return self.digest

    def __reduce__(self) -> tuple[Callable[..., GroupShape], tuple[object, ...]]:
        """Hashes differ between processes: it is built anew."""
        return _rebuilt, (self.ranks, self.units, self.levels, self.devices, self.weakest)

    @property
    def crosses(self) -> bool:
        """Whether it leaves the host (or rack)."""
        return self.units > 1

    @property
    def ring_bytes_per_s(self) -> float:
        """What the narrowest level lets through of a ring, before any library's losses."""
        return min((level.part_bytes_per_s for level in self.levels), default=float("inf"))


def _rebuilt(
    ranks: int, units: int, levels: tuple[Level, ...], devices: tuple[str, ...], weakest_kind: Kind
) -> GroupShape:
    return GroupShape(ranks=ranks, units=units, levels=levels, devices=devices, weakest=weakest_kind)


@dataclass(frozen=True, slots=True, eq=False)
class _Sites:
    """For every rank of a cluster: its pool, unit, island and host; ids rise with the rank."""

    pool: Ints
    unit: Ints
    island: Ints
    host: Ints
    pools: tuple[_Wires, ...]
    matrix: NDArray[np.float64] | None
    by_host: bool


@dataclass(frozen=True, slots=True)
class _Wires:
    """The rates of one pool, as floats."""

    island: float
    island_size: int
    island_kind: str
    host: float
    host_kind: str
    port: float
    total: float
    nic_kinds: tuple[str, ...]
    device: str
    quantities: tuple[Quantity, ...]


T = TypeVar("T")


class _Identity:
    """Remembers by the identity of long arguments, whose hash would cost more than the answer.

    Entries hold what they are keyed by, so that an id is never used twice."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = OrderedDict()

    def get(self, long: tuple[Any, ...], short: tuple[Any, ...], make: Callable[[], T]) -> T:
        key = (*map(id, long), *short)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = (long, make())
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        answer: T = found[1]
        return answer


_KEPT = 65_536
"""Entries remembered; a search prices thousands of meshes over a handful of axes."""

_by_identity = _Identity(_KEPT)


def group_shape(cluster: Cluster, ranks: tuple[int, ...], mesh: Mesh, axes: Sequence[str]) -> GroupShape:
    """The slowest group along `axes` of a stage that runs on `ranks` of the cluster, arranged as `mesh`."""
    along = tuple(axes)
    return _by_identity.get(
        (cluster, ranks), (mesh, along), lambda: _group_by_value(_Keyed(cluster), ranks, mesh, along)
    )


def pair_shape(cluster: Cluster, senders: tuple[int, ...], receivers: tuple[int, ...]) -> GroupShape:
    """The slowest of the pairs that carry values from one stage to the next, all at once.

    Rank i of the stage with more ranks talks to the rank in the same place of the other: i x few // many.
    """
    return _by_identity.get(
        (cluster, senders, receivers), ("pairs",), lambda: _pairs_by_value(_Keyed(cluster), senders, receivers)
    )


class _Keyed:
    """A cluster compared by identity: a link matrix would be hashed whole."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.cluster is other.cluster

    def __hash__(self) -> int:
        return id(self.cluster)


@lru_cache(maxsize=_KEPT)
def _group_by_value(keyed: _Keyed, ranks: tuple[int, ...], mesh: Mesh, axes: tuple[str, ...]) -> GroupShape:
    if mesh.size != len(ranks):
        raise BadGroup(place=f"mesh ({mesh})", cause=f"it is given {len(ranks)} ranks", fix="give one rank to each place")
    sizes = {axis.name: axis.size for axis in mesh.axes}
    for name in axes:
        mesh.axis(name)
    order = [name for name in mesh.names if name not in axes] + list(axes)
    box = np.asarray(ranks, dtype=np.int64).reshape([sizes[name] for name in mesh.names])
    size = int(np.prod([sizes[name] for name in axes], dtype=np.int64))
    groups = box.transpose([mesh.names.index(name) for name in order]).reshape(-1, size)
    return _slowest(keyed.cluster, _sites(keyed), np.sort(groups, axis=1))


@lru_cache(maxsize=1024)
def _pairs_by_value(keyed: _Keyed, senders: tuple[int, ...], receivers: tuple[int, ...]) -> GroupShape:
    count = max(len(senders), len(receivers))
    at = np.arange(count)
    one = np.asarray(senders, dtype=np.int64)[at * len(senders) // count]
    other = np.asarray(receivers, dtype=np.int64)[at * len(receivers) // count]
    pairs = np.stack([one, other], axis=1)
    return _slowest(keyed.cluster, _sites(keyed), np.sort(pairs[one != other], axis=1))


@lru_cache(maxsize=64)
def _sites(keyed: _Keyed) -> _Sites:
    cluster = keyed.cluster
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
    return _Sites(
        pool=np.concatenate(pools),
        unit=np.concatenate(units),
        island=np.concatenate(islands),
        host=np.concatenate(hosts),
        pools=tuple(map(_wires, cluster.pools)),
        matrix=matrix,
        by_host=matrix is not None and len(matrix) == cluster.hosts,
    )


def _wires(pool: Pool) -> _Wires:
    island = pool.device.island
    total = pool.host_gbps * BYTES_PER_S_OF_GBPS
    quantities = [pool.device.host_link.bandwidth, *(nic.rate for nic in pool.adapters)]
    return _Wires(
        island=island.bandwidth.value if island else float("inf"),
        island_size=min(island.devices, pool.gpus_per_host * pool.hosts_per_island) if island else 1,
        island_kind=island.kind if island else "",
        host=pool.device.host_link.bandwidth.value,
        host_kind=pool.device.host_link.kind,
        port=total / pool.ports if pool.adapters else float("inf"),
        total=total if pool.adapters else float("inf"),
        nic_kinds=tuple(dict.fromkeys(nic.kind for nic in pool.adapters)),
        device=pool.device.name,
        quantities=(*quantities, island.bandwidth) if island else tuple(quantities),
    )


@dataclass(frozen=True, slots=True)
class _Class:
    """What groups that cost the same have in common; `row` is one of them."""

    islands: int
    units: int
    pools: int
    fewest: int
    most: int
    sharing: int
    crossing: int
    row: int


def _slowest(cluster: Cluster, sites: _Sites, groups: Ints) -> GroupShape:
    """`groups` has one group per row, in order of the ranks."""
    count, size = groups.shape
    if size == 1 or count == 0:
        rank = int(groups.flat[0]) if count else 0
        return GroupShape(ranks=1, units=1, levels=(), devices=(sites.pools[int(sites.pool[rank])].device,))
    shapes = [_shape(cluster, sites, groups[one.row], one) for one in _classes(sites, groups)]
    return min(shapes, key=lambda shape: (shape.ring_bytes_per_s, -shape.units, -len(shape.levels), shape.devices))


def _classes(sites: _Sites, groups: Ints) -> list[_Class]:
    """One group of every kind there is; among those that only a link matrix tells apart, the slowest."""
    count, size = groups.shape
    islands, units, pools = (_distinct(ids[groups]) for ids in (sites.island, sites.unit, sites.pool))
    every = int(sites.unit[-1]) + 1
    rows = np.repeat(np.arange(count), size)
    keys, members = np.unique(rows * every + sites.unit[groups].ravel(), return_counts=True)
    row_of, unit_of = keys // every, keys % every
    sharing = np.bincount(unit_of, weights=units[row_of] > 1, minlength=every)[unit_of]
    starts = np.flatnonzero(np.r_[True, np.diff(row_of) > 0])
    fewest, most = np.minimum.reduceat(members, starts), np.maximum.reduceat(members, starts)
    shared = np.maximum.reduceat(sharing, starts).astype(np.int64)
    crossing = int((pools > 1).sum())
    first, last = sites.pool[groups[:, 0]], sites.pool[groups[:, -1]]
    marks = np.stack([islands, units, pools, fewest, most, shared, first, last], axis=1)
    order = np.arange(count) if sites.matrix is None else np.argsort(_matrix_rates(sites, groups), kind="stable")
    _, index = np.unique(marks[order], axis=0, return_index=True)
    return [
        _Class(*(int(mark) for mark in marks[row][:6]), crossing=crossing, row=int(row))
        for row in order[np.sort(index)]
    ]


def _distinct(ids: Ints) -> Ints:
    """How many ids each row holds; equal ids stand together."""
    return 1 + (np.diff(ids, axis=1) != 0).sum(axis=1)


def _matrix_rates(sites: _Sites, groups: Ints) -> NDArray[np.float64]:
    """The slowest measured neighbours of each group's ring."""
    assert sites.matrix is not None
    ids = sites.host[groups] if sites.by_host else groups
    rates = sites.matrix[ids, np.roll(ids, -1, axis=1)]
    return np.where(ids == np.roll(ids, -1, axis=1), np.inf, rates).min(axis=1)


def _shape(cluster: Cluster, sites: _Sites, group: Ints, one: _Class) -> GroupShape:
    size = len(group)
    indices = [int(index) for index in np.unique(sites.pool[group])]
    wires = [sites.pools[index] for index in indices]
    levels: list[Level] = []
    if size > one.islands:
        levels.append(_island(wires, -(-size // one.islands), _measured(sites, group, "island")))
    if one.islands > one.units:
        slowest = min(wires, key=lambda wire: wire.host)
        rates = _measured(sites, group, "host")
        rate, pair = (slowest.host, slowest.host) if rates is None else rates
        levels.append(
            Level(
                tier="host",
                kind=slowest.host_kind,
                parts=-(-one.islands // one.units),
                members=-(-size // one.islands),
                part_bytes_per_s=rate,
                rank_bytes_per_s=rate,
                pair_bytes_per_s=pair,
                latency_s=latency_of(slowest.host_kind).value,
            )
        )
    transport = _transport(wires)
    if one.units > one.pools:
        levels.append(_rail(sites, wires, one, transport, _measured(sites, group, "rail")))
    if one.pools > 1:
        levels.append(_between(cluster, indices, sites, wires, one, transport, _measured(sites, group, "pools")))
    kinds = [weakest(*wire.quantities).kind for wire in wires]
    return GroupShape(
        ranks=size,
        units=one.units,
        levels=tuple(levels),
        devices=tuple(sorted({wire.device for wire in wires})),
        weakest="assumed" if "assumed" in kinds else "datasheet" if "datasheet" in kinds else kinds[0],
    )


def _island(wires: list[_Wires], parts: int, measured: tuple[float, float] | None) -> Level:
    slowest = min((wire for wire in wires if wire.island_kind), key=lambda wire: wire.island)
    rate = slowest.island
    if slowest.island_kind in MESHED and slowest.island_size > 1:
        rate *= min(1.0, (parts - 1) / (slowest.island_size - 1))
    ring, pair = measured or (rate, rate)
    return Level(
        tier="island",
        kind=slowest.island_kind,
        parts=parts,
        members=1,
        part_bytes_per_s=ring,
        rank_bytes_per_s=ring,
        pair_bytes_per_s=pair,
        latency_s=latency_of(slowest.island_kind).value,
    )


def _rail(
    sites: _Sites, wires: list[_Wires], one: _Class, transport: str, measured: tuple[float, float] | None
) -> Level:
    port, total = min(wire.port for wire in wires), min(wire.total for wire in wires)
    part, alone, pair = _network_rates(sites, one, port, total, measured)
    return Level(
        tier="rail",
        kind=transport,
        parts=-(-one.units // one.pools),
        members=one.most,
        part_bytes_per_s=part,
        rank_bytes_per_s=alone,
        pair_bytes_per_s=pair,
        latency_s=latency_of(transport).value,
        groups=one.sharing,
    )


def _network_rates(
    sites: _Sites, one: _Class, port: float, total: float, measured: tuple[float, float] | None
) -> tuple[float, float, float]:
    """What a unit has with all members sending, with one, and towards the slowest other unit."""
    groups = max(1, one.sharing)
    if measured is None:
        part = min(one.fewest * port, total / groups)
        return part, min(port, total / groups), part
    if sites.by_host:  # what two hosts manage together
        ring, pair = (min(one.fewest * port, rate / groups) for rate in measured)
        return ring, min(port, measured[0] / groups), pair
    crowd = total / port if np.isfinite(total) else 1.0  # a pair alone; so many ports has a host
    ring, pair = (min(one.fewest * rate, crowd * rate / groups) for rate in measured)
    return ring, min(measured[0], crowd * measured[0] / groups), pair


def _between(
    cluster: Cluster,
    indices: list[int],
    sites: _Sites,
    wires: list[_Wires],
    one: _Class,
    transport: str,
    measured: tuple[float, float] | None,
) -> Level:
    port, total = min(wire.port for wire in wires), min(wire.total for wire in wires)
    part, alone, pair = _network_rates(sites, one, port, total, measured)
    names = [cluster.pools[index].name for index in indices]
    ways = [
        way for near, far in zip(names, names[1:], strict=False) if (way := route(near, far, cluster.links)) is not None
    ]
    latency = max((sum(link.latency.value for link in way) for way in ways), default=latency_of(transport).value)
    if measured is None:
        share = min(link.rate.value for way in ways for link in way) * BYTES_PER_S_OF_GBPS / max(1, one.crossing)
        part, alone, pair = min(part, share), min(alone, share), min(pair, share)
    kinds = [link.kind for way in ways for link in way]
    return Level(
        tier="pools",
        kind=_common([transport, *kinds]),
        parts=one.pools,
        members=-(-one.most * one.units // one.pools),
        part_bytes_per_s=part,
        rank_bytes_per_s=alone,
        pair_bytes_per_s=pair,
        latency_s=latency,
        groups=one.crossing,
    )


def _transport(wires: list[_Wires]) -> str:
    return _common([kind for wire in wires for kind in wire.nic_kinds])


def _common(kinds: Sequence[str]) -> str:
    """What all can speak: the least capable kind; one that is not known is taken as such."""
    if not kinds:
        return TRANSPORTS[-1]
    return max(kinds, key=lambda kind: TRANSPORTS.index(kind) if kind in TRANSPORTS else len(TRANSPORTS))


def _measured(sites: _Sites, group: Ints, tier: Tier) -> tuple[float, float] | None:
    """From the link matrix: the slowest neighbours of the ring on this tier, and the slowest pair."""
    if sites.matrix is None or (sites.by_host and tier not in ("rail", "pools")):
        return None
    ids = sites.host[group] if sites.by_host else group
    near = ids != np.roll(ids, -1)
    ring = near & (_tiers(sites, group, np.roll(group, -1)) == TIERS.index(tier))
    rates = sites.matrix[ids, np.roll(ids, -1)][ring]
    every = _tiers(sites, group[:, None], group[None, :]) == TIERS.index(tier)
    apart = every & (ids[:, None] != ids[None, :])
    if not apart.any():
        return None
    pair = float(sites.matrix[np.ix_(ids, ids)][apart].min())
    return (float(rates.min()) if rates.size else pair), pair


def _tiers(sites: _Sites, one: Ints, other: Ints) -> Ints:
    """The tier, as its place in `TIERS`, between ranks."""
    tier = np.full(np.broadcast(one, other).shape, TIERS.index("pools"), dtype=np.int64)
    tier[np.broadcast_to(sites.pool[one] == sites.pool[other], tier.shape)] = TIERS.index("rail")
    tier[np.broadcast_to(sites.host[one] == sites.host[other], tier.shape)] = TIERS.index("host")
    tier[np.broadcast_to(sites.island[one] == sites.island[other], tier.shape)] = TIERS.index("island")
    return tier
