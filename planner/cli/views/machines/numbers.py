"""Numbers of devices as a person reads them: each with its unit, its kind of provenance and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.planner.plan.units import bytes_per_s, count, decimal_bytes, flops_per_s, nbytes, percent, seconds

Numbers = tuple[tuple[str, Quantity], ...]

_SHOW: dict[str, Callable[[float], str]] = {
    "flop/s": flops_per_s,
    "bytes": lambda number: f"{decimal_bytes(number)} = {nbytes(number)}",
    "bytes/s": bytes_per_s,
    "s": seconds,
    "devices": lambda number: f"{count(number)} devices",
    "Gb/s": lambda number: f"{number:g} Gb/s",
    "1/device-hour": lambda number: f"{number:g} per GPU-hour",
    "1": percent,
}


WIDTH = 1000
"""Characters that a line of numbers may take, whatever the terminal has: it wraps, and no number is cut off."""


def new_console() -> Console:
    """A console for standard output."""
    return Console(highlight=False, soft_wrap=True, markup=False, width=WIDTH)


def new_table(title: str, *columns: str) -> Table:
    """A table without lines: the first column to the left, the others to the right."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return made


def shown(quantity: Quantity) -> str:
    """A number with its unit."""
    return _SHOW[quantity.unit](quantity.value)


def labelled(quantity: Quantity) -> str:
    """A number with its unit and its kind of provenance."""
    return f"{shown(quantity)} ({quantity.kind})"


def source(quantity: Quantity) -> str:
    """The document that a number comes from, with its date."""
    return f"{quantity.source}, {quantity.date}" if quantity.date else quantity.source


def numbered(quantities: Iterable[Quantity]) -> dict[str, int]:
    """The sources of numbers, numbered in the order of their appearance."""
    found: dict[str, int] = {}
    for quantity in quantities:
        found.setdefault(source(quantity), len(found) + 1)
    return found


def number_table(title: str, numbers: Numbers, sources: dict[str, int]) -> Table:
    """A table of numbers, each with its provenance."""
    table = new_table(title, "number", "value", "provenance")
    table.columns[2].justify = "left"
    for name, quantity in numbers:
        table.add_row(name, shown(quantity), f"{quantity.kind} [{sources[source(quantity)]}]")
    return table
