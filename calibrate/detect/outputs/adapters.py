"""Network adapters of a host, and those of them that carry what a training job sends.

In: `ibstat`, or /sys/class/infiniband, for adapters with RDMA; `ethtool`, or /sys/class/net, for the others. What
stands in /sys is one line for each file, path and content, as `grep . PATHS` prints it. Out: `Adapters`.

`kind` of an adapter with RDMA that does not say which is "".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.ir.errors import OutputBroken

BY_IBSTAT, BY_VERBS = "ibstat", "/sys/class/infiniband"
BY_ETHTOOL, BY_NET = "ethtool", "/sys/class/net"

LAYERS = {"InfiniBand": "infiniband", "Ethernet": "roce", "Unspecified": "ethernet"}
"""What adapters with verbs run on; EFA, which has none of both, is an Ethernet of its own."""

_IBSTAT = re.compile(r"^CA '(?P<name>[^']+)'", re.MULTILINE)
_ETHTOOL = re.compile(r"^Settings for (?P<name>[^\s:]+):", re.MULTILINE)
_VERBS_LINE = re.compile(r"\S*/infiniband/(?P<name>[^/]+)/ports/(?P<port>\d+)/(?P<key>\w+):(?P<value>.*)")
_NET_LINE = re.compile(r"\S*/net/(?P<name>[^/]+)/(?P<key>speed|operstate):(?P<value>.*)")
_MBPS = re.compile(r"(\d{1,9})\s*Mb/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One port. `gbps` is None where that is not said."""

    name: str
    kind: str
    gbps: float | None
    up: bool


@dataclass(frozen=True, slots=True)
class Adapters:
    """The ports that one tool lists."""

    adapters: tuple[Adapter, ...]


def is_ibstat(text: str) -> bool:
    return _IBSTAT.match(text.strip()) is not None


def is_ethtool(text: str) -> bool:
    return _ETHTOOL.match(text.strip()) is not None


def is_verbs(text: str) -> bool:
    return any(_VERBS_LINE.match(line.strip()) for line in text.splitlines())


def is_net(text: str) -> bool:
    return any(_NET_LINE.match(line.strip()) for line in text.splitlines())


def read_ibstat(text: str, place: str) -> Adapters:
    """The ports of every adapter."""
    found: list[Adapter] = []
    for name, block in _blocks(_IBSTAT, text):
        ports = re.split(r"^\s*Port (\d+):\s*$", block, flags=re.MULTILINE)
        for number, port in zip(ports[1::2], ports[2::2], strict=True):
            said = dict(_pairs(port))
            found.append(
                Adapter(
                    name=name if len(ports) == 3 else f"{name}:{number}",
                    kind=_layer(said.get("Link layer", "InfiniBand"), f"{place}, {name}"),
                    gbps=_number(said.get("Rate", "")),
                    up=said.get("State") == "Active",
                )
            )
    return Adapters(tuple(found))


def read_verbs(text: str, place: str) -> Adapters:
    """The ports under /sys/class/infiniband: rate, state and link layer."""
    ports: dict[tuple[str, str], dict[str, str]] = {}
    for line in text.splitlines():
        if one := _VERBS_LINE.match(line.strip()):
            ports.setdefault((one["name"], one["port"]), {})[one["key"]] = one["value"].strip()
    names = [name for name, _ in ports]
    return Adapters(
        tuple(
            Adapter(
                name=name if names.count(name) == 1 else f"{name}:{port}",
                kind=_layer(said.get("link_layer", "InfiniBand"), f"{place}, {name}"),
                gbps=_number(said.get("rate", "")),
                up="ACTIVE" in said.get("state", "ACTIVE"),
            )
            for (name, port), said in ports.items()
        )
    )


def read_ethtool(text: str, place: str) -> Adapters:
    """Interfaces with their speeds; `Unknown!` is none."""
    found = []
    for name, block in _blocks(_ETHTOOL, text):
        said = dict(_pairs(block))
        speed = _MBPS.search(said.get("Speed", ""))
        up = said.get("Link detected", "yes").startswith("yes")
        found.append(Adapter(name=name, kind="ethernet", gbps=int(speed[1]) / 1000 if speed else None, up=up))
    return Adapters(tuple(found))


def read_net(text: str, place: str) -> Adapters:
    """Interfaces under /sys/class/net, whose speeds are in Mb/s; -1, or no file, where there is none."""
    said: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if one := _NET_LINE.match(line.strip()):
            said.setdefault(one["name"], {})[one["key"]] = one["value"].strip()
    return Adapters(
        tuple(
            Adapter(
                name=name,
                kind="ethernet",
                gbps=int(speed) / 1000 or None if re.fullmatch(r"\d{1,9}", speed := values.get("speed", "")) else None,
                up=values.get("operstate", "up") in ("up", "unknown"),
            )
            for name, values in said.items()
        )
    )


def _blocks(heading: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Names of headings, with what stands below each."""
    found = list(heading.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    return [(one["name"], text[one.end() : end]) for one, end in zip(found, ends, strict=True)]


def _pairs(block: str) -> Iterable[tuple[str, str]]:
    for line in block.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _layer(layer: str, place: str) -> str:
    kind = LAYERS.get(layer.strip())
    if kind is None:
        raise OutputBroken(
            place=place,
            cause=f"its link layer is {layer[:40]!r}",
            fix=f"take it out, or correct it: {', '.join(LAYERS)}",
        )
    return kind


def _number(text: str) -> float | None:
    found = re.match(r"\d{1,6}(\.\d{1,6})?", text.strip())
    return float(found[0]) or None if found else None
