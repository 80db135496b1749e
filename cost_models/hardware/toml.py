"""Clusters as TOML: read with all faults reported at once and by line, and written so that they read back the same.

    price_per_gpu_hour = 2.5                    # of all pools that give none

    [[pool]]
    name = "fast"
    hosts = 16
    gpu = "H100"                                # a device of the table, or of a [[device]] below
    gpus_per_host = 8
    nics = [{ kind = "infiniband", gbps = 400, count = 8 }]     # left out: the device's usual ones
    gpus_per_island = 64                        # of racks that jobs do not get whole; left out: as is usual

    [[link]]
    between = ["fast", "old"]
    kind = "ethernet"
    gbps = 800                                  # of the whole link, one direction
    latency_us = 20                             # left out: of one hop of its kind, labelled assumed

    [[device]]
    name = "H100-oc"
    like = "H100"                               # what is not given is taken from this one
    bf16_tflops = 1100                          # dense

`link_matrix` names a CSV beside the file, or is a list of rows. Nothing is ignored: an unknown key is refused with the
nearest known one (`cluster_schema`). The reader collects faults, and raises the only one, or all as `ClusterFaults` in
the order of their lines. TOML parsers keep no lines, so `Lines` finds a key's line by reading
headers and keys again; where a value spans lines, it is the line of the key.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import DTYPES, Device, HostLink, Island, device, latency_of, unknown_fix
from meshwright.cost_models.hardware.faults import faults, spelled
from meshwright.cost_models.hardware.parts import LinkMatrix, Nic, Pool, PoolLink
from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.cost_models.hardware.schema import GIGA, MICRO, TERA, TFLOPS, ClusterTable, LinkTable, PoolTable
from meshwright.ir.errors import (
    ClusterError,
    ClusterFaults,
    ClusterFileMissing,
    ClusterFileNotToml,
    ClusterKeyMissing,
    ClusterKeyUnknown,
    ClusterValueBad,
    DeviceUnknown,
    LinkMatrixSize,
    LinkMatrixValue,
    MeshwrightError,
    PoolRepeated,
)
from meshwright.ir.files.documents import SHOWN, Fault, Path_, Unparsed, parse_toml, shown
from meshwright.ir.files.lines import Lines
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.files.schema import faults_of
from meshwright.ir.limits import MATRIX, MATRIX_BYTES
from meshwright.ir.quoting import toml

KINDS: Mapping[str, type[ClusterError]] = {
    "missing": ClusterKeyMissing,
    "unknown": ClusterKeyUnknown,
    "value": ClusterValueBad,
}
TABLES = ("pool", "link", "device")
ISLAND = ("island_kind", "island_gb_per_s", "island_size", "island_spans_hosts")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
"""Of a link matrix: Python would take 1_000, ² and infinity too."""


def read(text: str, *, place: str = "cluster", folder: Path | None = None) -> Cluster:
    """The cluster that a TOML text describes; a link matrix is looked for in `folder`."""
    return _Reader(text, place, folder or Path()).cluster()


class _Reader:
    """One pass over a text. Faults are noted, and reported at the end."""

    def __init__(self, text: str, place: str, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.lines = Lines(text)
        self.noted: list[tuple[int, MeshwrightError]] = []
        try:
            self.given = parse_toml(text)
        except Unparsed as error:
            raise ClusterFileNotToml(
                place=place, cause=error.cause, fix="correct the line; strings need quotes"
            ) from None
        except Fault as fault:
            self.fault(ClusterValueBad, fault.path, fault.cause, fault.fix)
            self.judge()

    def cluster(self) -> Cluster:
        table = self.table()
        devices = self.devices(table.device if table else ())
        self.known_devices()
        if table is None or self.noted:
            self.judge()
        assert table is not None, "what forbids it was noted"
        pools = tuple(self.pool(one, devices, table.price_per_gpu_hour) for one in table.pool)
        links = tuple(map(_link, table.link))
        matrix = self.matrix(table.link_matrix)
        for path, kind, cause, fix in () if self.noted else faults(pools, links, matrix):
            self.fault(kind, path, cause, fix)
        self.judge()
        return Cluster(pools=pools, links=links, matrix=matrix)

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

    def table(self) -> ClusterTable | None:
        """The text, checked by its schema."""
        found, refused = faults_of(ClusterTable, self.given)
        for one in refused:
            key = one.path[-1]
            single = key in TABLES and not isinstance(self.given.get(str(key)), list)
            fix = f"write [[{key}]]" if single and one.kind == "value" else one.fix
            self.fault(KINDS[one.kind], one.path, one.cause, fix)
        table: ClusterTable | None = found
        return table

    def known_devices(self) -> None:
        """Check that every name of a device means one; reported together with the schema's refusals."""
        own = [one.get("name") for one in _tables(self.given, "device")]
        for key, name, known in (("pool", "gpu", own), ("device", "like", [])):
            for index, table in enumerate(_tables(self.given, key)):
                said = table.get(name)
                if isinstance(said, str) and said and said not in known and not _in_table(said):
                    fix = unknown_fix(said[:SHOWN], [one for one in known if isinstance(one, str)])
                    self.fault(DeviceUnknown, (key, index, name), f"{shown(said)} is not in the table of devices", fix)

    # Tables ----------------------------------------------------------------------------------------------------------

    def pool(self, table: PoolTable, own: Mapping[str, Device], price: Quantity | None) -> Pool:
        return Pool(
            name=table.name,
            hosts=table.hosts,
            device=own[table.gpu] if table.gpu in own else device(table.gpu),
            gpus_per_host=table.gpus_per_host,
            nics=tuple(Nic(kind=nic.kind, rate=nic.gbps, count=nic.count) for nic in table.nics),
            price=table.price_per_gpu_hour or price,
            gpus_per_island=table.gpus_per_island,
        )

    def devices(self, tables: Sequence[Any]) -> dict[str, Device]:
        """The user's devices by name, without those that have faults."""
        found: dict[str, Device] = {}
        for index, table in enumerate(tables):
            path: Path_ = ("device", index)
            if any(table.name == earlier.name for earlier in tables[:index]):
                cause = f"there are two devices {table.name!r}"
                self.fault(PoolRepeated, (*path, "name"), cause, "give each its own name")
            if table.like is None or _in_table(table.like):
                own = self.own_device(table, path)
                found |= {table.name: own} if own else {}
        return found

    def own_device(self, table: Any, path: Path_) -> Device | None:
        base = device(table.like) if table.like else None
        peaks, island = _peaks(table), _island_keys(table)
        needed = () if base else ("memory_gb", "memory_gb_per_s", "host_gb_per_s")
        missing = [key for key in needed if getattr(table, key) is None]
        if base is None and not peaks:
            missing.append("bf16_tflops")
        inherited = base.island if base else None
        if island and inherited is None:
            missing += [key for key in ISLAND[:3] if key not in island]
        for key in missing:
            self.fault(ClusterKeyMissing, (*path, key), "it has no default", f"add `{key} = …`")
        if missing:
            return None
        return _own_device(table, base, peaks, _island(island, inherited))

    # The matrix ------------------------------------------------------------------------------------------------------

    def matrix(self, value: Any) -> LinkMatrix | None:
        if value is None:
            return None
        if isinstance(value, list):
            return self.rows(value, "link_matrix", _given)
        file = self.folder / value
        try:
            text = read_text(file, MATRIX_BYTES)
            return self.rows([row for row in csv.reader(text.splitlines(), strict=True) if row], str(file), _written)
        except Unreadable as error:
            self.fault(
                ClusterFileMissing,
                ("link_matrix",),
                f"{file} cannot be read: {error.cause}",
                did_you_mean(file) + "correct the path",
            )
        except csv.Error as error:
            self.fault(LinkMatrixValue, ("link_matrix",), f"{file} is no CSV: {error}", "give rows of numbers")
        return None

    def rows(self, rows: list[Any], where: str, rate: Callable[[Any], float | None]) -> LinkMatrix | None:
        """The numbers of a matrix; the diagonal is not read."""
        cause = MATRIX.refused(max([len(rows), *(len(row) for row in rows if isinstance(row, list))]))
        if cause:
            self.fault(LinkMatrixSize, ("link_matrix",), f"{where} has {cause}", "give one row per host")
            return None
        found: list[tuple[float, ...]] = []
        for index, row in enumerate(rows):
            numbers: list[float] = []
            for column, entry in enumerate(row if isinstance(row, list) else [row]):
                number = 0.0 if index == column else rate(entry)
                if number is None:
                    cause = f"{where}, row {index + 1}, column {column + 1}: {shown(entry)} is no number"
                    self.fault(LinkMatrixValue, ("link_matrix",), cause, "give rates in Gb/s, and no heading")
                    return None
                numbers.append(number)
            found.append(tuple(numbers))
        return LinkMatrix(tuple(found))


def _written(entry: str) -> float | None:
    """A number in a CSV file."""
    return float(entry) if NUMBER.fullmatch(entry.strip()) else None


def _given(entry: object) -> float | None:
    """A number in a list."""
    return float(entry) if type(entry) in (int, Decimal) else None  # type: ignore[arg-type]


def _tables(given: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The tables of a list, as far as it is one."""
    found = given.get(key)
    return [one if isinstance(one, dict) else {} for one in found] if isinstance(found, list) else []


def _in_table(name: str) -> bool:
    """Whether the table of devices has one of this name."""
    try:
        device(name)
    except DeviceUnknown:
        return False
    return True


def _link(table: LinkTable) -> PoolLink:
    """A link between pools; without a given latency it has the usual one of its kind, labelled assumed."""
    usual = latency_of(table.kind)
    assumed = replace(usual, kind="assumed", source=f"{USUAL} {table.kind}, as no latency_us is given; {usual.source}")
    return PoolLink(between=table.between, kind=table.kind, rate=table.gbps, latency=table.latency_us or assumed)


USUAL = "one hop over"


def _island(given: Mapping[str, Any], inherited: Island | None) -> Island | None:
    """The scale-up domain of a user's device."""
    if not given:
        return inherited
    kind, bandwidth, size, spans = (given.get(key) for key in ISLAND)
    if inherited is None:
        assert kind is not None, "it was asked for"
        return Island(kind=kind, bandwidth=bandwidth, size=size, spans_hosts=bool(spans))  # type: ignore[arg-type]
    return Island(
        kind=kind or inherited.kind,
        bandwidth=bandwidth or inherited.bandwidth,
        size=size or inherited.size,
        spans_hosts=inherited.spans_hosts if spans is None else spans,
    )


def variant(base: Device, table: Any) -> Device:
    """A device as the table of one that is like it says; of a user's own device, one that is like the same other one.
    Must: it has an island if the table speaks of one."""
    own = _own_device(table, base, _peaks(table), _island(_island_keys(table), base.island))
    return replace(own, like=base.like if _is_own(base) else base.name)


def _peaks(table: Any) -> dict[str, Quantity]:
    return {dtype: peak for key, dtype in TFLOPS.items() if (peak := getattr(table, key)) is not None}


def _island_keys(table: Any) -> dict[str, Any]:
    return {key: getattr(table, key) for key in ISLAND if getattr(table, key) is not None}


def _own_device(table: Any, base: Device | None, peaks: Mapping[str, Quantity], island: Island | None) -> Device:
    all_peaks = {**dict(base.peaks if base else ()), **peaks}
    ordered = tuple((dtype, all_peaks[dtype]) for dtype in DTYPES if dtype in all_peaks)
    memory, speed = table.memory_gb, table.memory_gb_per_s
    host, behind = table.host_gb_per_s, table.host_memory_gb_per_s
    if base is not None:
        return replace(
            base,
            name=table.name,
            aliases=(),
            like=base.name,
            peaks=ordered,
            memory=memory or base.memory,
            driver_memory=None if memory else base.driver_memory,
            memory_bandwidth=speed or base.memory_bandwidth,
            host_link=replace(_own_link(base.host_link, host), memory=behind or base.host_link.memory),
            island=island,
        )
    wire = HostLink(kind="pcie", bandwidth=host, memory=behind)
    return Device(
        name=table.name, vendor="", peaks=ordered, memory=memory, memory_bandwidth=speed, host_link=wire, island=island
    )


def _own_link(base: HostLink, own: Quantity | None) -> HostLink:
    """The host link of a user's device, which each device has to itself."""
    return replace(base, bandwidth=own, sharers=None) if own else base


# Writing -------------------------------------------------------------------------------------------------------------


def write(cluster: Cluster) -> str:
    """The text form of a cluster. Numbers that the table of devices supplies are left out, and read from there
    again."""
    lines = []
    if cluster.matrix:
        rows = [f"    [{', '.join(_number(entry) for entry in row)}]," for row in cluster.matrix.rows]
        lines += ["link_matrix = [", *rows, "]", ""]
    for pool in cluster.pools:
        lines += ["[[pool]]", f"name = {toml(pool.name)}", f"hosts = {pool.hosts}"]
        lines += [f"gpu = {toml(pool.device.name)}", f"gpus_per_host = {pool.gpus_per_host}"]
        if pool.nics:
            lines.append(f"nics = [{', '.join(_nic(nic) for nic in pool.nics)}]")
        if pool.price:
            lines.append(f"price_per_gpu_hour = {_number(pool.price.value)}")
        if pool.gpus_per_island is not None:
            lines.append(f"gpus_per_island = {pool.gpus_per_island}")
        lines.append("")
    for link in cluster.links:
        ends = ", ".join(toml(end) for end in link.between)
        lines += ["[[link]]", f"between = [{ends}]", f"kind = {toml(link.kind)}"]
        lines.append(f"gbps = {_number(link.rate.value)}")
        lines += [f"latency_us = {_number(link.latency.value, MICRO)}", ""] if link.latency.kind == "user" else [""]
    for own in _own_devices(cluster):
        lines += [*_device_lines(own), ""]
    return "\n".join(lines)


def _own_devices(cluster: Cluster) -> tuple[Device, ...]:
    """Devices that the table does not have, once each."""
    used = {pool.device.name: pool.device for pool in cluster.pools}
    return tuple(one for one in used.values() if _is_own(one))


def _is_own(one: Device) -> bool:
    """Whether a user described it."""
    return bool(one.like) or any(quantity.kind == "user" for _, quantity in one.quantities())


def _device_lines(own: Device) -> list[str]:
    lines = ["[[device]]", f"name = {toml(own.name)}"]
    if own.like:
        lines.append(f"like = {toml(own.like)}")
    numbers = [(f"{dtype}_tflops", quantity, TERA) for dtype, quantity in own.peaks]
    numbers += [("memory_gb", own.memory, GIGA), ("memory_gb_per_s", own.memory_bandwidth, GIGA)]
    numbers.append(("host_gb_per_s", own.host_link.bandwidth, GIGA))
    if own.host_link.memory:
        numbers.append(("host_memory_gb_per_s", own.host_link.memory, GIGA))
    if own.island:
        base = device(own.like).island if own.like else None
        if base is None or base.kind != own.island.kind:
            lines.append(f"island_kind = {toml(own.island.kind)}")
        if own.island.spans_hosts != (base.spans_hosts if base else False):
            lines.append(f"island_spans_hosts = {str(own.island.spans_hosts).lower()}")
        numbers.append(("island_gb_per_s", own.island.bandwidth, GIGA))
        numbers.append(("island_size", own.island.size, Decimal(1)))
    return lines + [f"{key} = {_number(q.value, scale)}" for key, q, scale in numbers if q.kind == "user"]


def _nic(nic: Nic) -> str:
    return f"{{ kind = {toml(nic.kind)}, gbps = {_number(nic.rate.value)}, count = {nic.count} }}"


def _number(value: float, scale: Decimal = Decimal(1)) -> str:
    """A decimal that reads back as the very same float."""
    return f"{Decimal(repr(value)) / scale:f}".removesuffix(".0")
