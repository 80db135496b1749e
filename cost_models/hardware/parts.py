"""Parts of a cluster: adapters, pools, links between them, measured rates; the place of a rank, and the link between
two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from meshwright.cost_models.hardware.devices import Device, Island
from meshwright.cost_models.hardware.quantity import Quantity, given
from meshwright.ir.errors import ClusterError

Tier = Literal["island", "host", "rail", "pools"]
TIERS: tuple[Tier, ...] = ("island", "host", "rail", "pools")
BYTES_PER_S_OF_GBPS = 1e9 / 8

ASYMMETRY = 0.1
"""How far the two directions of a measured link may lie apart, as a share of the faster one."""

SHOWN_ENTRIES = 5
"""Bad entries of a link matrix that are listed; what spoils one often spoils all."""

NIC_RATES = {
    "infiniband": (10, 20, 40, 56, 100, 200, 400, 800, 1600),
    "roce": (10, 25, 40, 50, 100, 200, 400, 800, 1600),
    "ethernet": (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800, 1600),
}
"""Gb/s that adapters are sold with; used to notice bytes where bits are meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """`count` adapters of one kind on each host; the rate is of one of them, in Gb/s."""

    kind: str
    rate: Quantity
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Identical hosts. The price is per device and hour; `gpus_per_island` is given where jobs get less of the islands
    that span hosts than is usual, or more."""

    name: str
    hosts: int
    device: Device
    gpus_per_host: int
    nics: tuple[Nic, ...] = ()
    price: Quantity | None = None
    gpus_per_island: int | None = None

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus_per_host

    @property
    def adapters(self) -> tuple[Nic, ...]:
        """The NICs given, or else the device's usual ones."""
        usual = self.device.nic
        if self.nics or usual is None:
            return self.nics
        return (Nic(kind=usual.kind, rate=usual.rate, count=self.gpus_per_host),)

    @property
    def host_gbps(self) -> float:
        """The rate of all NICs of a host together, in one direction."""
        return sum(nic.rate.value * nic.count for nic in self.adapters)

    @property
    def ports(self) -> int:
        return min(sum(nic.count for nic in self.adapters), self.gpus_per_host)

    @property
    def hosts_per_island(self) -> int:
        """Whole hosts that one scale-up domain joins; 1 where the domain ends with the host, or there is none."""
        island = self.device.island
        return max(1, self._filled(island) // self.gpus_per_host) if island and island.spans_hosts else 1

    def _filled(self, island: Island) -> int:
        """Devices of the pool in one island that spans hosts: what is given; all that it joins where the pool is one
        island, or whole ones; else what schedulers give a job of each."""
        size, ranks = island.devices, self.ranks
        if self.gpus_per_island is not None:
            return self.gpus_per_island
        segment = int(island.segment.value) if island.segment else size
        return size if ranks <= size or (ranks % size == 0 and ranks % segment) else segment

    def island_of(self, host: int, slot: int) -> int | None:
        """The number, within the pool, of the scale-up domain of a device; None if it is in none."""
        if self.device.island is None:
            return None
        size = self.device.island.devices
        if self.hosts_per_island > 1:
            return host // self.hosts_per_island
        return host * -(-self.gpus_per_host // size) + slot // size


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLink:
    """A link between two pools: its total rate in one direction, in Gb/s, and its latency."""

    between: tuple[str, str]
    kind: str
    rate: Quantity
    latency: Quantity


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Measured rates in Gb/s between hosts, or between devices; the diagonal means nothing."""

    rows: tuple[tuple[float, ...], ...]

    def gbps(self, one: int, other: int) -> Quantity:
        return given(min(self.rows[one][other], self.rows[other][one]), "Gb/s")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank: indices of its pool, of its host within the pool, of its device within the host."""

    pool: int
    host: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between two ranks. `bandwidth` is what the pair has alone, in one direction; `sharers` is the number of
    ranks that divide it when all of them send."""

    tier: Tier
    kind: str
    bandwidth: Quantity
    latency: Quantity
    sharers: float

    @property
    def share_bytes_per_s(self) -> float:
        return self.bandwidth.value / self.sharers


class Fault(NamedTuple):
    """A fault of a cluster: its place (a path of keys and indices), the error, the cause, and the fix."""

    path: tuple[str | int, ...]
    kind: type[ClusterError]
    cause: str
    fix: str


def route(one: str, other: str, links: tuple[PoolLink, ...]) -> tuple[PoolLink, ...] | None:
    """The shortest chain of links between two pools, ties broken by name; None if there is none."""
    ways: dict[str, tuple[PoolLink, ...]] = {one: ()}
    front = [one]
    while front and other not in ways:
        reached: dict[str, tuple[PoolLink, ...]] = {}
        for name in sorted(front):
            for link in links:
                if name in link.between:
                    far = link.between[1] if link.between[0] == name else link.between[0]
                    if far not in ways:
                        reached.setdefault(far, (*ways[name], link))
        ways |= reached
        front = list(reached)
    return ways.get(other)
