"""Devices: the datasheet figures of each accelerator, each number with its provenance.

The table is data, `profiles/devices.json`: named sources once, and for every device pairs of a value and the name of
its source. This module reads it into frozen `Device`s and finds them by name. What a plan needs of a device:

- *peaks*, dense matrix FLOP/s by dtype. Vendors print the sparse figure, twice as large; it never appears here. A dtype
  that the device has no matrix peak for is absent.
- *memory*, in bytes. Two traps meet. Datasheets count decimal gigabytes, so "80 GB" is 80e9 bytes and not 80 GiB; and
  what the driver reports is again something else (an "80 GB" H100 reports 81,559 MiB = 85.5e9 bytes, because HBM stacks
  are binary). Both are kept: `memory` from the datasheet, `driver_memory` where it was observed.
- *island*: the scale-up link (NVLink, xGMI, ICI) per device and **per direction**, and how many devices one domain
  joins. Datasheets add both directions up ("900 GB/s NVLink" is 450 each way). On a torus the figure is the sum over a
  chip's links.
- *host link*: PCIe or chip-to-chip, per direction; neighbours in a host that share no island talk through it. What
  waits in the host's memory crosses it (`cost_models.offload`), and there devices behind one switch share the way.
- *NIC*: what is usually found beside one device, the default where a cluster does not say. A device that has no usual
  NIC has no default either.

Latencies belong to a kind of link: `latency_of("nvlink4")`. Devices missing here are priced from peaks that the user
gives in the cluster's TOML (`[[device]]`), labelled `user`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.ir.errors import DeviceIncomplete, DeviceUnknown, LinkKindUnknown, PeakUnknown, closest

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "nvfp4", "mxfp4")
NIC_KINDS = ("infiniband", "roce", "ethernet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """The scale-up domain of a device: bytes/s of one device in one direction, and how many devices it joins.

    - It ends with the host, however few devices that has, unless it `spans_hosts` (NVL72 racks, TPU pods).
    - `segment`: devices that schedulers give a job of each island, where it has several; None: all.
    """

    kind: str
    bandwidth: Quantity
    size: Quantity
    spans_hosts: bool = False
    segment: Quantity | None = None

    @property
    def devices(self) -> int:
        return int(self.size.value)


LOOPBACK = "loopback"
"""The kind of the link between a device and its host where they are one: a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """The link between a device and its host, bytes/s in one direction, and the host behind it.

    - `sharers`: devices that share its way to the host's processors, where that is more than one.
    - `memory`: bytes/s of the host's own memory that each device has, in its usual host; None: not known.
    """

    kind: str
    bandwidth: Quantity
    sharers: Quantity | None = None
    memory: Quantity | None = None

    @property
    def share_bytes_per_s(self) -> float:
        """The rate of one device while all devices talk to their host."""
        return self.bandwidth.value / (self.sharers.value if self.sharers else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualNic:
    """The share of the network that one device usually gets, in Gb/s."""

    kind: str
    rate: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of accelerator.

    - It must have a peak for at least one dtype of `DTYPES`, listed in that order.
    - `like` names the entry that a user's own device took its other numbers from.
    """

    name: str
    vendor: str
    peaks: tuple[tuple[str, Quantity], ...]
    memory: Quantity
    memory_bandwidth: Quantity
    host_link: HostLink
    island: Island | None = None
    nic: UsualNic | None = None
    driver_memory: Quantity | None = None
    aliases: tuple[str, ...] = ()
    like: str = ""

    def __post_init__(self) -> None:
        dtypes = [dtype for dtype, _ in self.peaks]
        if not dtypes or dtypes != [dtype for dtype in DTYPES if dtype in dtypes]:
            raise DeviceIncomplete(
                place=f"device {self.name!r}",
                cause=f"its peaks are for {', '.join(dtypes) or 'nothing'}",
                fix=f"give at least one, of {', '.join(DTYPES)}, in this order",
            )

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype, _ in self.peaks)

    def peak(self, dtype: str) -> Quantity:
        """Dense matrix FLOP/s in a dtype."""
        for name, quantity in self.peaks:
            if name == dtype:
                return quantity
        raise PeakUnknown(
            place=f"device {self.name!r}",
            cause=f"it has no matrix peak for {dtype!r}",
            fix=f"use one of {', '.join(self.dtypes)}, or give {dtype}_tflops in a [[device]] like {self.name!r}",
        )

    def quantities(self) -> tuple[tuple[str, Quantity], ...]:
        """Every number, by name."""
        found = [(f"peak {dtype}", quantity) for dtype, quantity in self.peaks]
        found.append(("memory", self.memory))
        if self.driver_memory:
            found.append(("memory that the driver reports", self.driver_memory))
        found.append(("memory bandwidth", self.memory_bandwidth))
        if self.island:
            found += [(f"island, {self.island.kind}", self.island.bandwidth), ("island size", self.island.size)]
            if self.island.segment:
                found.append(("of several islands, each", self.island.segment))
        wire = self.host_link
        found.append((f"host link, {wire.kind}", wire.bandwidth))
        if wire.sharers:
            found.append(("devices that share it", wire.sharers))
        if wire.memory:
            found.append(("host memory bandwidth, each", wire.memory))
        if self.nic:
            found.append((f"usual NIC, {self.nic.kind}", self.nic.rate))
        return tuple(found)

    def to_json(self) -> dict[str, object]:
        """The device, every number with its provenance."""
        return {
            "name": self.name,
            "vendor": self.vendor,
            "like": self.like,
            "island_spans_hosts": bool(self.island and self.island.spans_hosts),
            "numbers": [{"name": name, **quantity.to_json()} for name, quantity in self.quantities()],
        }


def device(name: str) -> Device:
    """The device of a name or alias, whatever its case, dashes and blanks."""
    found = _by_name().get(_key(name))
    if found is None:
        raise DeviceUnknown(place=f"device {name!r}", cause="it is not in the table of devices", fix=unknown_fix(name))
    return found


def unknown_fix(name: str, own: Iterable[str] = ()) -> str:
    """The remedy for an unknown device: the nearest known ones, and how to describe one's own."""
    own_names = {_key(one): one for one in own}
    known = {key: found.name for key, found in _by_name().items()} | own_names
    close = closest(_key(name), known, most=6, cutoff=0.4)
    names = list(dict.fromkeys(known[key] for key in close))[:3] or list(device_names())
    return (
        f"the nearest known ones are {', '.join(names)}; or give its peaks in the cluster's TOML:\n"
        f'[[device]]\nname = "{name}"\nbf16_tflops = 500\nmemory_gb = 80\nmemory_gb_per_s = 3000\nhost_gb_per_s = 63'
    )


def device_names() -> tuple[str, ...]:
    return tuple(found.name for found in devices())


@cache
def devices() -> tuple[Device, ...]:
    """Every device of the table, in its order."""
    table = _table()
    return tuple(_read(entry, table["sources"]) for entry in table["devices"])


def latency_of(kind: str) -> Quantity:
    """The latency of one hop over a kind of link; a generation, as in nvlink4, does not matter."""
    table = _table()
    latencies = table["link_latency_s"]
    family = kind if kind in latencies else kind.rstrip("0123456789")
    if family not in latencies:
        raise LinkKindUnknown(
            place=f"link {kind!r}", cause="no latency is known for this kind", fix=f"use {', '.join(latencies)}"
        )
    return _quantity(latencies[family], "s", table["sources"])


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


@cache
def _by_name() -> dict[str, Device]:
    return {_key(name): found for found in devices() for name in (found.name, *found.aliases)}


@cache
def _table() -> dict[str, Any]:
    text = resources.files("meshwright.cost_models").joinpath("profiles", "devices.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _quantity(pair: tuple[float, str], unit: str, sources: dict[str, Any]) -> Quantity:
    value, name = pair
    source = sources[name]
    return Quantity(value=float(value), unit=unit, source=source["document"], date=source["date"], kind=source["kind"])


def _read(entry: dict[str, Any], sources: dict[str, Any]) -> Device:
    def number(pair: tuple[float, str], unit: str) -> Quantity:
        return _quantity(pair, unit, sources)

    def optional(pair: tuple[float, str] | None, unit: str) -> Quantity | None:
        return number(pair, unit) if pair else None

    island, nic, driver, wire = (
        entry.get("island"),
        entry.get("nic"),
        entry.get("driver_memory_bytes"),
        entry["host_link"],
    )
    return Device(
        name=entry["name"],
        vendor=entry["vendor"],
        aliases=tuple(entry["aliases"]),
        peaks=tuple((dtype, number(pair, "flop/s")) for dtype, pair in entry["peaks_flops_per_s"].items()),
        memory=number(entry["memory_bytes"], "bytes"),
        driver_memory=optional(driver, "bytes"),
        memory_bandwidth=number(entry["memory_bytes_per_s"], "bytes/s"),
        island=Island(
            kind=island["kind"],
            bandwidth=number(island["bytes_per_s"], "bytes/s"),
            size=number(island["size"], "devices"),
            spans_hosts=island["spans_hosts"],
            segment=optional(island.get("segment"), "devices"),
        )
        if island
        else None,
        host_link=HostLink(
            kind=wire["kind"],
            bandwidth=number(wire["bytes_per_s"], "bytes/s"),
            sharers=optional(wire.get("sharers"), "devices"),
            memory=optional(wire.get("memory_bytes_per_s"), "bytes/s"),
        ),
        nic=UsualNic(kind=nic["kind"], rate=number(nic["gbps"], "Gb/s")) if nic else None,
    )
