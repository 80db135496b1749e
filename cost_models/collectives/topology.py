"""Shapes of groups: the wires that a collective runs over, how many ranks share them, and where it is slowest.

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
a group of n out of N can use n - 1 of the N - 1 wires that a device has; on a torus (ICI) as many as the sides that it
spans.

Rings go host by host in order of the ranks, as a library orders them whatever the mesh says; with a *link matrix* the
slowest neighbours of that ring count, and the slowest pair for an exchange of all with all. A group that crosses pools
speaks the transport that all of them have, the slower kind. Groups of the same axes may differ (ranks that straddle
hosts, two pools, a matrix); all start together and the step waits for the slowest. Which that is depends on the size:
the one with the narrowest ring, then with the most units, is returned, and the others with it (`also`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.cost_models.collectives.locations import (
    MESHED,
    Ints,
    Locations,
    Wires,
    locations_of,
    measured_rates,
    torus_share,
)
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import latency_of
from meshwright.cost_models.hardware.parts import BYTES_PER_S_OF_GBPS, TIERS, Tier, route
from meshwright.cost_models.hardware.quantity import Kind, weakest
from meshwright.ir.errors import BadGroup
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh

TRANSPORTS = ("infiniband", "roce", "ethernet")
"""From the most capable on; a group that has several falls back to the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One nesting level of a group.

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
            raise BadGroup(
                place="a level of a group", cause=repr(self), fix="give two parts or more, and positive rates"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A group as a collective sees it; equal shapes cost the same.

    - Without levels it is one rank. `units` is how many hosts (racks, where islands span hosts) it covers.
    - `devices` names what it runs on, sorted, a user's own device as what it is like; `weakest` is the provenance of
      the weakest rate.
    """

    ranks: int
    units: int
    levels: tuple[Level, ...]
    devices: tuple[str, ...]
    weakest: Kind = "datasheet"
    also: tuple[GroupShape, ...] = ()
    """Groups of the same axes that are otherwise placed; a collective takes as long as over the slowest of all."""
    digest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.ranks < 1 or (self.ranks > 1) != bool(self.levels) or not 1 <= self.units <= self.ranks:
            raise BadGroup(
                place="a group",
                cause=f"{self.ranks} ranks in {self.units} units, {len(self.levels)} levels",
                fix="give a level for every nesting of two parts or more",
            )
        # Prices are kept by shape; hashing all levels anew would cost more than the price.
        object.__setattr__(
            self, "digest", hash((self.ranks, self.units, self.levels, self.devices, self.weakest, self.also))
        )

    def __hash__(self) -> int:
        return self.digest

    def __reduce__(self) -> tuple[Callable[..., GroupShape], tuple[object, ...]]:
        """Rebuild the shape when unpickled, since hashes differ between processes."""
        return _rebuilt, (self.ranks, self.units, self.levels, self.devices, self.weakest, self.also)

    @property
    def ring_bytes_per_s(self) -> float:
        """The rate of a ring at the narrowest level, before any library's losses."""
        return min((level.part_bytes_per_s for level in self.levels), default=float("inf"))


def _rebuilt(
    ranks: int,
    units: int,
    levels: tuple[Level, ...],
    devices: tuple[str, ...],
    weakest_kind: Kind,
    also: tuple[GroupShape, ...],
) -> GroupShape:
    return GroupShape(ranks=ranks, units=units, levels=levels, devices=devices, weakest=weakest_kind, also=also)


T = TypeVar("T")


class _Identity:
    """A cache by the identity of long arguments, whose hash would cost more than the answer.

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


_KEPT = 4096
"""Entries remembered; each may hold the ranks of a stage, a search has some hundred meshes in hand at a time."""

_by_identity = _Identity(_KEPT)


def group_shape(cluster: Cluster, ranks: tuple[int, ...], mesh: Mesh, axes: Sequence[str]) -> GroupShape:
    """The slowest group along `axes` of a stage that runs on `ranks` of the cluster, arranged as `mesh`."""
    along = tuple(axes)
    return _by_identity.get(
        (cluster, ranks), (mesh, along), lambda: _group_by_value(Same(cluster), *_moved_up(cluster, ranks), mesh, along)
    )


def pair_shape(cluster: Cluster, senders: tuple[int, ...], receivers: tuple[int, ...]) -> GroupShape:
    """The slowest of the pairs that carry values from one stage to the next, all at once.

    Rank i of the stage with more ranks talks to the rank in the same place of the other: i x few // many.
    """
    return _by_identity.get(
        (cluster, senders, receivers),
        ("pairs",),
        lambda: _pairs_by_value(Same(cluster), *_moved_up(cluster, senders, receivers)),
    )


def _moved_up(cluster: Cluster, *stages: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The same ranks, moved to the first units of the cluster: where units are alike, the stages of a pipeline then
    share their shapes."""
    if len(cluster.pools) > 1 or cluster.matrix is not None:
        return stages
    pool = cluster.pools[0]
    unit = pool.gpus_per_host * pool.hosts_per_island
    before = min(map(min, stages)) // unit * unit
    return tuple(tuple(rank - before for rank in ranks) for ranks in stages) if before else stages


@lru_cache(maxsize=_KEPT)
def _group_by_value(keyed: Same[Cluster], ranks: tuple[int, ...], mesh: Mesh, axes: tuple[str, ...]) -> GroupShape:
    return _slowest(keyed.of, locations_of(keyed), np.sort(groups_along(ranks, mesh, axes), axis=1))


def groups_along(ranks: Sequence[int], mesh: Mesh, axes: Sequence[str]) -> Ints:
    """The groups along some axes, one per row."""
    if mesh.size != len(ranks):
        raise BadGroup(
            place=f"mesh ({mesh})", cause=f"it is given {len(ranks)} ranks", fix="give one rank to each place"
        )
    sizes = {axis.name: axis.size for axis in mesh.axes}
    for name in axes:
        mesh.axis(name)
    order = [name for name in mesh.names if name not in axes] + list(axes)
    box = np.asarray(ranks, dtype=np.int64).reshape([sizes[name] for name in mesh.names])
    size = int(np.prod([sizes[name] for name in axes], dtype=np.int64))
    return box.transpose([mesh.names.index(name) for name in order]).reshape(-1, size)


@lru_cache(maxsize=1024)
def _pairs_by_value(keyed: Same[Cluster], senders: tuple[int, ...], receivers: tuple[int, ...]) -> GroupShape:
    pairs = pairs_between(senders, receivers)
    return _slowest(keyed.of, locations_of(keyed), np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1))


def pairs_between(senders: Sequence[int], receivers: Sequence[int]) -> Ints:
    """The pairs of ranks that communicate between two stages, one per row."""
    count = max(len(senders), len(receivers))
    at = np.arange(count)
    one = np.asarray(senders, dtype=np.int64)[at * len(senders) // count]
    other = np.asarray(receivers, dtype=np.int64)[at * len(receivers) // count]
    return np.stack([one, other], axis=1)


@dataclass(frozen=True, slots=True)
class _Class:
    """Groups that cost the same; `row` is one of them."""

    islands: int
    units: int
    pools: int
    fewest: int
    most: int
    sharing: int
    crossing: int
    row: int


def _slowest(cluster: Cluster, locations: Locations, groups: Ints) -> GroupShape:
    """The slowest group; `groups` has one per row, in order of the ranks."""
    count, size = groups.shape
    if size == 1 or count == 0:
        rank = int(groups.flat[0]) if count else 0
        return GroupShape(ranks=1, units=1, levels=(), devices=(locations.pools[int(locations.pool[rank])].device,))
    shapes = [_shape(cluster, locations, groups[one.row], one) for one in _classes(locations, groups)]
    shapes.sort(key=lambda shape: (shape.ring_bytes_per_s, -shape.units, -len(shape.levels), shape.devices))
    narrowest, *others = dict.fromkeys(shapes)
    return replace(narrowest, also=tuple(others)) if others else narrowest


def _classes(locations: Locations, groups: Ints) -> list[_Class]:
    """One group of every kind that occurs; among those that only a link matrix tells apart, the slowest."""
    count, size = groups.shape
    islands, units, pools = (_distinct(ids[groups]) for ids in (locations.island, locations.unit, locations.pool))
    every = int(locations.unit[-1]) + 1
    rows = np.repeat(np.arange(count), size)
    keys, members = np.unique(rows * every + locations.unit[groups].ravel(), return_counts=True)
    row_of, unit_of = keys // every, keys % every
    sharing = np.bincount(unit_of, weights=units[row_of] > 1, minlength=every)[unit_of]
    starts = np.flatnonzero(np.r_[True, np.diff(row_of) > 0])
    fewest, most = np.minimum.reduceat(members, starts), np.maximum.reduceat(members, starts)
    shared = np.maximum.reduceat(sharing, starts).astype(np.int64)
    crossing = int((pools > 1).sum())
    first, last = locations.pool[groups[:, 0]], locations.pool[groups[:, -1]]
    marks = np.stack([islands, units, pools, fewest, most, shared, first, last], axis=1)
    order = (
        np.arange(count) if locations.matrix is None else np.argsort(_matrix_rates(locations, groups), kind="stable")
    )
    _, index = np.unique(marks[order], axis=0, return_index=True)
    return [_class(marks[row], crossing, int(row)) for row in order[np.sort(index)]]


def _class(marks: Ints, crossing: int, row: int) -> _Class:
    islands, units, pools, fewest, most, sharing = (int(mark) for mark in marks[:6])
    return _Class(islands, units, pools, fewest, most, sharing, crossing, row)


def _distinct(ids: Ints) -> Ints:
    """The number of distinct ids in each row; equal ids stand together."""
    count: Ints = 1 + (np.diff(ids, axis=1) != 0).sum(axis=1)
    return count


def _matrix_rates(locations: Locations, groups: Ints) -> NDArray[np.float64]:
    """The slowest measured neighbours of each group's ring."""
    assert locations.matrix is not None
    ids = locations.host[groups] if locations.by_host else groups
    rates = locations.matrix[ids, np.roll(ids, -1, axis=1)]
    least: NDArray[np.float64] = np.where(ids == np.roll(ids, -1, axis=1), np.inf, rates).min(axis=1)
    return least


def _shape(cluster: Cluster, locations: Locations, group: Ints, one: _Class) -> GroupShape:
    size = len(group)
    indices = [int(index) for index in np.unique(locations.pool[group])]
    wires = [locations.pools[index] for index in indices]
    levels: list[Level] = []
    if size > one.islands:
        levels.append(_island(wires, -(-size // one.islands), measured_rates(locations, group, "island")))
    if one.islands > one.units:
        slowest = min(wires, key=lambda wire: wire.host)
        rates = measured_rates(locations, group, "host")
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
        levels.append(_rail(locations, wires, one, transport, measured_rates(locations, group, "rail")))
    if one.pools > 1:
        levels.append(
            _between(cluster, indices, locations, wires, one, transport, measured_rates(locations, group, "pools"))
        )
    return GroupShape(
        ranks=size,
        units=one.units,
        levels=tuple(levels),
        devices=tuple(sorted({wire.device for wire in wires})),
        weakest=weakest(*(quantity for wire in wires for quantity in wire.quantities)).kind,
    )


def _island(wires: list[Wires], parts: int, measured: tuple[float, float] | None) -> Level:
    slowest = min((wire for wire in wires if wire.island_kind), key=lambda wire: wire.island)
    rate = slowest.island
    if slowest.island_kind in MESHED and slowest.island_size > 1:
        rate *= min(1.0, (parts - 1) / (slowest.island_size - 1))
    if slowest.island_kind == "ici":
        rate *= torus_share(slowest.device, parts)
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
    locations: Locations, wires: list[Wires], one: _Class, transport: str, measured: tuple[float, float] | None
) -> Level:
    port, total = min(wire.port for wire in wires), min(wire.total for wire in wires)
    part, alone, pair = _network_rates(locations, one, port, total, measured)
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
    locations: Locations, one: _Class, port: float, total: float, measured: tuple[float, float] | None
) -> tuple[float, float, float]:
    """Network rates of a unit with all members sending, with one, and towards the slowest other unit."""
    groups = max(1, one.sharing)
    if measured is None:
        part = min(one.fewest * port, total / groups)
        return part, min(port, total / groups), part
    if locations.by_host:  # what two hosts manage together
        ring, pair = (min(one.fewest * port, rate / groups) for rate in measured)
        return ring, min(port, measured[0] / groups), pair
    crowd = total / port if np.isfinite(total) else 1.0  # a pair alone; so many ports has a host
    ring, pair = (min(one.fewest * rate, crowd * rate / groups) for rate in measured)
    return ring, min(measured[0], crowd * measured[0] / groups), pair


def _between(
    cluster: Cluster,
    indices: list[int],
    locations: Locations,
    wires: list[Wires],
    one: _Class,
    transport: str,
    measured: tuple[float, float] | None,
) -> Level:
    port, total = min(wire.port for wire in wires), min(wire.total for wire in wires)
    part, alone, pair = _network_rates(locations, one, port, total, measured)
    names = [cluster.pools[index].name for index in indices]
    ways = [way for near, far in pairwise(names) if (way := route(near, far, cluster.links)) is not None]
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


def _transport(wires: list[Wires]) -> str:
    return _common([kind for wire in wires for kind in wire.nic_kinds])


def _common(kinds: Sequence[str]) -> str:
    """The transport that all can use: the least capable kind; an unknown kind is taken as such."""
    if not kinds:
        return TRANSPORTS[-1]
    return max(kinds, key=lambda kind: TRANSPORTS.index(kind) if kind in TRANSPORTS else len(TRANSPORTS))
