"""Clusters: pools of equal hosts, and the links between any two of their devices.

A *pool* is a number of identical hosts, each with the same number of one `Device` and the same NICs. A cluster is one
or more pools, with `PoolLink`s between them where there are several. Ranks are numbered pool by pool, host by host,
device by device, so that a rank is a place and nothing else need be said:

    rank = ranks of earlier pools + host x gpus_per_host + slot

Two ranks are joined by one of four *tiers*, from the fastest on:

    island   the scale-up domain (NVLink, xGMI, ICI): the first `island.devices` devices of a host, the next, ...; one
             that spans hosts joins whole hosts of a pool, in order (72 devices over 18 hosts of 4)
    host     one host, no common island: the host link (PCIe)
    rail     two hosts of a pool: the NICs
    pools    two pools: the links between them, and the NICs at both ends

`Cluster.link(a, b)` prices the way between two ranks, alone and in a crowd. Bandwidths are bytes/s in one direction.
With n NICs of rate r on a host of g devices there are p = min(n, g) *ports*; one rank alone fills a port,

    bandwidth = n r / p        sharers = g / p        so that bandwidth / sharers = n r / g is its share

when all devices of the host send. A link between pools has one total rate, which all ranks of the smaller pool share;
pools without a direct link are joined by the shortest chain of links (fewest, then by name): rates are the smallest,
latencies add up. Latencies are of one hop.

A *link matrix* holds rates in Gb/s that the user measured, one row per host or one per device. It replaces the rate of
what it covers: between hosts `rail` and `pools` (an entry is what the two hosts manage together), between devices
every tier (an entry is what that pair manages alone). Its two directions may differ by a tenth; the slower one counts.

Nothing is guessed in silence: NICs that a pool does not give are its device's usual ones, labelled so; where there are
none, a pool of several hosts is refused. `faults` says what is wrong with a cluster, `suspicions` what looks wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from meshwright.cost_models.hardware.devices import Device, latency_of
from meshwright.cost_models.hardware.faults import faults, spelled
from meshwright.cost_models.hardware.parts import (
    BYTES_PER_S_OF_GBPS,
    NIC_RATES,
    Link,
    LinkMatrix,
    Place,
    Pool,
    PoolLink,
    Tier,
    route,
)
from meshwright.cost_models.hardware.quantity import Quantity, derived
from meshwright.ir.errors import RankUnknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Pools, links between them, and measured rates.

    - No `faults`.
    - Its text form, `cluster_toml.write`, reads back as the same cluster.
    """

    pools: tuple[Pool, ...]
    links: tuple[PoolLink, ...] = ()
    matrix: LinkMatrix | None = None

    def __post_init__(self) -> None:
        for path, kind, cause, fix in faults(self.pools, self.links, self.matrix):
            raise kind(place=f"cluster, {spelled(path)}", cause=cause, fix=fix)

    @property
    def ranks(self) -> int:
        return sum(pool.ranks for pool in self.pools)

    @property
    def hosts(self) -> int:
        return sum(pool.hosts for pool in self.pools)

    @property
    def heterogeneous(self) -> bool:
        """Whether devices or links may differ from host to host."""
        return len(self.pools) > 1 or self.matrix is not None

    def place(self, rank: int) -> Place:
        if not 0 <= rank < self.ranks:
            raise RankUnknown(
                place=f"rank {rank}", cause=f"the cluster has {self.ranks} ranks", fix=f"use 0 to {self.ranks - 1}"
            )
        ends = list(accumulate(pool.ranks for pool in self.pools))
        pool = bisect_right(ends, rank)
        host, slot = divmod(rank - (ends[pool] - self.pools[pool].ranks), self.pools[pool].gpus_per_host)
        return Place(pool, host, slot)

    def host_index(self, at: Place) -> int:
        """The host's number in the whole cluster."""
        return sum(pool.hosts for pool in self.pools[: at.pool]) + at.host

    def device(self, rank: int) -> Device:
        return self.pools[self.place(rank).pool].device

    @property
    def kinds(self) -> Callable[[int], str] | None:
        """A function from a rank to its kind of device; None where there is one pool."""
        return (lambda rank: self.device(rank).name) if len(self.pools) > 1 else None

    def tier(self, one: int, other: int) -> Tier:
        """The network tier between two ranks."""
        if one == other:
            raise RankUnknown(place=f"rank {one}", cause="a rank has no link to itself", fix="name two ranks")
        return self._tier(self.place(one), self.place(other))

    def _tier(self, a: Place, b: Place) -> Tier:
        if a.pool != b.pool:
            return "pools"
        pool = self.pools[a.pool]
        island = pool.island_of(a.host, a.slot)
        if island is not None and island == pool.island_of(b.host, b.slot):
            return "island"
        return "host" if a.host == b.host else "rail"

    def link(self, one: int, other: int) -> Link:
        """The link between two ranks, with a measured rate where there is one."""
        tier = self.tier(one, other)
        a, b = self.place(one), self.place(other)
        link = self._between_pools(a, b) if tier == "pools" else _within(self.pools[a.pool], tier)
        if self.matrix is None:
            return link
        if len(self.matrix.rows) == self.hosts:
            return self._measured_hosts(link, a, b)
        rate = self.matrix.gbps(one, other)
        return _replaced(link, rate.value * BYTES_PER_S_OF_GBPS, link.sharers, "link matrix", rate)

    def _measured_hosts(self, link: Link, a: Place, b: Place) -> Link:
        if link.tier not in ("rail", "pools"):
            return link
        assert self.matrix is not None
        rate = self.matrix.gbps(self.host_index(a), self.host_index(b))
        total = rate.value * BYTES_PER_S_OF_GBPS
        ends = (self.pools[a.pool], self.pools[b.pool])
        alone = min(total, *(_port_bytes_per_s(pool) for pool in ends if pool.adapters))
        share = total / max(pool.gpus_per_host for pool in ends)
        return _replaced(link, alone, max(1.0, alone / share), "link matrix, between hosts", rate)

    def _between_pools(self, a: Place, b: Place) -> Link:
        ends = (self.pools[a.pool], self.pools[b.pool])
        way = route(ends[0].name, ends[1].name, self.links)
        if way is None:
            # Only a matrix can stand in for a link; it then replaces the rate, and the latency is the slower NIC's.
            return max(
                (_within(pool, "rail", tier_shown="pools") for pool in ends), key=lambda link: link.latency.value
            )
        slowest = min(way, key=lambda link: link.rate.value)
        total = slowest.rate.value * BYTES_PER_S_OF_GBPS
        rails = [_within(pool, "rail") for pool in ends if pool.adapters]
        narrow = min(rails, key=lambda rail: rail.bandwidth.value, default=None)
        if narrow is not None and narrow.bandwidth.value < total:
            alone = narrow.bandwidth
        else:
            alone = derived(total, "bytes/s", f"{slowest.rate.value:g} Gb/s / 8", slowest.rate)
        share = min(total / min(pool.ranks for pool in ends), *(rail.share_bytes_per_s for rail in rails), alone.value)
        latencies = [link.latency for link in way]
        latency = latencies[0] if len(way) == 1 else _sum(latencies)
        kind = "+".join(dict.fromkeys(link.kind for link in way))
        return Link(tier="pools", kind=kind, bandwidth=alone, latency=latency, sharers=alone.value / share)


def _within(pool: Pool, tier: Tier, *, tier_shown: Tier | None = None) -> Link:
    """The link of a tier inside a pool."""
    if tier == "island":
        assert pool.device.island is not None
        island = pool.device.island
        latency = latency_of(island.kind)
        return Link(tier=tier, kind=island.kind, bandwidth=island.bandwidth, latency=latency, sharers=1.0)
    if tier == "host":
        wire = pool.device.host_link
        latency = latency_of(wire.kind)
        return Link(tier=tier, kind=wire.kind, bandwidth=wire.bandwidth, latency=latency, sharers=1.0)
    nics = pool.adapters
    how = " + ".join(f"{nic.count} x {nic.rate.value:g}" for nic in nics)
    return Link(
        tier=tier_shown or tier,
        kind="+".join(dict.fromkeys(nic.kind for nic in nics)),
        bandwidth=derived(
            _port_bytes_per_s(pool), "bytes/s", f"({how}) Gb/s / {pool.ports} / 8", *(nic.rate for nic in nics)
        ),
        latency=max((latency_of(nic.kind) for nic in nics), key=lambda latency: latency.value),
        sharers=pool.gpus_per_host / pool.ports,
    )


def _port_bytes_per_s(pool: Pool) -> float:
    return pool.host_gbps * BYTES_PER_S_OF_GBPS / pool.ports


def _replaced(link: Link, alone: float, sharers: float, how: str, rate: Quantity) -> Link:
    bandwidth = derived(alone, "bytes/s", f"{how}, {rate.value:g} Gb/s / 8", rate)
    return Link(tier=link.tier, kind=link.kind, bandwidth=bandwidth, latency=link.latency, sharers=sharers)


def _sum(latencies: list[Quantity]) -> Quantity:
    return derived(sum(latency.value for latency in latencies), "s", "sum over the links of the way", *latencies)


def suspicions(cluster: Cluster) -> tuple[str, ...]:
    """Warnings about the user's numbers that look like GB/s written for Gb/s, or the reverse."""
    found: list[str] = []
    for pool in cluster.pools:
        usual = pool.device.nic.rate.value if pool.device.nic else None
        for nic in pool.nics:
            found += _suspicion(f"pool {pool.name!r}", nic.kind, nic.rate.value, usual)
    for link in cluster.links:
        found += _suspicion(f"link {' - '.join(link.between)}", link.kind, link.rate.value, None)
    return tuple(found)


def _suspicion(where: str, kind: str, gbps: float, usual: float | None) -> Iterator[str]:
    sold = NIC_RATES.get(kind, ())
    if (gbps not in sold and 8 * gbps in sold) or 8 * gbps == usual:
        yield (
            f"{where}: {gbps:g} Gb/s ({kind}) looks like GB/s: rates are in gigabits; if {gbps:g} gigabytes per second "
            f"are meant, write {8 * gbps:g}"
        )
    elif sold and gbps > max(sold):
        yield f"{where}: no {kind} adapter has {gbps:g} Gb/s; rates are in gigabits per second, of one adapter"
