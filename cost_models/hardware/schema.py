"""The schema of a cluster file: the keys of its tables, and their values (docs/cluster.md).

Numbers with a unit are read exactly, as decimals, and scaled before they become floats, so that writing and reading
again changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

from meshwright.cost_models.hardware.devices import DTYPES, NIC_KINDS
from meshwright.cost_models.hardware.quantity import Quantity, given
from meshwright.ir.files.documents import shown
from meshwright.ir.files.schema import (
    Count,
    Most,
    Name,
    OneOf,
    Positive,
    Read,
    Table,
    Tuple,
    table_of,
    value_error,
)
from meshwright.ir.limits import HOSTS, LINKS, MATRIX, NICS, OWN_DEVICES, PER_HOST, POOLS

TERA, GIGA, MICRO, ONE = Decimal(10**12), Decimal(10**9), Decimal("1e-6"), Decimal(1)
LEAST, MOST = Decimal("1e-9"), Decimal("1e12")
"""Of any number with a unit, as it is written."""

ISLAND_KINDS = ("nvlink", "xgmi", "ici", "pcie")


def _quantity(unit: str, scale: Decimal) -> Callable[[Any], Quantity]:
    def read(value: Any) -> Quantity:
        if type(value) not in (int, Decimal):
            raise value_error(f"it is {shown(value)}", "give a positive number")
        if not LEAST <= value <= MOST:
            raise value_error(f"it is {shown(value)}", f"give a positive number, {LEAST:g} to {MOST:g}")
        return given(float(Decimal(value) * scale), unit)

    return read


def scaled(unit: str, scale: Decimal = ONE) -> Read:
    """A positive number with a unit."""
    told = {"type": "number", "minimum": float(LEAST), "maximum": float(MOST)}
    return Read(_quantity(unit, scale), told)


def _matrix(value: Any) -> Any:
    if isinstance(value, str | list):
        return value
    raise value_error(f"it is {shown(value)}", "name a CSV, or give rows")


Kind = Annotated[str, OneOf(NIC_KINDS)]
Gbps = Annotated[Quantity, scaled("Gb/s")]
Price = Annotated[Quantity, scaled("1/device-hour")]


class NicTable(Table):
    """NICs of each host; the rate is that of one of them."""

    kind: Kind
    gbps: Gbps
    count: Annotated[Count, Most(NICS)]


class PoolTable(Table):
    """Identical hosts."""

    name: Name
    hosts: Annotated[Count, Most(HOSTS)]
    gpu: Name
    gpus_per_host: Annotated[Count, Most(PER_HOST)]
    nics: Annotated[Tuple[NicTable], Most(NICS)] = ()
    price_per_gpu_hour: Price | None = None
    gpus_per_island: Annotated[Count, Most(HOSTS)] | None = None


def _pair(value: Any) -> tuple[str, str]:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(end, str) and end for end in value):
        return value[0], value[1]
    raise value_error(f"{shown(value)} does not name two pools", 'write between = ["a", "b"]')


PAIR = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}


class LinkTable(Table):
    """A link between two pools; the rate is its total, in one direction."""

    between: Annotated[tuple[str, str], Read(_pair, PAIR)]
    kind: Kind
    gbps: Gbps
    latency_us: Annotated[Quantity, scaled("s", MICRO)] | None = None


TFLOPS = {f"{dtype}_tflops": dtype for dtype in DTYPES}
NUMBERS: dict[str, tuple[str, Decimal]] = {
    "memory_gb": ("bytes", GIGA),
    "memory_gb_per_s": ("bytes/s", GIGA),
    "host_gb_per_s": ("bytes/s", GIGA),
    "host_memory_gb_per_s": ("bytes/s", GIGA),
    "island_gb_per_s": ("bytes/s", GIGA),
}


def _island_size(value: Any) -> Quantity:
    if type(value) is int and 1 <= value <= HOSTS.most:
        return given(float(value), "devices")
    raise value_error(f"it is {shown(value)}", f"give a whole number of devices, 1 to {HOSTS.most:,}")


DeviceTable = table_of(
    "Device",
    "A device of one's own; with `like`, what is not given is that one's.",
    {
        "name": (Name, ...),
        "like": (Name, None),
        **{key: (Annotated[Quantity, scaled("flop/s", TERA)], None) for key in TFLOPS},
        **{key: (Annotated[Quantity, scaled(unit, scale)], None) for key, (unit, scale) in NUMBERS.items()},
        "island_size": (
            Annotated[Quantity, Read(_island_size, {"type": "integer", "minimum": 1, "maximum": HOSTS.most})],
            None,
        ),
        "island_kind": (Annotated[str, OneOf(ISLAND_KINDS)], None),
        "island_spans_hosts": (bool, None),
    },
)


MatrixRow = Annotated[Tuple[Positive], Most(MATRIX)]
MatrixTable = Annotated[Tuple[MatrixRow], Most(MATRIX)]
"""Rates in Gb/s between hosts, or devices, as a CSV or as rows; what stands on the diagonal is not read."""


class ClusterTable(Table):
    """A cluster: pools of identical hosts, and links between them."""

    price_per_gpu_hour: Price | None = None
    link_matrix: Annotated[
        Any, Read(_matrix, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "array"}}]})
    ] = None
    pool: Annotated[Tuple[PoolTable], Most(POOLS)] = ()
    link: Annotated[Tuple[LinkTable], Most(LINKS)] = ()
    device: Annotated[Tuple[DeviceTable], Most(OWN_DEVICES)] = ()  # type: ignore[valid-type]
