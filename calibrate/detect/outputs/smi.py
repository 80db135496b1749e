"""GPUs as `nvidia-smi` lists them: names, memory, PCIe links.

In: the CSV of `--query-gpu=… --format=csv`, whose header says which columns there are, or the lines of `-L`. Out:
`Gpus`. What the tool prints for a number that it does not have (`[N/A]`, `[Not Supported]`) is None.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from meshwright.ir.errors import OutputBroken

QUERY = (
    "index",
    "name",
    "memory.total",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "mig.mode.current",
    "power.limit",
    "power.default_limit",
)
"""The columns that are asked for; any others are passed over."""

BY_QUERY, BY_LIST = "nvidia-smi --query-gpu", "nvidia-smi -L"
_LISTED = re.compile(r"GPU \d+: (?P<name>.+?) \(UUID: ")
_SLICE = re.compile(r"\s+MIG \S+\s+Device")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, by its driver."""

    name: str
    memory_mib: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    sliced: bool = False
    """Whether it is divided by MIG."""
    power_w: float | None = None
    default_power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a host, in the order of their numbers."""

    gpus: tuple[Gpu, ...]


def is_query(text: str) -> bool:
    """Whether a text begins with the header of a query."""
    columns = _columns(next(iter(text.strip().splitlines()), ""))
    return "name" in columns and len(set(columns) & set(QUERY)) > 1


def is_list(text: str) -> bool:
    """Whether a text begins as `nvidia-smi -L` does."""
    return _LISTED.match(text.strip()) is not None


def _columns(header: str) -> list[str]:
    """The names of columns, without their units."""
    return [re.sub(r"\s*\[.*\]", "", word).strip() for word in header.split(",")]


def read_query(text: str, place: str) -> Gpus:
    """The GPUs of a query."""
    lines = text.strip().splitlines()
    columns = _columns(lines[0])
    found: list[tuple[int, Gpu]] = []
    for number, row in enumerate(_rows(lines[1:], place), 2):
        if not row:
            continue
        if len(row) != len(columns):
            raise OutputBroken(
                place=f"{place}:{number}",
                cause=f"{len(row)} values stand under {len(columns)} columns",
                fix="save the output of `nvidia-smi --query-gpu=… --format=csv` again",
            )
        cells = dict(zip(columns, row, strict=True))
        index = _whole(cells, "index")
        found.append((len(found) if index is None else index, _gpu(cells, f"{place}:{number}")))
    found.sort(key=lambda one: one[0])
    return Gpus(tuple(gpu for _, gpu in found))


def _rows(lines: list[str], place: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, skipinitialspace=True))
    except csv.Error as error:
        raise OutputBroken(place=place, cause=f"it is no CSV: {error}", fix="save it again") from None


def _gpu(cells: dict[str, str], place: str) -> Gpu:
    name = cells["name"].strip()
    if not name or name.startswith("["):
        raise OutputBroken(place=place, cause=f"the GPU's name is {name!r}", fix="see what is wrong with this GPU")
    return Gpu(
        name=name,
        memory_mib=_number(cells, "memory.total"),
        pcie_generation=_whole(cells, "pcie.link.gen.max"),
        pcie_width=_whole(cells, "pcie.link.width.max"),
        sliced=cells.get("mig.mode.current", "").strip() == "Enabled",
        power_w=_number(cells, "power.limit"),
        default_power_w=_number(cells, "power.default_limit"),
    )


def _number(cells: dict[str, str], column: str) -> float | None:
    """A positive number with or without its unit; None where the tool has none."""
    found = _NUMBER.match(cells.get(column, "").strip())
    return float(found[0]) or None if found else None


def _whole(cells: dict[str, str], column: str) -> int | None:
    found = cells.get(column, "").strip()
    return int(found) if re.fullmatch(r"\d{1,6}", found) else None


def read_list(text: str, place: str) -> Gpus:
    """The GPUs of `nvidia-smi -L`, with the slices of MIG under them."""
    found: list[Gpu] = []
    for line in text.splitlines():
        if listed := _LISTED.match(line.strip()):
            found.append(Gpu(name=listed["name"]))
        elif _SLICE.match(line) and found:
            found[-1] = Gpu(name=found[-1].name, sliced=True)
    if not found:
        raise OutputBroken(place=place, cause="it lists no GPU", fix="save the output of `nvidia-smi -L` again")
    return Gpus(tuple(found))
