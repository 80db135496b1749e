"""A cluster in which something is otherwise, by the keys of its text forms: what --what-if asks of it.

    Cluster, wishes (a key and its value, of one pool or link, or of all) -> Cluster

Keys are those of the shorthand (`text`) and of the file (`schema`), and so are their values and what is refused:

    cluster                     another cluster altogether
    hosts, gpus_per_host, …     of pools; adapters that each device has to itself are as many as devices then
    inter, nic, price           of pools, as in the shorthand
    memory_gb, island_gb_per_s  and all other numbers of devices: of a device that is like the one there is
    gbps, latency_us            of links between pools

Wishes are granted in the order of this table, whatever order they are given in. What would change nothing that a price
is made of is refused: rates between hosts where a link matrix has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import NIC_KINDS, device
from meshwright.cost_models.hardware.parts import Nic, Pool, PoolLink
from meshwright.cost_models.hardware.schema import DeviceTable, LinkTable, PoolTable
from meshwright.cost_models.hardware.text import nics_of, price_of, read_cluster
from meshwright.cost_models.hardware.toml import ISLAND, KINDS, variant
from meshwright.ir.errors import ChangeImpossible, instead, within
from meshwright.ir.files.documents import parse_value
from meshwright.ir.files.schema import Table, faults_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A key and its value, as they are written; `of` names a pool, or a link as `one-other`, and is empty for all."""

    key: str
    text: str
    of: str = ""

    @property
    def place(self) -> str:
        """The wish as the command line takes it."""
        return f"--what-if {f'{self.of}.' if self.of else ''}{self.key}={self.text}"

    def read(self, table: type[Table], known: Mapping[str, Any]) -> Any:
        """The table with this key, beside keys that are known."""
        found, refused = faults_of(table, {**known, self.key: parse_value(self.text)})
        for one in refused:
            raise KINDS[one.kind](place=self.place, cause=one.cause, fix=one.fix)
        return found

    def impossible(self, cause: str, fix: str) -> ChangeImpossible:
        """The refusal of a wish that the cluster cannot be granted."""
        return ChangeImpossible(place=self.place, cause=cause, fix=fix)


Grant = Callable[[Cluster, Wish], Cluster]


def changed(cluster: Cluster, wishes: Iterable[Wish]) -> Cluster:
    """The cluster with all wishes granted."""
    order = list(KEYS)
    for wish in sorted(wishes, key=lambda one: order.index(one.key)):
        with within(wish.place):
            cluster = KEYS[wish.key](cluster, wish)
    return cluster


def with_ranks(cluster: Cluster, ranks: int) -> Cluster | None:
    """The cluster of one pool with so many devices: on whole hosts, or on a part of one; None if they are neither."""
    (pool,) = cluster.pools
    if ranks < pool.gpus_per_host:
        return replace(cluster, pools=(_per_host(replace(pool, hosts=1), ranks),))
    hosts, left = divmod(ranks, pool.gpus_per_host)
    return None if left else replace(cluster, pools=(replace(pool, hosts=hosts),))


# Pools ---------------------------------------------------------------------------------------------------------------


def _of_pools(change: Callable[[Pool, Wish], Pool]) -> Grant:
    """A change of the pool that a wish names, or of all."""

    def grant(cluster: Cluster, wish: Wish) -> Cluster:
        names = [pool.name for pool in cluster.pools]
        if wish.of and wish.of not in names:
            raise wish.impossible(f"there is no pool {wish.of!r}", instead(wish.of, names))
        pools = tuple(change(pool, wish) if wish.of in ("", pool.name) else pool for pool in cluster.pools)
        now = {pool.name: new.name for pool, new in zip(cluster.pools, pools, strict=True)}
        links = tuple(replace(link, between=(now[link.between[0]], now[link.between[1]])) for link in cluster.links)
        return replace(cluster, pools=pools, links=links)

    return grant


def _between_hosts(change: Callable[[Pool, Wish], Pool]) -> Grant:
    """A change of what is between hosts, which a link matrix would take the place of."""
    pools = _of_pools(change)

    def grant(cluster: Cluster, wish: Wish) -> Cluster:
        if cluster.matrix is not None:
            raise wish.impossible("rates between hosts are those of a link matrix", "change the matrix of the file")
        return pools(cluster, wish)

    return grant


def _number(pool: Pool, wish: Wish) -> Pool:
    """A pool with another number of hosts, or of devices in an island."""
    return replace(pool, **{wish.key: getattr(wish.read(PoolTable, _as_table(pool)), wish.key)})


def _gpus(pool: Pool, wish: Wish) -> Pool:
    return _per_host(pool, wish.read(PoolTable, _as_table(pool)).gpus_per_host)


def _per_host(pool: Pool, gpus: int) -> Pool:
    """A pool of hosts with so many devices; adapters that each has to itself stay beside it."""
    nics = tuple(replace(nic, count=gpus) if nic.count == pool.gpus_per_host else nic for nic in pool.nics)
    return replace(pool, gpus_per_host=gpus, nics=nics)


def _as_table(pool: Pool) -> dict[str, Any]:
    """What a file must say of a pool."""
    known = {"name": pool.name, "gpu": pool.device.name, "hosts": pool.hosts, "gpus_per_host": pool.gpus_per_host}
    return known | ({"gpus_per_island": pool.gpus_per_island} if pool.gpus_per_island else {})


def _gpu(pool: Pool, wish: Wish) -> Pool:
    """A pool of other devices; one that is named after its device is named after the new one."""
    new = device(wish.text)
    return replace(pool, device=new, name=new.name if pool.name == pool.device.name else pool.name)


def _device(pool: Pool, wish: Wish) -> Pool:
    """A pool of devices that are like the ones there are, but for one number."""
    base = pool.device
    if wish.key in ISLAND and base.island is None:
        raise wish.impossible(f"{base.name} has no scale-up link", "describe one in a [[device]] of the cluster's file")
    known = {"name": f"{base.name}, {wish.key}={wish.text}", "like": base.like or base.name}
    return replace(pool, device=variant(base, wish.read(DeviceTable, known)))


def _inter(pool: Pool, wish: Wish) -> Pool:
    kind = {"nic": pool.adapters[0].kind} if pool.adapters else {}
    return replace(pool, nics=nics_of(wish.place, kind | {"inter": wish.text}, pool.device, pool.gpus_per_host))


def _nic(pool: Pool, wish: Wish) -> Pool:
    if wish.text not in NIC_KINDS or not pool.adapters:
        nics_of(wish.place, {"nic": wish.text}, pool.device, pool.gpus_per_host)  # which refuses it
    return replace(pool, nics=tuple(Nic(kind=wish.text, rate=one.rate, count=one.count) for one in pool.adapters))


def _price(pool: Pool, wish: Wish) -> Pool:
    return replace(pool, price=price_of(wish.place, wish.text))


# The rest ------------------------------------------------------------------------------------------------------------


def _whole(_: Cluster, wish: Wish) -> Cluster:
    return read_cluster(wish.text)


def _link(cluster: Cluster, wish: Wish) -> Cluster:
    """The rate or the latency of a link between pools, or of all."""
    if not cluster.links:
        fix = "between hosts of a pool it is inter, as in inter=800G; latencies are those of the kind of link"
        raise wish.impossible("the cluster has no links between pools", fix)
    named = ["-".join(link.between) for link in cluster.links]
    if wish.of and wish.of not in named:
        raise wish.impossible(f"there is no link {wish.of!r}", instead(wish.of, named))

    def change(link: PoolLink) -> PoolLink:
        if wish.of not in ("", "-".join(link.between)):
            return link
        known = {"between": list(link.between), "kind": link.kind, "gbps": 1}
        table = wish.read(LinkTable, known)
        return replace(link, rate=table.gbps) if wish.key == "gbps" else replace(link, latency=table.latency_us)

    return replace(cluster, links=tuple(map(change, cluster.links)))


KEYS: Mapping[str, Grant] = {
    "cluster": _whole,
    "gpu": _of_pools(_gpu),
    "hosts": _of_pools(_number),
    "gpus_per_host": _of_pools(_gpus),
    "gpus_per_island": _of_pools(_number),
    **{key: _of_pools(_device) for key in DeviceTable.model_fields if key not in ("name", "like")},
    "inter": _between_hosts(_inter),
    "nic": _between_hosts(_nic),
    "price": _of_pools(_price),
    "gbps": _link,
    "latency_us": _link,
}
"""What can be otherwise in a cluster, by key, in the order in which it is made so."""
