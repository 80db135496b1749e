"""The adapters of a host that carry what a training job sends.

In: ports that tools list, those that NCCL lists, and what drawings say of their places. Out: `Nics`, equal ports with
one rate, and remarks on the others. Kept are, in this order:

1. ports that are up;
2. those that share a PCIe switch with a GPU, where any does: the others of such a host serve storage and logins;
3. InfiniBand before RoCE before Ethernet, as NCCL takes sockets only where it has no RDMA;
4. the fastest.

A kind or a rate that no output says is the usual one beside the device, labelled so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshwright.calibrate.detect.outputs.adapters import Adapter, Adapters
from meshwright.calibrate.detect.outputs.nccl import System
from meshwright.calibrate.detect.outputs.sources import Source
from meshwright.calibrate.detect.outputs.topo import Wiring
from meshwright.calibrate.detect.told import Known, Nics, Told
from meshwright.cost_models.hardware.devices import UsualNic

ORDER = ("infiniband", "roce", "", "ethernet")
"""Of kinds; "": one with RDMA that does not say which."""

VIRTUAL = (
    "lo",
    "docker",
    "veth",
    "virbr",
    "br-",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "tun",
    "tap",
    "ifb",
    "dummy",
    "vxlan",
)
"""What names of interfaces without a wire begin with."""

USUAL = "usual beside this device"
MEASURED: Known = "measured"
DATASHEET: Known = "datasheet"
ASSUMED: Known = "assumed"


@dataclass(frozen=True, slots=True)
class Port:
    """A port, and the tool that lists it."""

    adapter: Adapter
    by: str

    @property
    def name(self) -> str:
        return self.adapter.name.partition(":")[0]


def nics_of(sources: tuple[Source, ...], usual: UsualNic | None) -> tuple[Nics | None, tuple[str, ...]]:
    """The adapters of a host, and what is to be said of those that are left out."""
    ports = _ports(sources)
    beside = frozenset[str]().union(*(wiring.beside for wiring, _ in wirings_of(sources)))
    if ports:
        kept, remarks = _chosen(ports, beside)
        return _nics(kept, usual, remarks)
    for wiring, source in wirings_of(sources):
        count = len(wiring.beside) or len(wiring.adapters)
        if count and usual is not None:
            return Nics(
                kind=usual.kind,
                kind_known="datasheet",
                kind_by=USUAL,
                gbps=Told(usual.rate.value, "datasheet", USUAL),
                count=Told(count, "measured", source.by),
            ), ()
        if count:
            return None, (f"{source.by} shows adapters and no rates: `ibstat` or `ethtool` would tell",)
    return None, ()


def wirings_of(sources: tuple[Source, ...]) -> list[tuple[Wiring, Source]]:
    """What is drawn of a host: by the driver, then by NCCL."""
    drawn = [(one.facts, one) for one in sources if isinstance(one.facts, Wiring)]
    return drawn + [(one.facts.wiring, one) for one in sources if isinstance(one.facts, System)]


def _ports(sources: tuple[Source, ...]) -> list[Port]:
    """The ports that tools list, each as the first of them has it; NCCL's where no tool lists any."""
    found: dict[str, Port] = {}
    for one in sources:
        if isinstance(one.facts, Adapters):
            for adapter in one.facts.adapters:
                found.setdefault(adapter.name, Port(adapter, one.by))
    if any(port.adapter.kind != "ethernet" for port in found.values()):
        return list(found.values())
    nccl = [Port(port, one.by) for one in sources if isinstance(one.facts, System) for port in one.facts.adapters]
    return [*nccl, *found.values()]


def _chosen(ports: list[Port], beside: frozenset[str]) -> tuple[list[Port], tuple[str, ...]]:
    wired = _wired(ports)
    up = [one for one in wired if one.adapter.up and (one.adapter.gbps or one.adapter.kind != "ethernet")]
    near = [one for one in up if one.name in beside] or up
    best = next((kept for kind in ORDER if (kept := [one for one in near if one.adapter.kind == kind])), [])
    fastest = max((one.adapter.gbps or 0.0 for one in best), default=0.0)
    kept = [one for one in best if (one.adapter.gbps or 0.0) == fastest]
    down = [one for one in wired if one not in up]
    far = [one for one in up if one not in near and one.adapter.kind != "ethernet"]
    others = [one for one in up if one not in kept and one not in far]
    return kept, (
        *_left_out("no link or no speed", down),
        *_left_out("no PCIe switch in common with a GPU", far),
        *_left_out("slower, or of another kind", others),
    )


def _wired(ports: list[Port]) -> list[Port]:
    """Ports with a wire; a bond stands for the interfaces that it joins."""
    wired = [one for one in ports if one.adapter.kind != "ethernet" or not one.name.startswith(VIRTUAL)]
    bonds = [one for one in wired if one.adapter.kind == "ethernet" and one.name.startswith("bond")]
    return [one for one in wired if one.adapter.kind != "ethernet" or one in bonds or not bonds]


def _left_out(why: str, ports: Iterable[Port]) -> Iterator[str]:
    if names := ", ".join(port.adapter.name for port in ports):
        yield f"left out ({why}): {names}"


def _nics(kept: list[Port], usual: UsualNic | None, remarks: tuple[str, ...]) -> tuple[Nics | None, tuple[str, ...]]:
    if not kept:
        return None, remarks
    first = kept[0]
    rate = first.adapter.gbps
    if rate is not None:
        gbps = Told(rate, "measured", first.by)
    elif usual is not None:
        gbps = Told(usual.rate.value, "datasheet", USUAL)
    else:
        return None, (*remarks, f"{first.by} says no rate of {first.adapter.name}")
    if first.adapter.kind:
        kind, known, by = first.adapter.kind, MEASURED, first.by
    elif usual is not None:
        kind, known, by = usual.kind, DATASHEET, USUAL
    else:
        kind, known, by = "infiniband", ASSUMED, "an adapter with RDMA, whose link layer no output tells"
    if kind == "ethernet" and usual is not None and usual.kind != kind:
        remarks = (*remarks, f"usual beside this device is {usual.kind}: where there is any, `ibstat` would tell")
    return Nics(
        kind=kind, kind_known=known, kind_by=by, gbps=gbps, count=Told(len(kept), "measured", first.by)
    ), remarks
