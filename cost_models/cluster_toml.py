"""Clusters as TOML: reading with every fault at once and by line, and writing what reads back as the same cluster.

    price_per_gpu_hour = 2.5                    # of all pools that give none

    [[pool]]
    name = "fast"
    hosts = 16
    gpu = "H100"                                # a device of the table, or of a [[device]] below
    gpus_per_host = 8
    nics = [{ kind = "infiniband", gbps = 400, count = 8 }]     # left out: the device's usual ones

    [[link]]
    between = ["fast", "old"]
    kind = "ethernet"
    gbps = 800                                  # of the whole link, one direction
    latency_us = 20

    [[device]]
    name = "H100-oc"
    like = "H100"                               # what is not given is taken from this one
    bf16_tflops = 1100                          # dense

`link_matrix` names a CSV beside the file, or is a list of rows. Nothing is ignored: an unknown key is refused with the
nearest known one. The reader goes through the whole text, collects faults, and raises the only one, or all as
`ClusterFaults` in the order of their lines. TOML parsers keep no lines, so `Lines` finds a key's line by reading
headers and keys again; where a value spans lines, it is the line of the key.

Decimal numbers are read exactly and scaled before they become floats, so writing and reading again changes no bit.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from meshwright.cost_models.cluster import Cluster, LinkMatrix, Nic, Pool, PoolLink, faults, spelled
from meshwright.cost_models.hardware import (
    DTYPES,
    NIC_KINDS,
    Device,
    HostLink,
    Island,
    device,
    unknown_fix,
)
from meshwright.cost_models.quantity import Quantity, given
from meshwright.ir.errors import (
    ClusterError,
    ClusterFaults,
    ClusterFileMissing,
    ClusterFileNotToml,
    ClusterKeyMissing,
    ClusterKeyUnknown,
    ClusterValueBad,
    DeviceUnknown,
    LinkMatrixValue,
    MeshwrightError,
    PoolRepeated,
    nearest,
)

Path_ = tuple[str | int, ...]

TOP_KEYS = ("price_per_gpu_hour", "link_matrix", "pool", "link", "device")
POOL_KEYS = ("name", "hosts", "gpu", "gpus_per_host", "nics", "price_per_gpu_hour")
NIC_KEYS = ("kind", "gbps", "count")
LINK_KEYS = ("between", "kind", "gbps", "latency_us")
TFLOPS = {f"{dtype}_tflops": dtype for dtype in DTYPES}
DEVICE_NUMBERS = (
    "memory_gb", "memory_gb_per_s", "host_gb_per_s", "host_memory_gb_per_s", "island_gb_per_s", "island_size",
)  # fmt: skip
DEVICE_KEYS = ("name", "like", *TFLOPS, *DEVICE_NUMBERS, "island_kind", "island_spans_hosts")
ISLAND_KINDS = ("nvlink", "xgmi", "ici", "pcie")

TERA, GIGA, MICRO = Decimal(10**12), Decimal(10**9), Decimal("1e-6")


def read(text: str, *, place: str = "cluster", folder: Path | None = None) -> Cluster:
    """The cluster that a TOML text describes; `folder` is where a link matrix is looked for."""
    return _Reader(text, place, folder or Path()).cluster()


class Lines:
    """Lines of keys in a TOML text, by path."""

    def __init__(self, text: str) -> None:
        self._text = text.split("\n")
        self._line: dict[Path_, int] = {}
        counts: dict[Path_, int] = {}
        table: Path_ = ()
        for number, line in enumerate(self._text, 1):
            if header := re.match(r"\s*\[\[?\s*([\w.\s-]+?)\s*\]", line):
                table = ()
                names = [name.strip() for name in header[1].split(".")]
                for position, name in enumerate(names):
                    table = (*table, name)
                    if line.lstrip().startswith("[[") and position == len(names) - 1:
                        counts[table] = counts.get(table, -1) + 1
                    if table in counts:
                        table = (*table, counts[table])
                self._line.setdefault(table, number)
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line):
                self._line.setdefault((*table, key[1]), number)

    def of(self, path: Path_) -> int:
        """The line of a path, or of the nearest thing around it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._line:
                inside = [step for step in path[end:] if isinstance(step, int)]
                return self._brace(self._line[path[:end]], inside[0]) if inside else self._line[path[:end]]
        return 1

    def _brace(self, line: int, index: int) -> int:
        """Where the inline table number `index` opens, from a line on."""
        for number in range(line, len(self._text) + 1):
            index -= self._text[number - 1].count("{")
            if index < 0:
                return number
        return line


class _Reader:
    """One pass over the tables of a text. Methods return None where they have noted a fault."""

    def __init__(self, text: str, place: str, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.lines = Lines(text)
        self.noted: list[tuple[int, MeshwrightError]] = []
        try:
            self.given: dict[str, Any] = tomllib.loads(text, parse_float=Decimal)
        except tomllib.TOMLDecodeError as error:
            raise ClusterFileNotToml(
                place=place, cause=str(error), fix="correct the line; strings need quotes"
            ) from None

    def cluster(self) -> Cluster:
        top = self.given
        self.known(top, (), TOP_KEYS)
        own = self.devices()
        price = self.price(top, ())
        tables = self.tables(top, "pool")
        pools = [self.pool(table, ("pool", index), own, price) for index, table in enumerate(tables)]
        links = [self.link(table, ("link", index)) for index, table in enumerate(self.tables(top, "link"))]
        matrix = self.matrix(top)
        whole = [pool for pool in pools if pool], [link for link in links if link]
        # A part that could not be read would be blamed on the others.
        if len(whole[0]) == len(pools) and len(whole[1]) == len(links):
            for path, kind, cause, fix in faults(tuple(whole[0]), tuple(whole[1]), matrix):
                self.fault(kind, path, cause, fix)
        self.judge()
        return Cluster(pools=tuple(whole[0]), links=tuple(whole[1]), matrix=matrix)

    def judge(self) -> None:
        self.noted.sort(key=lambda noted: noted[0])
        errors = tuple(error for _, error in self.noted)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ClusterFaults(errors, place=self.place)

    def fault(self, kind: type[ClusterError], path: Path_, cause: str, fix: str) -> None:
        line = self.lines.of(path)
        where = f", {spelled(path)}" if path else ""
        self.noted.append((line, kind(place=f"{self.place}:{line}{where}", cause=cause, fix=fix)))

    # Values ----------------------------------------------------------------------------------------------------------

    def known(self, table: Mapping[str, Any], path: Path_, keys: Iterable[str]) -> None:
        for key in table:
            if key not in keys:
                meant = nearest(key, keys)
                fix = f"did you mean {meant!r}?" if meant else f"use keys among {', '.join(keys)}"
                self.fault(ClusterKeyUnknown, (*path, key), "it means nothing here", fix)

    def tables(self, table: Mapping[str, Any], key: str, path: Path_ = ()) -> list[dict[str, Any]]:
        value = table.get(key, [])
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return value
        self.fault(ClusterValueBad, (*path, key), "it is no list of tables", f"write [[{key}]], or {key} = [{{ … }}]")
        return []

    def missing(self, table: Mapping[str, Any], path: Path_, key: str) -> bool:
        if key in table:
            return False
        self.fault(ClusterKeyMissing, (*path, key), "it has no default", f"add `{key} = …`")
        return True

    def word(self, table: Mapping[str, Any], path: Path_, key: str, among: tuple[str, ...] = ()) -> str | None:
        if self.missing(table, path, key):
            return None
        value = table[key]
        if isinstance(value, str) and value and (not among or value in among):
            return value
        fix = f"use one of {', '.join(among)}" if among else "give a name in quotes"
        self.fault(ClusterValueBad, (*path, key), f"{_shown(value)} is no {'such word' if among else 'name'}", fix)
        return None

    def whole(self, table: Mapping[str, Any], path: Path_, key: str) -> int | None:
        if self.missing(table, path, key):
            return None
        value = table[key]
        if type(value) is int and 1 <= value <= 10**7:
            return value
        self.fault(ClusterValueBad, (*path, key), f"{_shown(value)} is no count", "give a whole number, at least 1")
        return None

    def number(self, table: Mapping[str, Any], path: Path_, key: str, unit: str, scale: Decimal) -> Quantity | None:
        if self.missing(table, path, key):
            return None
        value = table[key]
        number = Decimal(value) if type(value) in (int, Decimal) else Decimal("NaN")
        if number.is_finite() and 0 < number <= Decimal(10) ** 12:
            return given(float(number * scale), unit)
        self.fault(ClusterValueBad, (*path, key), f"{_shown(value)} is no positive number", "give a positive number")
        return None

    def price(self, table: Mapping[str, Any], path: Path_) -> Quantity | None:
        key = "price_per_gpu_hour"
        return self.number(table, path, key, "1/device-hour", Decimal(1)) if key in table else None

    # Tables ----------------------------------------------------------------------------------------------------------

    def pool(
        self, table: dict[str, Any], path: Path_, own: Mapping[str, Device | None], price: Quantity | None
    ) -> Pool | None:
        self.known(table, path, POOL_KEYS)
        name = self.word(table, path, "name")
        hosts = self.whole(table, path, "hosts")
        gpus = self.whole(table, path, "gpus_per_host")
        gpu = self.gpu(table, path, "gpu", own)
        nic_tables = self.tables(table, "nics", path)
        nics = [self.nic(nic, (*path, "nics", index)) for index, nic in enumerate(nic_tables)]
        own_price = self.price(table, path) or price
        if name and hosts and gpus and gpu and all(nics):
            found = tuple(nic for nic in nics if nic)
            return Pool(name=name, hosts=hosts, device=gpu, gpus_per_host=gpus, nics=found, price=own_price)
        return None

    def gpu(self, table: dict[str, Any], path: Path_, key: str, own: Mapping[str, Device | None]) -> Device | None:
        name = self.word(table, path, key)
        if name is None:
            return None
        if name in own:
            return own[name]
        try:
            return device(name)
        except DeviceUnknown:
            self.fault(DeviceUnknown, (*path, key), f"{name!r} is not in the table of devices", unknown_fix(name, own))
            return None

    def nic(self, table: dict[str, Any], path: Path_) -> Nic | None:
        self.known(table, path, NIC_KEYS)
        kind = self.word(table, path, "kind", NIC_KINDS)
        rate = self.number(table, path, "gbps", "Gb/s", Decimal(1))
        count = self.whole(table, path, "count")
        return Nic(kind=kind, rate=rate, count=count) if kind and rate and count else None

    def link(self, table: dict[str, Any], path: Path_) -> PoolLink | None:
        self.known(table, path, LINK_KEYS)
        kind = self.word(table, path, "kind", NIC_KINDS)
        rate = self.number(table, path, "gbps", "Gb/s", Decimal(1))
        latency = self.number(table, path, "latency_us", "s", MICRO)
        ends = None if self.missing(table, path, "between") else table["between"]
        if ends is None:
            return None
        if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, str) for end in ends)):
            fix = 'write between = ["a", "b"]'
            self.fault(ClusterValueBad, (*path, "between"), f"{_shown(ends)} does not name two pools", fix)
            return None
        if kind and rate and latency:
            return PoolLink(between=(ends[0], ends[1]), kind=kind, rate=rate, latency=latency)
        return None

    def devices(self) -> dict[str, Device | None]:
        """The user's devices by name; None for one that has faults of its own."""
        found: dict[str, Device | None] = {}
        for index, table in enumerate(self.tables(self.given, "device")):
            path: Path_ = ("device", index)
            self.known(table, path, DEVICE_KEYS)
            name = self.word(table, path, "name")
            if name in found:
                self.fault(PoolRepeated, (*path, "name"), f"there are two devices {name!r}", "give each its own name")
            if name is not None:
                found[name] = self.own_device(name, table, path)
        return found

    def own_device(self, name: str, table: dict[str, Any], path: Path_) -> Device | None:
        before = len(self.noted)
        base = self.gpu(table, path, "like", {}) if "like" in table else None
        peaks = {dtype: self.number(table, path, key, "flop/s", TERA) for key, dtype in TFLOPS.items() if key in table}
        if base is None and not peaks and "like" not in table:
            self.missing(table, path, "bf16_tflops")
        needed = () if base or "like" in table else ("memory_gb", "memory_gb_per_s", "host_gb_per_s")
        units = {"memory_gb": "bytes", "island_size": "devices"}
        numbers = {
            key: self.number(table, path, key, units.get(key, "bytes/s"), Decimal(1) if key == "island_size" else GIGA)
            for key in DEVICE_NUMBERS
            if key in table or key in needed
        }
        if "island_size" in table:
            self.whole(table, path, "island_size")
        island = self.island(table, path, base, numbers)
        if len(self.noted) > before:
            return None
        return _own_device(name, base, peaks, numbers, island)

    def island(
        self, table: dict[str, Any], path: Path_, base: Device | None, numbers: Mapping[str, Quantity | None]
    ) -> Island | None:
        keys = ("island_kind", "island_gb_per_s", "island_size", "island_spans_hosts")
        inherited = base.island if base else None
        if not any(key in table for key in keys):
            return inherited
        kind: str | None = inherited.kind if inherited else None
        if inherited is None or "island_kind" in table:
            kind = self.word(table, path, "island_kind", ISLAND_KINDS)
        bandwidth, size = numbers.get("island_gb_per_s"), numbers.get("island_size")
        if inherited is None and (self.missing(table, path, keys[1]) or self.missing(table, path, keys[2])):
            return None
        bandwidth = bandwidth or (inherited.bandwidth if inherited else None)
        size = size or (inherited.size if inherited else None)
        spans = table.get(keys[3], inherited.spans_hosts if inherited else False)
        if not isinstance(spans, bool):
            self.fault(ClusterValueBad, (*path, keys[3]), f"{_shown(spans)} is no truth value", "give true or false")
        elif kind and bandwidth and size:
            return Island(kind=kind, bandwidth=bandwidth, size=size, spans_hosts=spans)
        return None

    def matrix(self, table: dict[str, Any]) -> LinkMatrix | None:
        if "link_matrix" not in table:
            return None
        value = table["link_matrix"]
        if isinstance(value, list):
            return self.rows(value, "link_matrix")
        if not isinstance(value, str):
            self.fault(ClusterValueBad, ("link_matrix",), f"{_shown(value)} is no file", "name a CSV, or give rows")
            return None
        file = self.folder / value
        try:
            with file.open(newline="", encoding="utf-8") as opened:
                return self.rows([row for row in csv.reader(opened) if row], str(file))
        except (OSError, UnicodeDecodeError) as error:
            self.fault(ClusterFileMissing, ("link_matrix",), f"{file} cannot be read: {error}", "correct the path")
            return None

    def rows(self, rows: list[Any], where: str) -> LinkMatrix | None:
        """Numbers of a matrix; what stands on the diagonal is not read."""
        found: list[tuple[float, ...]] = []
        for index, row in enumerate(rows):
            numbers: list[float] = []
            for column, entry in enumerate(row if isinstance(row, list) else [row]):
                try:
                    numbers.append(0.0 if index == column else float(entry))
                except (TypeError, ValueError):
                    cause = f"{where}, row {index + 1}, column {column + 1}: {_shown(entry)} is no number"
                    self.fault(LinkMatrixValue, ("link_matrix",), cause, "give rates in Gb/s, and no heading")
                    return None
            found.append(tuple(numbers))
        return LinkMatrix(tuple(found))


def _own_device(
    name: str,
    base: Device | None,
    peaks: Mapping[str, Quantity | None],
    numbers: Mapping[str, Quantity | None],
    island: Island | None,
) -> Device:
    all_peaks = dict(base.peaks if base else ()) | {dtype: peak for dtype, peak in peaks.items() if peak}
    ordered = tuple((dtype, all_peaks[dtype]) for dtype in DTYPES if dtype in all_peaks)
    memory, speed, host, behind = map(
        numbers.get, ("memory_gb", "memory_gb_per_s", "host_gb_per_s", "host_memory_gb_per_s")
    )
    if base is not None:
        return replace(
            base,
            name=name,
            aliases=(),
            like=base.name,
            peaks=ordered,
            memory=memory or base.memory,
            driver_memory=None if memory else base.driver_memory,
            memory_bandwidth=speed or base.memory_bandwidth,
            host_link=replace(_own_link(base.host_link, host), memory=behind or base.host_link.memory),
            island=island,
        )
    assert memory is not None
    assert speed is not None
    assert host is not None
    wire = HostLink(kind="pcie", bandwidth=host, memory=behind)
    return Device(
        name=name, vendor="", peaks=ordered, memory=memory, memory_bandwidth=speed, host_link=wire, island=island
    )


def _own_link(base: HostLink, own: Quantity | None) -> HostLink:
    """A host link of one's own is what each device has: nobody shares it."""
    return replace(base, bandwidth=own, sharers=None) if own else base


def _shown(value: object) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


# Writing -------------------------------------------------------------------------------------------------------------


def write(cluster: Cluster) -> str:
    """The text form. What the table of devices supplies is left out; it is read from there again."""
    lines = []
    if cluster.matrix:
        rows = [f"    [{', '.join(_number(entry) for entry in row)}]," for row in cluster.matrix.rows]
        lines += ["link_matrix = [", *rows, "]", ""]
    for pool in cluster.pools:
        lines += ["[[pool]]", f"name = {_string(pool.name)}", f"hosts = {pool.hosts}"]
        lines += [f"gpu = {_string(pool.device.name)}", f"gpus_per_host = {pool.gpus_per_host}"]
        if pool.nics:
            lines.append(f"nics = [{', '.join(_nic(nic) for nic in pool.nics)}]")
        if pool.price:
            lines.append(f"price_per_gpu_hour = {_number(pool.price.value)}")
        lines.append("")
    for link in cluster.links:
        ends = ", ".join(_string(end) for end in link.between)
        lines += ["[[link]]", f"between = [{ends}]", f"kind = {_string(link.kind)}"]
        lines += [f"gbps = {_number(link.rate.value)}", f"latency_us = {_number(link.latency.value, MICRO)}", ""]
    for own in _own_devices(cluster):
        lines += [*_device_lines(own), ""]
    return "\n".join(lines)


def _own_devices(cluster: Cluster) -> tuple[Device, ...]:
    """Devices that the table does not have, once each."""
    used = {pool.device.name: pool.device for pool in cluster.pools}
    return tuple(one for one in used.values() if one.like or any(q.kind == "user" for _, q in one.quantities()))


def _device_lines(own: Device) -> list[str]:
    lines = ["[[device]]", f"name = {_string(own.name)}"]
    if own.like:
        lines.append(f"like = {_string(own.like)}")
    numbers = [(f"{dtype}_tflops", quantity, TERA) for dtype, quantity in own.peaks]
    numbers += [("memory_gb", own.memory, GIGA), ("memory_gb_per_s", own.memory_bandwidth, GIGA)]
    numbers.append(("host_gb_per_s", own.host_link.bandwidth, GIGA))
    if own.host_link.memory:
        numbers.append(("host_memory_gb_per_s", own.host_link.memory, GIGA))
    if own.island:
        base = device(own.like).island if own.like else None
        if base is None or base.kind != own.island.kind:
            lines.append(f"island_kind = {_string(own.island.kind)}")
        if own.island.spans_hosts != (base.spans_hosts if base else False):
            lines.append(f"island_spans_hosts = {str(own.island.spans_hosts).lower()}")
        numbers.append(("island_gb_per_s", own.island.bandwidth, GIGA))
        numbers.append(("island_size", own.island.size, Decimal(1)))
    return lines + [f"{key} = {_number(q.value, scale)}" for key, q, scale in numbers if q.kind == "user"]


def _nic(nic: Nic) -> str:
    return f"{{ kind = {_string(nic.kind)}, gbps = {_number(nic.rate.value)}, count = {nic.count} }}"


def _number(value: float, scale: Decimal = Decimal(1)) -> str:
    """A decimal that reads back as the very same float."""
    return f"{Decimal(repr(value)) / scale:f}".removesuffix(".0")


def _string(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(letter):04x}"
        if ord(letter) < 32 or ord(letter) == 127
        else {'"': '\\"', "\\": "\\\\"}.get(letter, letter)
        for letter in text
    )
    return f'"{escaped}"'
