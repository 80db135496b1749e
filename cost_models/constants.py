"""The constants of all prices as one table, for docs/prices.md.

    python -m meshwright.cost_models.constants docs/prices.md      writes the table into the page, between its marks

Every constant stands in `profiles/*.json` with its unit, its kind of provenance, what it was fitted on or why it is
assumed, and its date. Here they are read back as they are written; nothing is priced from this table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.cost_models.collectives.curves import shipped
from meshwright.cost_models.compute.gemm_table import shipped_rows
from meshwright.cost_models.compute.profile import read_json
from meshwright.cost_models.hardware.devices import devices
from meshwright.cost_models.intervals.widths import PREFIX

BEGIN = "<!-- constants: python -m meshwright.cost_models.constants docs/prices.md -->"
END = "<!-- end of constants -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One constant, as its profile writes it."""

    file: str
    name: str
    value: float
    unit: str
    kind: str
    basis: str
    date: str
    effect: str = ""
    """The rows that it moves, and how far they are off with it and without."""


def rows() -> Iterator[Row]:
    """Every constant of the profiles, in their order. What fitted runs had (`seen`) is no number of a price."""
    for file, table in (
        ("step.json", read_json("step.json")),
        ("compute.json", read_json("compute.json")["constants"]),
    ):
        for name, one in table.items():
            if name != "seen":
                yield Row(file, name, one["value"], one["unit"], one["kind"], one["how"], one["date"], _effect(one))
    for name, one in read_json("collectives.json")["fits"].items():
        yield Row("collectives.json", name, one["value"], one["unit"], "fitted", one["fitted_on"], one["date"])
    for file in ("memory.json", "host.json"):
        table = read_json(file)
        for name, pair in table.items():
            if isinstance(pair, list):
                value, source = pair
                of = table["sources"][source]
                unit = "bytes" if name.endswith("_bytes") else "1"
                yield Row(file, name, value, unit, of["kind"], of["document"], of["date"])


def _effect(one: Mapping[str, Any]) -> str:
    """What `benchmarks.fit_step --effects` found; empty where it looked at nothing."""
    if "without" not in one:
        return ""
    return f"{one['rows']} rows: {one['error']:.1%}, {one['without']:.1%} without"


def tables() -> Iterator[tuple[str, str, int]]:
    """Measured tables and curves beside the constants: what, where, and how many."""
    compute = read_json("compute.json")
    yield "devices: peaks, memory, links", "devices.json", len(devices())
    yield "chips: units and measured ceilings of products", "compute.json", len(compute["chips"])
    yield "curves of attention", "compute.json", len(compute["attention_curves"])
    yield "products measured on V100", "compute_gemm_v100.json", len(shipped_rows()[2])
    yield "curves of collectives", "collectives_curves.json", len(shipped().all)


def render() -> str:
    """The table, between its marks in the page."""
    found = list(rows())
    fitted = sum(row.kind == "fitted" and not row.name.startswith(PREFIX) for row in found)
    widths = sum(row.name.startswith(PREFIX) for row in found)
    lines = [
        BEGIN,
        "",
        f"{len(found) - widths} constants of prices, {fitted} of them fitted, and {widths} widths of intervals:",
        "",
        "| profile | name | value | unit | kind | fitted on, or why | date | rows that it moves, and their error |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {row.file} | `{row.name}` | {row.value:.6g} | {row.unit} | {row.kind} | {row.basis} | {row.date} "
            f"| {row.effect} |"
            for row in found
        ),
        "",
        "Tables and curves, each row with its source:",
        "",
        "| what | profile | entries |",
        "|---|---|---|",
        *(f"| {what} | {file} | {count:,} |" for what, file, count in tables()),
        "",
        END,
    ]
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + render() + after


def main(argv: Sequence[str]) -> int:
    for name in argv:
        path = Path(name)
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
