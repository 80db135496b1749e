"""The symmetry of a cluster: its units, which of them are alike, and one name for assignments that cost the same.

A *unit* is a host, or the hosts that one scale-up island joins. An *assignment* gives every place of a plan (group by
group, each in the order of its mesh) a rank of the cluster. Units of one pool are alike, and so are the islands of a
host and the devices of an island: exchanging them changes no price. `Symmetry.canonical` renames them in the order in
which an assignment first comes to them, so that of all assignments that differ by such exchanges one is priced. A link
matrix tells hosts apart, or devices: what it tells apart keeps its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.parts import Pool

Assignment = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Ranks that leave a host, or an island, by the same way.

    - `islands` holds all of its ranks, in order; devices outside any island are islands of one.
    - Units of one `kind` are exchangeable; they have islands of the same sizes.
    """

    pool: int
    islands: tuple[tuple[int, ...], ...]
    kind: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(rank for island in self.islands for rank in island)


class Symmetry:
    """The units of a cluster, and which of them can be exchanged at no cost."""

    def __init__(self, cluster: Cluster) -> None:
        self.by_device = cluster.matrix is not None and len(cluster.matrix.rows) != cluster.hosts
        """Measured device by device: no two ranks are alike."""
        self.measured = cluster.matrix is not None
        self.units = _units(cluster)
        self._devices = [pool.device.name for pool in cluster.pools]
        self._seat = {
            rank: (index, number)
            for index, unit in enumerate(self.units)
            for number, island in enumerate(unit.islands)
            for rank in island
        }

    @property
    def block(self) -> int:
        """The size of the largest run of ranks that fits every unit a whole number of times."""
        return gcd(*(len(unit.ranks) for unit in self.units))

    @property
    def nested(self) -> bool:
        """Whether it matters where in a unit a rank sits."""
        return self.by_device or any(
            1 < len(island) < len(unit.ranks) for unit in self.units for island in unit.islands
        )

    def unit_of(self, rank: int) -> int:
        return self._seat[rank][0]

    def pool_of(self, rank: int) -> int:
        return self.units[self._seat[rank][0]].pool

    def device_of(self, rank: int) -> str:
        return self._devices[self.pool_of(rank)]

    def blocks(self, size: int) -> list[tuple[int, ...]]:
        """All ranks in runs of this size, which must divide `block`."""
        ranks = [unit.ranks for unit in self.units]
        return [held[start : start + size] for held in ranks for start in range(0, len(held), size)]

    def kind(self, rank: int) -> tuple[int, ...]:
        """The kind of a rank's unit: ranks of one kind can be exchanged."""
        return self.units[self.unit_of(rank)].kind

    def canonical(self, assignment: Sequence[int]) -> Assignment:
        """The representative of all assignments that cost the same."""
        return tuple(assignment) if self.by_device else self._first(assignment, [unit.kind for unit in self.units])

    def shape(self, assignment: Sequence[int]) -> Assignment:
        """The representative of all assignments that differ by exchanging units with islands of the same sizes."""
        return self._first(assignment, [tuple(map(len, unit.islands)) for unit in self.units])

    def _first(self, assignment: Sequence[int], kinds: Sequence[tuple[int, ...]]) -> Assignment:
        unit_for: dict[int, int] = {}
        island_for: dict[tuple[int, int], int] = {}
        taken: dict[int, set[int]] = {}
        used: dict[tuple[int, int], int] = {}
        left: dict[tuple[int, ...], list[int]] = {}
        for unit in reversed(range(len(kinds))):
            left.setdefault(kinds[unit], []).append(unit)
        found = []
        for rank in assignment:
            old = unit, number = self._seat[rank]
            if unit not in unit_for:
                unit_for[unit] = left[kinds[unit]].pop()
            new = unit_for[unit]
            if old not in island_for:
                islands, size = self.units[new].islands, len(self.units[unit].islands[number])
                own = taken.setdefault(new, set())
                island_for[old] = next(
                    where for where, island in enumerate(islands) if len(island) == size and where not in own
                )
                own.add(island_for[old])
            place = new, island_for[old]
            found.append(self.units[new].islands[place[1]][used.get(place, 0)])
            used[place] = used.get(place, 0) + 1
        return tuple(found)


def _units(cluster: Cluster) -> tuple[Unit, ...]:
    found: list[Unit] = []
    start = 0
    for index, pool in enumerate(cluster.pools):
        for host in range(0, pool.hosts, pool.hosts_per_island):
            hosts = range(host, min(pool.hosts, host + pool.hosts_per_island))
            islands = _islands(pool, hosts, start)
            sizes = tuple(map(len, islands))
            kind = (index, *sizes) if cluster.matrix is None else (index, len(found))
            found.append(Unit(index, islands, kind))
        start += pool.ranks
    return tuple(found)


def _islands(pool: Pool, hosts: range, start: int) -> tuple[tuple[int, ...], ...]:
    """The ranks of some hosts of a pool, island by island."""
    seats = [(host, slot) for host in hosts for slot in range(pool.gpus_per_host)]
    numbered = [(pool.island_of(*seat), start + seat[0] * pool.gpus_per_host + seat[1]) for seat in seats]
    if pool.device.island is None:
        return tuple((rank,) for _, rank in numbered)
    return tuple(tuple(rank for _, rank in found) for _, found in groupby(numbered, key=lambda pair: pair[0]))
