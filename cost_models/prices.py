"""Prices remembered on one cluster with one profile: devices of groups, prices of kernels, costs of ledgers.

Programs share body programs, stages share ranks: each is priced once. A thing is known by its identity, and kept with
what was made of it, so that no other can take its place; what is remembered changes no price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from meshwright.cost_models.collectives.collective import Collective, Library, collective
from meshwright.cost_models.collectives.collective import Priced as Moved
from meshwright.cost_models.collectives.curves import Curves, Network
from meshwright.cost_models.collectives.topology import GroupShape, group_shape, pair_shape
from meshwright.cost_models.compute.kernels import Compute
from meshwright.cost_models.cost import NOTHING, Cost, attention_of, cost_of, library_of, slowest
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.ledger.books import MOST_LISTS, Books, make_room
from meshwright.cost_models.ledger.ledger import Ledger, Phase
from meshwright.cost_models.measured.measured import NO_OVERHEADS
from meshwright.cost_models.profile import Profile
from meshwright.ir.program.program import BodyProgram, Stage
from meshwright.ir.same import AllSame
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.rank_classes import RankClass, rank_classes, seen
from meshwright.ir.target.workload import Workload, sizeless

Costs = dict[str, Cost]
"""Of one body program, by phase."""


class Prices:
    """Prices of body programs on stages, remembered."""

    def __init__(self, cluster: Cluster, profile: Profile, books: Books | None = None, *, least: bool = False) -> None:
        """`least`: of every kernel and collective what it takes in whatever parts, for bounds on many plans at once."""
        self.cluster, self.profile, self.books, self.is_least = profile.on(cluster), profile, books or Books(), least
        self._computes: dict[tuple[str, str, str, bool], Compute] = {}
        self._phases: dict[tuple[object, ...], tuple[Phase, Cost]] = {}
        self._costs: dict[tuple[object, ...], tuple[Ledger, Costs]] = {}
        self._together: dict[AllSame[Costs], Costs] = {}
        self._devices: dict[int, tuple[tuple[int, ...], tuple[tuple[Device, int], ...]]] = {}

    @cached_property
    def least(self) -> Prices:
        """Prices that no plan undercuts however it cuts work up. Laws grow with the work, and are their own; a
        measurement may take longer, byte for byte, than one of half the size."""
        return self if self.profile.measured is None else Prices(self.cluster, self.profile, self.books, least=True)

    def moved(
        self, kind: Collective, nbytes: float, shape: GroupShape, library: Library, *, imbalance: float = 1.0
    ) -> Moved:
        """The price of a collective."""
        return collective(kind, nbytes, shape, library, imbalance=imbalance, curves=self.curves, least=self.is_least)

    @cached_property
    def curves(self) -> Curves | None:
        """Curves of collectives that were measured, with the wires of this cluster, where they are of all its hosts."""
        known, cluster = self.profile.curves, self.cluster
        each, ranks = cluster.pools[0].gpus_per_host, tuple(range(cluster.ranks))
        alike = all(pool.gpus_per_host == each for pool in cluster.pools)
        if known is None or not alike or not any(1 < one.hosts == cluster.hosts for one in known.all):
            return known
        whole = group_shape(cluster, ranks, Mesh.parse(f"all={cluster.ranks}"), ("all",))
        pair = pair_shape(cluster, (0,), (each,))
        return replace(known, network=Network(cluster.hosts, each, whole, pair))

    def ranks_per_host(self, device: Device) -> int:
        """The ranks of a host of this device, all of which are at work."""
        return max(pool.gpus_per_host for pool in self.cluster.pools if pool.device.name == device.name)

    def devices(self, ranks: tuple[int, ...]) -> tuple[Device, ...]:
        """The kinds of device among these ranks."""
        return tuple(device for device, _ in self.counted(ranks))

    def counted(self, ranks: tuple[int, ...]) -> tuple[tuple[Device, int], ...]:
        """The kinds of device among these ranks, with the number of ranks on each."""
        found = self._devices.get(id(ranks))
        if found is None:
            make_room(self._devices)
            several = len(self.cluster.pools) > 1
            pools = Counter(self.cluster.place(rank).pool for rank in ranks) if several else Counter({0: len(ranks)})
            counts: dict[str, tuple[Device, int]] = {}
            for pool, count in sorted(pools.items()):
                device = self.cluster.pools[pool].device
                counts[device.name] = (device, count + counts.get(device.name, (device, 0))[1])
            found = self._devices[id(ranks)] = (ranks, tuple(counts.values()))
        return found[1]

    def compute(self, device: Device, workload: Workload) -> Compute:
        stack = workload.stack
        one_by_one = stack.style == "fused" and stack.graphs != "step"
        key = (device.name, stack.style, stack.attention, one_by_one)
        if key not in self._computes:
            ranks = self.ranks_per_host(device)
            self._computes[key] = Compute(
                device,
                style=stack.style,
                attention=attention_of(stack),
                values=self.profile.compute,
                one_by_one=one_by_one,
                measured=self.profile.times(device, ranks),
                least=self.is_least,
            )
        return self._computes[key]

    def host_s(self, device: Device, workload: Workload) -> float:
        """Host seconds of a launch."""
        measured = self.profile.launch_s(self.ranks_per_host(device))
        return self.compute(device, workload).host_s if measured is None else measured

    def ledger(self, body: BodyProgram, workload: Workload, accumulates: bool) -> Ledger:
        return self.books.ledger(body, workload, accumulates)

    def rank_classes(self, stages: Sequence[Stage], bodies: Mapping[str, BodyProgram]) -> tuple[RankClass, ...]:
        """The rank classes of stages that share their ranks."""
        return rank_classes(stages, bodies, self.cluster.kinds)

    def run(self, body: BodyProgram, stage: Stage, own: RankClass, workload: Workload, accumulates: bool) -> Costs:
        """The cost of one body program on a rank class of a stage, by phase."""
        return self.costs(self.ledger(seen(body, own.at), workload, accumulates), stage, workload, own.ranks)

    def together(self, found: Sequence[Costs]) -> Costs:
        """The joint cost of ranks that wait for each other, of several sorts."""
        if len(found) == 1:
            return found[0]
        key = AllSame(found)
        if key not in self._together:
            make_room(self._together)
            self._together[key] = {name: slowest(one[name] for one in found) for name in found[0]}
        return self._together[key]

    def costs(self, book: Ledger, stage: Stage, workload: Workload, ranks: tuple[int, ...] | None = None) -> Costs:
        """The cost of one body program on a stage, or on some of its ranks, by phase."""
        workload = sizeless(workload)
        devices = self.devices(stage.ranks if ranks is None else ranks)
        shapes = {axes: group_shape(self.cluster, stage.ranks, stage.mesh, axes) for axes in book.axes}
        key = (id(book), *(device.name for device in devices), workload, *shapes.values())
        found = self._costs.get(key)
        if found is None:
            make_room(self._costs)
            costs = {
                name: self._known(phase, devices, shapes, workload, awaited=name in book.awaited)
                for name, phase in book.phases.items()
            }
            if book.again and not self.is_least:
                overheads = self.profile.overheads
                host_s = overheads.again_s + overheads.choosing_s * book.chooses
                costs["recompute"] = replace(costs["recompute"], host_s=host_s)
            found = self._costs[key] = (book, costs)
        return found[1]

    def phase(self, phase: Phase, ranks: tuple[int, ...], mesh: Mesh, workload: Workload) -> Cost:
        """The cost of one phase of a program's part, computed anew: for those who put programs together."""
        axes = {one.axes for one in phase.transmissions}
        shapes = {names: group_shape(self.cluster, ranks, mesh, names) for names in axes}
        return self._phase(phase, self.devices(ranks), shapes, workload, awaited=False)

    def _known(
        self,
        phase: Phase,
        devices: tuple[Device, ...],
        shapes: Mapping[tuple[str, ...], GroupShape],
        workload: Workload,
        *,
        awaited: bool,
    ) -> Cost:
        """The cost of one phase of a ledger, remembered: ledgers have phases in common."""
        groups = [shapes[one.axes] for one in phase.transmissions]
        key = (id(phase), *(device.name for device in devices), workload, awaited, *groups)
        found = self._phases.get(key)
        if found is None:
            make_room(self._phases, MOST_LISTS)
            found = self._phases[key] = (phase, self._phase(phase, devices, shapes, workload, awaited=awaited))
        return found[1]

    def _phase(
        self,
        phase: Phase,
        devices: tuple[Device, ...],
        shapes: Mapping[tuple[str, ...], GroupShape],
        workload: Workload,
        *,
        awaited: bool,
    ) -> Cost:
        """The cost of one phase on the slowest of some devices."""
        if not (phase.kernels or phase.transmissions):
            return NOTHING
        return slowest(
            cost_of(
                phase,
                self.compute(device, workload),
                shapes,
                library_of(device, workload),
                workload,
                awaited=awaited or self.profile.synchronous,
                moving=self.moved,
                overheads=NO_OVERHEADS if self.is_least else self.profile.overheads,
            )
            for device in devices
        )
