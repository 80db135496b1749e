"""Numbers of devices as a person reads them: each with its unit, its kind of provenance and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.planner.cli.views.tables import Page, Table, number, text
from meshwright.planner.plan.units import bytes_per_s, count, decimal_bytes, flops_per_s, nbytes, percent, seconds

Numbers = tuple[tuple[str, Quantity], ...]

NONE = "-"
"""What stands where there is no number."""

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
    table = Table(title, (text("number", 1), number("value"), text("provenance", 2, least=14)))
    for name, quantity in numbers:
        table.add(name, shown(quantity), f"{quantity.kind} [{sources[source(quantity)]}]")
    return table


def say_sources(page: Page, sources: dict[str, int]) -> None:
    """Add the list that the numbers of a table point to."""
    for told, at in sources.items():
        page.say(told, label=f"[{at}] ")
