"""Hosts as pools of equal ones, and links between pools.

In: what was gathered of hosts, and the lists that name them. Out: `Found`. A host of a list is described by the
outputs in a folder of its name, else by those of no host in particular, else as the only kind of host that was read:
it is declared to be one. Hosts are equal where their numbers are, however these were read.

No output tells what lies between two pools: a link stands for a fabric that is nowhere narrower than the NICs of the
smaller end, and is labelled assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from meshwright.calibrate.detect.hosts import host_of
from meshwright.calibrate.detect.outputs.names import BY_HOSTFILE, Declared
from meshwright.calibrate.detect.outputs.sources import Gathered, Source
from meshwright.calibrate.detect.told import Host, Told
from meshwright.cost_models.hardware.devices import device
from meshwright.ir.errors import MachineUndescribed, NicsUnknown, OutputsContradict


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPool:
    """Equal hosts, in the order in which they were listed; names are empty where nobody said them."""

    name: str
    host: Host
    hosts: Told
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLink:
    """A link between two pools."""

    between: tuple[str, str]
    kind: str
    gbps: Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A cluster as outputs describe it; each remark is one thing that its file cannot say."""

    pools: tuple[FoundPool, ...]
    links: tuple[FoundLink, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A host of the cluster; `read`: whether outputs are of this very host."""

    name: str
    host: Host
    read: bool


def found(gathered: Gathered, like: str | None = None) -> Found:
    """The cluster that was gathered."""
    described = {name: host_of(sources, name or "these outputs", like) for name, sources in gathered.hosts}
    listed, remarks = _listed(gathered.shared)
    if listed is None:
        named = [_Named(name=name, host=host, read=True) for name, host in described.items()]
        if not named:
            host_of((), "these outputs", like)
    else:
        assert isinstance(listed.facts, Declared), "lists are what is shared"
        named = _declared(listed, listed.facts, described)
    pools = _pools(named, listed.by if listed else "")
    several = len(named) > 1
    for pool in pools:
        if several and pool.host.nics is None and device(pool.host.gpu).nic is None:
            raise NicsUnknown(
                place=f"pool {pool.name!r}",
                cause=f"there are {len(named)} hosts, and no output tells what joins them",
                fix="add the output of `ibstat`, of `ethtool eth0 …`, or of `grep . /sys/class/net/*/speed`",
            )
    return Found(
        pools=pools,
        links=tuple(_link(one, other) for one, other in combinations(pools, 2)),
        remarks=(*gathered.remarks, *remarks),
    )


def _listed(shared: tuple[Source, ...]) -> tuple[Source | None, tuple[str, ...]]:
    """The list of hosts that counts: a hostfile, which somebody wrote for this, before Slurm's."""
    ordered = sorted(shared, key=lambda one: one.by != BY_HOSTFILE)
    if not ordered:
        return None, ()
    first = ordered[0]
    for other in ordered[1:]:
        if other.by == first.by and other.facts != first.facts:
            raise OutputsContradict(
                place=other.place, cause=f"it lists other hosts than {first.place}", fix="give one list of hosts"
            )
    return first, tuple(f"{one.place} is passed over for {first.place}" for one in ordered[1:] if one.by != first.by)


def _declared(listed: Source, hosts: Declared, described: dict[str, Host]) -> list[_Named]:
    """The hosts of a list, each as it is described."""
    names = hosts.names or ("",) * len(hosts.slots)
    strange = [name for name in described if name and _match(name, names) is None]
    if strange and hosts.names:
        raise OutputsContradict(
            place=strange[0],
            cause=f"{listed.place} lists no such host",
            fix="call each folder as the list calls its host; or give the files in it, for every host",
        )
    return [_of_list(name, slots, listed, described) for name, slots in zip(names, hosts.slots, strict=True)]


def _match(name: str, names: tuple[str, ...]) -> str | None:
    """A name in a list of others, with its domain or without."""
    short = name.partition(".")[0]
    return next((one for one in names if one in (name, short) or one.partition(".")[0] == name), None)


def _of_list(name: str, slots: int, listed: Source, described: dict[str, Host]) -> _Named:
    own = _match(name, tuple(described)) if name else None
    kinds = list(dict.fromkeys(described.values()))
    general = described.get("") or (kinds[0] if len(kinds) == 1 else None)
    host = described[own] if own else general
    if host is None:
        raise MachineUndescribed(
            place=f"host {name!r}" if name else listed.place,
            cause="no output is of this host, and those of others differ" if kinds else "no output describes a host",
            fix="put its outputs into a folder of its name, and give the folder",
        )
    if slots > host.count.value:
        raise OutputsContradict(
            place=f"{listed.place}, host {name!r}" if name else listed.place,
            cause=f"{slots} devices are declared, and {host.count.value:g} were read ({host.count.by})",
            fix="correct the list, or give the outputs of this host",
        )
    if slots and slots != host.count.value:
        host = replace(host, count=Told(slots, "declared", f"{listed.by}, of {host.count.value:g} that were read"))
    return _Named(name=name, host=host, read=own is not None)


def _pools(named: list[_Named], by: str) -> tuple[FoundPool, ...]:
    groups: dict[Host, list[_Named]] = {}
    for one in named:
        groups.setdefault(one.host, []).append(one)
    taken: dict[str, int] = {}
    pools = []
    for host, members in groups.items():
        stem = host.gpu.lower()
        taken[stem] = taken.get(stem, 0) + 1
        remarks = tuple(dict.fromkeys(remark for one in members for remark in one.host.remarks))
        pools.append(
            FoundPool(
                name=stem if taken[stem] == 1 else f"{stem}-{taken[stem]}",
                host=replace(host, remarks=remarks),
                hosts=_count(members, by),
                names=tuple(one.name for one in members if one.name),
            )
        )
    return tuple(pools)


def _count(members: list[_Named], by: str) -> Told:
    read = sum(one.read for one in members)
    if not by:
        return Told(len(members), "measured", f"outputs of {'one host' if read == 1 else f'{read} hosts'}")
    return Told(len(members), "declared", by if read == len(members) else f"{by}, as equal to a host that was read")


def _link(one: FoundPool, other: FoundPool) -> FoundLink:
    ends = [_end(pool) for pool in (one, other)]
    gbps, name = min((gbps, name) for _, gbps, name in ends)
    kinds = {kind for kind, _, _ in ends}
    return FoundLink(
        between=(one.name, other.name),
        kind=ends[0][0] if len(kinds) == 1 else "ethernet",
        gbps=Told(gbps, "assumed", f"all NICs of {name!r} together, over a fabric that is nowhere narrower"),
    )


def _end(pool: FoundPool) -> tuple[str, float, str]:
    """The kind and the rate of all NICs of a pool, and its name."""
    nics, usual = pool.host.nics, device(pool.host.gpu).nic
    if nics is not None:
        return nics.kind, pool.hosts.value * nics.count.value * nics.gbps.value, pool.name
    assert usual is not None, "a pool without NICs was refused"
    return usual.kind, pool.hosts.value * pool.host.count.value * usual.rate.value, pool.name
