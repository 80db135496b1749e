"""What a cluster description means, before anything is priced with it.

In: CLUSTER, as every verb takes it. Out: a drawing (``planner.cli.views.machines.cluster``) or JSON. Both show
the same `Shown`: the cluster, one sample of every kind of link in it, totals, the weakest provenance among its numbers,
and warnings. Warnings go to standard error too when JSON was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright import __version__
from meshwright.cost_models.hardware import toml as cluster_toml
from meshwright.cost_models.hardware.cluster import Cluster, suspicions
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.parts import Link, Pool
from meshwright.cost_models.hardware.quantity import Quantity, weakest
from meshwright.cost_models.hardware.text import read_cluster

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Two ranks and the link between them; `where` names one pool, or two."""

    where: str
    ranks: tuple[int, int]
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A cluster and the facts that `plan cluster show` prints about it."""

    reference: str
    cluster: Cluster
    samples: tuple[Sample, ...]
    warnings: tuple[str, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple({pool.device.name: pool.device for pool in self.cluster.pools}.values())

    @property
    def memory_bytes(self) -> float:
        return sum(pool.ranks * pool.device.memory.value for pool in self.cluster.pools)

    @property
    def peaks_flops_per_s(self) -> dict[str, float]:
        """Peak rate of all devices together, per dtype that every device has."""
        first, *others = self.devices
        dtypes = [dtype for dtype in first.dtypes if all(dtype in other.dtypes for other in others)]
        pools = self.cluster.pools
        return {dtype: sum(pool.ranks * pool.device.peak(dtype).value for pool in pools) for dtype in dtypes}

    @property
    def price_per_hour(self) -> float | None:
        """Price of the whole cluster per hour, if every pool has one."""
        prices = [pool.ranks * pool.price.value for pool in self.cluster.pools if pool.price]
        return sum(prices) if len(prices) == len(self.cluster.pools) else None

    @property
    def weakest(self) -> Quantity:
        return weakest(*self.quantities())

    def quantities(self) -> Iterator[Quantity]:
        for device in self.devices:
            yield from (quantity for _, quantity in device.quantities())
        for sample in self.samples:
            yield from (sample.link.bandwidth, sample.link.latency)


def look(reference: str) -> Shown:
    """Collect the facts to print about a cluster."""
    cluster = read_cluster(reference)
    return Shown(reference=reference, cluster=cluster, samples=tuple(samples(cluster)), warnings=suspicions(cluster))


def samples(cluster: Cluster) -> Iterator[Sample]:
    """The first pair of ranks for every network tier in every pool, and for every two pools."""
    firsts = []
    first = 0
    for pool in cluster.pools:
        firsts.append(first)
        seen = set()
        for other in _candidates(pool, first):
            tier = cluster.tier(first, other)
            if tier not in seen:
                seen.add(tier)
                yield Sample(where=pool.name, ranks=(first, other), link=cluster.link(first, other))
        first += pool.ranks
    for index, one in enumerate(cluster.pools):
        for later in range(index + 1, len(cluster.pools)):
            pair = (firsts[index], firsts[later])
            yield Sample(where=f"{one.name} - {cluster.pools[later].name}", ranks=pair, link=cluster.link(*pair))


def _candidates(pool: Pool, first: int) -> Iterator[int]:
    """The ranks to pair with the first one: the other devices of its host, then the first device of each other host, so
    that every tier is covered."""
    yield from range(first + 1, first + pool.gpus_per_host)
    yield from range(first + pool.gpus_per_host, first + pool.ranks, pool.gpus_per_host)


def to_json(shown: Shown) -> dict[str, object]:
    """The cluster as docs/cluster.md describes it."""
    cluster = shown.cluster
    return {
        "format_version": FORMAT_VERSION,
        "meshwright": __version__,
        "cluster": {
            "ref": shown.reference,
            "text": cluster_toml.write(cluster),
            "hosts": cluster.hosts,
            "ranks": cluster.ranks,
            "link_matrix": [list(row) for row in cluster.matrix.rows] if cluster.matrix else None,
        },
        "pools": [_pool_json(pool) for pool in cluster.pools],
        "devices": [device.to_json() for device in shown.devices],
        "links": [_sample_json(sample) for sample in shown.samples],
        "totals": {
            "memory_bytes": shown.memory_bytes,
            "peaks_flops_per_s": shown.peaks_flops_per_s,
            "price_per_hour": shown.price_per_hour,
        },
        "weakest_provenance": shown.weakest.kind,
        "warnings": list(shown.warnings),
    }


def _pool_json(pool: Pool) -> dict[str, object]:
    return {
        "name": pool.name,
        "hosts": pool.hosts,
        "gpus_per_host": pool.gpus_per_host,
        "device": pool.device.name,
        "nics": [{"kind": nic.kind, "count": nic.count, "rate": nic.rate.to_json()} for nic in pool.adapters],
        "price_per_gpu_hour": pool.price.to_json() if pool.price else None,
        "hosts_per_island": pool.hosts_per_island,
    }


def _sample_json(sample: Sample) -> dict[str, object]:
    link = sample.link
    return {
        "where": sample.where,
        "tier": link.tier,
        "kind": link.kind,
        "ranks": list(sample.ranks),
        "bandwidth": link.bandwidth.to_json(),
        "latency": link.latency.to_json(),
        "sharers": link.sharers,
    }
