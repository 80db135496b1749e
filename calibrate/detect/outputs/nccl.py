"""The topology that NCCL finds, as `NCCL_TOPO_DUMP_FILE` keeps it: GPUs, NVLinks, PCIe links, adapters.

In: XML: a `system` of processors, under which PCI devices are nested as they are plugged in; a GPU lists its NVLinks by
what they lead to, a switch (class 0x068000) or the bus number of another GPU. Out: `System`. It names no GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from meshwright.calibrate.detect.outputs.adapters import Adapter
from meshwright.calibrate.detect.outputs.topo import Links, Wiring, islands
from meshwright.ir.errors import OutputBroken
from meshwright.ir.limits import DEPTH

BY = "NCCL's topology"
SWITCH = "0x068000"
"""The PCI class of a bridge that is neither PCI nor of a host: an NVSwitch."""

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Of PCIe, by GT/s of a lane."""

_RATE = re.compile(r"(\d+(\.\d+)?) GT/s")
_INTERFACE = re.compile(r"eth|en[opsx]\d|bond\d|ib\d")
_FIX = "let NCCL write it again: NCCL_TOPO_DUMP_FILE=system.xml"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What NCCL knows of a host."""

    wiring: Wiring
    pcie: tuple[tuple[int, int] | None, ...]
    """Generation and lanes of each GPU's link."""
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A device in the tree, with the PCI devices around it from the outermost on."""

    element: ElementTree.Element
    around: tuple[ElementTree.Element, ...]


def is_system(text: str) -> bool:
    """Whether a text is such XML."""
    return re.match(r"(<\?xml[^>]*>)?\s*(<!--.*?-->\s*)*<system\b", text.strip(), re.DOTALL) is not None


def read_system(text: str, place: str) -> System:
    """The topology of a host."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise OutputBroken(place=place, cause="it declares a type of document, which NCCL does not", fix=_FIX)
    try:
        root = ElementTree.fromstring(text.strip())
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise OutputBroken(place=place, cause=f"it is no XML: {error}", fix=_FIX) from None
    found = _walk(root, place)
    gpus = sorted(
        (one for one in found if one.element.tag == "gpu"), key=lambda one: _count(one.element.get("dev"), place)
    )
    nets = [one for one in found if one.element.tag == "net"]
    return System(
        wiring=_wiring(gpus, nets, place),
        pcie=tuple(_pcie(one.around[-1]) if one.around else None for one in gpus),
        adapters=tuple(
            Adapter(
                name=_name(one), kind=_kind(one), gbps=_count(one.element.get("speed"), place) / 1000 or None, up=True
            )
            for one in nets
        ),
    )


def _walk(root: ElementTree.Element, place: str) -> list[_Seen]:
    """All GPUs and adapters, in the order of the text."""
    found: list[_Seen] = []
    waiting: list[tuple[ElementTree.Element, tuple[ElementTree.Element, ...]]] = [(root, ())]
    while waiting:
        one, above = waiting.pop()
        if one.tag in ("gpu", "net"):
            found.append(_Seen(element=one, around=above))
        inner = (*above, one) if one.tag == "pci" else above
        if cause := DEPTH.refused(len(inner)):
            raise OutputBroken(place=place, cause=cause, fix=_FIX)
        waiting += [(child, inner) for child in reversed(one)]
    return found


def _wiring(gpus: list[_Seen], nets: list[_Seen], place: str) -> Wiring:
    numbers = {one.around[-1].get("busid", "").lower(): index for index, one in enumerate(gpus) if one.around}
    switched: list[int] = []
    neighbours: list[list[int]] = []
    links: list[Links] = []
    for index, one in enumerate(gpus):
        ways = one.element.findall("nvlink")
        counts = [_count(way.get("count"), place) for way in ways]
        on_switch = any(way.get("tclass") == SWITCH for way in ways)
        switched += [index] if on_switch else []
        reached = [numbers[target] for way in ways if (target := way.get("target", "").lower()) in numbers]
        neighbours.append(reached)
        to_others = [count for way, count in zip(ways, counts, strict=True) if way.get("target", "").lower() in numbers]
        used = sum(counts) if on_switch else sum(to_others)
        links.append(Links(most=used if on_switch else max(to_others, default=0), together=used))
    for index in switched:
        neighbours[index] += [other for other in switched if other != index]
    outermost = {id(one.around[0]) for one in gpus if len(one.around) > 1}
    near = {_name(net) for net in nets if net.around and id(net.around[0]) in outermost}
    return Wiring(
        gpus=len(gpus),
        islands=islands(neighbours),
        links=tuple(links),
        adapters=tuple(map(_name, nets)),
        beside=frozenset(near),
    )


def _name(net: _Seen) -> str:
    return net.element.get("name", "")


def _kind(net: _Seen) -> str:
    """Sockets are called as interfaces are; of an adapter with RDMA, NCCL does not say which kind it is."""
    return "ethernet" if _INTERFACE.match(_name(net)) else ""


def _pcie(device: ElementTree.Element) -> tuple[int, int] | None:
    """Generation and lanes; None where NCCL found none, as in some virtual machines."""
    rate = _RATE.match(device.get("link_speed", ""))
    generation = GENERATIONS.get(float(rate[1])) if rate else None
    width = device.get("link_width", "")
    return (generation, int(width)) if generation and re.fullmatch(r"[1-9]\d?", width) else None


def _count(text: str | None, place: str) -> int:
    if text is None or not re.fullmatch(r"\d{1,9}", text):
        raise OutputBroken(place=place, cause=f"{text!r} stands where NCCL writes a whole number", fix=_FIX)
    return int(text)
