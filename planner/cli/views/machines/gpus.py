"""The known devices as a person reads them: one line of each, or everything that is known of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.cost_models.compute.known import SIXTEEN_BITS, Known
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Quantity, weakest
from meshwright.planner.cli.views.machines.numbers import NONE, number_table, numbered, say_sources, shown
from meshwright.planner.cli.views.tables import INDENT, Page, Table, Way, number, text
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, percent

COLUMNS = (
    text("device", 7),
    number("memory"),
    number("16 bits"),
    number("fp8"),
    number("bandwidth", 6),
    text("island", 5, Way.DROP),
    text("host link", 2, Way.DROP),
    text("usual NIC", 3, Way.DROP),
    number("reached", 4),
    text("numbers", 1, Way.DROP),
)
"""In terminals of fewer characters, those of the first turns are not shown."""

LEGEND = (
    ("16 bits", "Peaks are dense, of bf16 but where (fp16) is said; memory is decimal."),
    ("island", "island: its link in one direction, times the devices that it joins: of a host, unless (across hosts)."),
    ("reached", "reached: the share of that peak which the best products reach."),
    ("numbers", "numbers: the weakest provenance of the line."),
)
"""What heads mean."""


def show_all(found: Sequence[Known]) -> None:
    """Print a table of devices to standard output."""
    table = Table("", COLUMNS)
    vendor = ""
    for one in found:
        if one.device.vendor != vendor:
            vendor = one.device.vendor
            table.add(f"{vendor}:" if vendor != "any" else "of any vendor:", *[""] * (len(COLUMNS) - 1))
        table.add(f"{INDENT}{one.device.name}", *_row(one))
    page = Page()
    page.table(table)
    page.blank()
    heads = table.heads(page.width)
    for head, meaning in LEGEND:
        if head in heads:
            page.say(meaning)
    missing = ", ".join(column.head for column in COLUMNS if column.head not in heads)
    page.say("`plan gpus NAME` has every number of one device, with its source.")
    if missing:
        page.say(f"Wider terminals have room for: {missing}.")
    page.print()


def _row(one: Known) -> tuple[str, ...]:
    device = one.device
    dtype, peak = one.peak_16_bits or ("", None)
    return (
        decimal_bytes(device.memory.value),
        NONE if peak is None else flops_per_s(peak.value) + " (fp16)" * (dtype == "fp16"),
        flops_per_s(device.peak("fp8").value) if "fp8" in device.dtypes else NONE,
        bytes_per_s(device.memory_bandwidth.value),
        _island(device),
        f"{device.host_link.kind} {bytes_per_s(device.host_link.bandwidth.value)}",
        f"{device.nic.kind} {shown(device.nic.rate)}" if device.nic else NONE,
        f"{percent(one.reached.value)} {one.reached.kind}",
        weakest(*_shown(one)).kind,
    )


def _shown(one: Known) -> Iterator[Quantity]:
    """The numbers of a line."""
    device = one.device
    yield from (device.memory, device.memory_bandwidth, device.host_link.bandwidth)
    yield from (quantity for name, quantity in device.peaks if name in (*SIXTEEN_BITS, "fp8"))
    if device.island:
        yield from (device.island.bandwidth, device.island.segment or device.island.size)
    if device.nic:
        yield device.nic.rate


def _island(device: Device) -> str:
    island = device.island
    if island is None:
        return NONE
    jobs = f", {island.segment.value:g} a job" if island.segment else ""
    across = f" (across hosts{jobs})" if island.spans_hosts else ""
    return f"{island.kind} {bytes_per_s(island.bandwidth.value)} x {island.devices:,}{across}"


def show_one(one: Known) -> None:
    """Print everything that is known of a device to standard output."""
    device, chip = one.device, one.chip
    page = Page()
    page.say(f"{device.name}: {device.vendor}", "bold")
    if device.aliases:
        page.say(f"also called {', '.join(device.aliases)}")
    if chip.architecture:
        page.say(f"architecture {chip.architecture}; units that share a product: {chip.units:,}")
    if device.island:
        where = "goes on in the next host" if device.island.spans_hosts else "ends with the host"
        page.say(f"its island {where}")
    page.blank()
    numbers = one.quantities()
    sources = numbered(quantity for _, quantity in numbers)
    page.table(number_table("", numbers, sources))
    page.blank()
    say_sources(page, sources)
    page.print()
