"""The known devices as a person reads them: one line of each, or everything that is known of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.cost_models.compute.known import SIXTEEN_BITS, Known
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Quantity, weakest
from meshwright.planner.cli.views.machines.numbers import new_console, new_table, number_table, numbered, shown
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, percent

NONE = "-"

LEGEND = (
    "Peaks are dense, of bf16 but where (fp16) is said; memory is decimal; links count one direction, of one device.",
    "island: its link, times the devices that one joins: those of a host, unless it goes on (across hosts).",
    "reached: the share of that peak which the best products reach. numbers: the weakest provenance before it.",
    "`plan gpus NAME` has every number of one device, with its source.",
)


def show_all(found: Sequence[Known]) -> None:
    """Print a table of devices to standard output."""
    table = new_table(
        "", "device", "memory", "16 bits", "fp8", "bandwidth", "island", "host link", "usual NIC", "reached", "numbers"
    )
    for name in ("island", "host link", "usual NIC", "numbers"):
        next(column for column in table.columns if column.header == name).justify = "left"
    vendor = ""
    for one in found:
        if one.device.vendor != vendor:
            vendor = one.device.vendor
            table.add_row(f"{vendor}:" if vendor != "any" else "of any vendor:")
        table.add_row(f"  {one.device.name}", *_row(one))
    console = new_console()
    console.print(table)
    console.print()
    for line in LEGEND:
        console.print(line)


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
    console = new_console()
    console.print(f"{device.name}: {device.vendor}", style="bold")
    if device.aliases:
        console.print(f"also called {', '.join(device.aliases)}")
    if chip.architecture:
        console.print(f"architecture {chip.architecture}; units that share a product: {chip.units:,}")
    if device.island:
        where = "goes on in the next host" if device.island.spans_hosts else "ends with the host"
        console.print(f"its island {where}")
    console.print()
    numbers = one.quantities()
    sources = numbered(quantity for _, quantity in numbers)
    console.print(number_table("", numbers, sources))
    console.print()
    for source, number in sources.items():
        console.print(f"[{number}] {source}")
