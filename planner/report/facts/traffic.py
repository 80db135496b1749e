"""Traffic of a step by purpose, mesh axes and tier; and the hosts between which it goes.

Bytes are those that all ranks together receive, on the widest tier that a group spans, as `cost_models.traffic` books
them: they add up to the prediction's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.parts import BYTES_PER_S_OF_GBPS
from meshwright.cost_models.traffic import Load
from meshwright.ir.program.program import Program

REASONS = {
    "value": "values that operators wait for",
    "gradient": "gradients of values",
    "ring": "keys and values around a ring",
    "parameter": "gathers of parameters",
    "sync": "reductions of gradients",
    "update": "gathers of updated parameters",
    "stages": "values and gradients from stage to stage",
    "tied": "gradients of tied parameters",
    "host": "to the host's memory and back",
}
"""What is sent for, in words."""

TIERS = {
    "island": "between devices of a scale-up domain",
    "host": "over the link of a host",
    "rail": "between hosts, over the network",
    "pools": "between pools",
}
"""Where it is sent, in words, the fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes of a step for one purpose, along some axes, over one tier."""

    tier: str
    reason: str
    axes: tuple[str, ...]
    ranks: int
    """Of one group: the largest."""
    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One device: its rank, and the stages that it runs (empty: it is idle)."""

    rank: int
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal hosts, with the seats of the first and of the last one."""

    name: str
    device: str
    hosts: int
    first: tuple[Seat, ...]
    last: tuple[Seat, ...]
    island: str
    """The kind of scale-up link, empty where there is none."""
    island_devices: int
    island_bytes_per_s: float
    network: str
    network_bytes_per_s: float
    """Of all adapters of a host, in one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The flows of a step, and the pools between whose hosts they go."""

    flows: tuple[Flow, ...]
    pools: tuple[Pool, ...]


def traffic_of(loads: Iterable[Load], program: Program, cluster: Cluster) -> Traffic:
    """The traffic of a program on a cluster."""
    stages: dict[int, tuple[int, ...]] = {}
    for index, stage in enumerate(program.stages):
        for rank in stage.ranks:
            stages[rank] = (*stages.get(rank, ()), index)
    return Traffic(flows=flows_of(loads), pools=tuple(_pools(cluster, stages)))


def flows_of(loads: Iterable[Load]) -> tuple[Flow, ...]:
    """Loads added up; tiers in order, and of each the most bytes first."""
    found: dict[tuple[str, str, tuple[str, ...]], tuple[int, float]] = {}
    for load in loads:
        key = load.tier, load.reason, load.axes
        ranks, nbytes = found.get(key, (0, 0.0))
        found[key] = max(ranks, load.ranks), nbytes + load.nbytes
    flows = [
        Flow(tier=tier, reason=reason, axes=axes, ranks=ranks, nbytes=nbytes)
        for (tier, reason, axes), (ranks, nbytes) in found.items()
        if nbytes
    ]
    order = list(TIERS)
    return tuple(sorted(flows, key=lambda one: (order.index(one.tier), -one.nbytes, one.reason, one.axes)))


def _pools(cluster: Cluster, stages: dict[int, tuple[int, ...]]) -> Iterable[Pool]:
    before = 0
    for pool in cluster.pools:
        each, island = pool.gpus_per_host, pool.device.island
        starts = (before, before + pool.ranks - each)
        first, last = (
            tuple(Seat(rank=rank, stages=stages.get(rank, ())) for rank in range(start, start + each))
            for start in starts
        )
        yield Pool(
            name=pool.name,
            device=pool.device.name,
            hosts=pool.hosts,
            first=first,
            last=last,
            island=island.kind if island else "",
            island_devices=island.devices if island else 0,
            island_bytes_per_s=island.bandwidth.value if island else 0.0,
            network="+".join(dict.fromkeys(nic.kind for nic in pool.adapters)),
            network_bytes_per_s=pool.host_gbps * BYTES_PER_S_OF_GBPS,
        )
        before += pool.ranks
