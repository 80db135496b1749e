"""Facts that all bounds of a setting share: stages, groups, parameters that several calls hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import log2
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshwright.cost_models.cost import Cost, fastest, library_of
from meshwright.cost_models.ledger.ledger import Phase
from meshwright.cost_models.prices import Prices
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, cuts, uses
from meshwright.ir.same import Same
from meshwright.ir.schedules import stage_groups
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.bounds.bases import Shared, between, experts_of, places
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting

SLACK = 1e-9
"""Relative: bounds are other sums than prices, and give way by this much."""

Calls = tuple[tuple[str, int], ...]
"""The bodies of a stage in order, each with how often it runs in a row."""

Between = Mapping[str, Mapping[str, Cost]]
"""Costs of what copies compute together, by body and phase, beyond those of a copy that is alone."""

NOBODY: Between = {}

Bytes = TypeVar("Bytes", float, npt.NDArray[np.float64])

Layout = tuple[int, str, tuple[int, ...]]
"""How many stages share out the layers, and how."""


def _layout(config: Config) -> Layout:
    return config.pp * config.vp, config.split, config.stage_blocks


class Common:
    """Facts that all bounds of a setting share, whatever the kernel configuration."""

    def __init__(self, setting: Setting, prices: Prices, fold: Fold) -> None:
        self.setting, self.prices, self.workload = setting, prices, setting.workload
        self.bodies = [call.body.name for call in fold.calls()]
        self.calls = tuple(Counter(self.bodies).items())
        self.names = [name for name, _ in self.calls]
        self.counts = np.array([float(times) for _, times in self.calls])
        self.routed_names = [name for name in self.names if experts_of(Same(fold), name)]
        self.routed = np.array([name in self.routed_names for name in self.names])
        """Which bodies have experts."""
        self.fold = fold
        self.step, self.stack = prices.profile.step, setting.workload.stack
        self.pools = self.stack.by_torch and setting.target.device != "cpu"
        """Whether units of FSDP have what travels in memory of its own (`meshwright.cost_models.memory.stage`)."""
        self.prefetches = "parameters" in self.stack.hides and not self.stack.one_by_one
        """Whether the parameters of one unit arrive while another one runs."""
        cluster, everywhere = prices.cluster, tuple(range(setting.ranks))
        devices = prices.devices(everywhere)
        self.host_s = min(prices.host_s(device, self.workload) for device in devices)
        self.library = library_of(devices[0], self.workload)
        per_host = min(pool.gpus_per_host for pool in cluster.pools)
        hosts = max(1, min(cluster.hosts, -(-setting.ranks // per_host)))
        self.straggling = (1 + self.step.straggling * log2(hosts)) * (1 - SLACK)
        roomiest = max((one.driver_memory or one.memory).value for one in devices)
        self.capacity = roomiest * (1 - prices.profile.memory.margin_share)
        hidden = max(self.step.hidden_tensor, self.step.hidden_backward)
        self.tensor_left = 1 - hidden if "tensor" in self.stack.hides or self.stack.regathers else 1.0
        """Of tensor parallel collectives, the share that no overlap hides."""
        self.expert_left = self.step.slowdown if "expert" in self.stack.hides else 1.0
        """Of exchanges between experts, the share that is left behind another micro-batch."""
        self.tied = [(path, [number for number, _ in held]) for path, held in fold.tied]
        """Parameters that more than one call holds, and which."""
        self.held_twice = [(path, self.bodies[number]) for path, held in self.tied for number in held[1:]]
        self.counted = [body.name for body in fold.bodies if body.graph.updates]
        """Bodies that have statistics of the whole batch."""
        self._between: dict[tuple[Config, Mesh], Between] = {}
        self._shared: dict[Config, Mapping[str, Mapping[str, Shared]]] = {}
        self._stages: dict[Layout, tuple[Calls, ...]] = {}
        self._ranges: dict[Layout, Sequence[tuple[int, int]]] = {}
        self._groups: dict[tuple[str, int, Layout], tuple[tuple[int, tuple[int, ...]], ...]] = {}

    def between(self, base: Config, config: Config) -> Between:
        """Costs of bodies that the copies of a configuration compute together, beyond those of a copy that is alone:
        exchanges of statistics of the whole batch, and launches of kernels that make these in parts."""
        if not self.counted:
            return NOBODY
        axes = tuple(use.name for use in uses(config.degrees()) if use.outside == "dp")
        if not axes:
            return NOBODY
        mesh = config.degrees().mesh()
        key = replace(base, dp=base.ep, mbs=1), mesh
        if key not in self._between:
            self._between[key] = {
                name: {phase: self._over(axes, mesh, asked, phase) for phase, asked in phases.items()}
                for name, phases in self._shared_by(key[0]).items()
            }
        return self._between[key]

    def _shared_by(self, base: Config) -> Mapping[str, Mapping[str, Shared]]:
        """The phases of bodies that two copies of a kernel configuration compute together, whatever else lies on the
        mesh."""
        if base not in self._shared:
            self._shared[base] = {name: between(self.setting, self.prices, base, name) for name in self.counted}
        return self._shared[base]

    def _over(self, axes: tuple[str, ...], mesh: Mesh, shared: Shared, phase: str) -> Cost:
        """The costs of exchanges over these axes instead of their own, and of launches, wherever the ranks are. What is
        computed again may be less with more copies, so that no launches are counted there."""
        asked = Phase(transmissions=Counter({replace(one, axes=axes): count for one, count in shared.sent.items()}))

        def at(ranks: tuple[int, ...]) -> Cost:
            cost, together, alone = (
                self.prices.phase(one, ranks, mesh, self.workload) for one in (asked, shared.kernels, shared.alone)
            )
            more = 0 if phase == "recompute" else max(0, together.launches - alone.launches)
            return replace(cost, launches=more)

        return fastest(map(at, places(self.prices.cluster, mesh.size)))

    def stages(self, config: Config) -> tuple[Calls, ...]:
        """The calls of every stage."""
        key = _layout(config)
        if key not in self._stages:
            stages, split, blocks = key
            ranges = self._ranges[key] = cuts(self.fold, Degrees(pp=stages, split=split, stage_blocks=blocks))
            self._stages[key] = tuple(
                tuple((name, len(list(run))) for name, run in groupby(self.bodies[first:last]))
                for first, last in ranges
            )
        return self._stages[key]

    def twice(self, config: Config, own: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Parameters that another call of these stages holds already: their paths, with the body that holds them
        again."""
        if self.tied:
            self.stages(config)
            ranges = self._ranges[_layout(config)]
            for path, held in self.tied:
                here = [number for number in held if any(ranges[one][0] <= number < ranges[one][1] for one in own)]
                for number in here[1:]:
                    yield path, self.bodies[number]

    def groups(self, config: Config) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Groups with their numbers and stages; of neighbours that run the same, only the first and the last, between
        which nothing is greater."""
        key = config.schedule, config.pp, _layout(config)
        if key not in self._groups:
            stages = self.stages(config)
            every = stage_groups(config.schedule, config.pp, config.vp)
            alike = groupby(enumerate(every), key=lambda pair: tuple(stages[stage] for stage in pair[1]))
            runs = [list(run) for _, run in alike]
            self._groups[key] = tuple(group for run in runs for group in dict.fromkeys((run[0], run[-1])))
        return self._groups[key]

    def with_runtime(self, nbytes: Bytes) -> Bytes:
        """Bytes including what the runtime needs."""
        runtime = self.prices.profile.memory
        inside = nbytes + runtime.workspace_bytes
        return inside * (1 + runtime.fragments_share) + runtime.block_bytes + runtime.context_bytes


def sums_before(values: Iterable[float]) -> list[float]:
    """The running sums before each value."""
    found, total = [], 0.0
    for value in values:
        found.append(total)
        total += value
    return found
