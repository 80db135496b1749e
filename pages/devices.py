"""The page of devices: all that clusters are made of, from the table that they are priced by."""

from __future__ import annotations

from meshwright.cost_models.compute.known import Known, all_known
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, percent
from pages.cells import cell, page, table

ABOUT = """`plan gpus NAME` prints every number of one with its source, and `plan cluster show 2x8xNAME` what a cluster
of it is taken to be. Peaks are dense; memory is decimal; links are in one direction. *Reached* is the share of the
peak of 16 bits that the best products reach."""


def devices() -> str:
    """The page."""
    found = all_known()
    vendors = dict.fromkeys(one.device.vendor for one in found)
    heads = ("device", "also called", "memory", "16 bits", "fp8", "bandwidth", "island", "host link", "reached")
    return page(
        "Every device",
        ABOUT,
        *(
            f"## {'Of any vendor' if vendor == 'any' else vendor}\n\n"
            + table(heads, (_row(one) for one in found if one.device.vendor == vendor))
            for vendor in vendors
        ),
    )


def _row(one: Known) -> tuple[str, ...]:
    device = one.device
    peak = one.peak_16_bits
    eight = device.peak("fp8") if "fp8" in device.dtypes else None
    island = device.island
    return (
        f"`{device.name}`",
        cell(", ".join(device.aliases)),
        decimal_bytes(device.memory.value),
        flops_per_s(peak[1].value) + (" (fp16)" if peak[0] == "fp16" else "") if peak else "-",
        flops_per_s(eight.value) if eight else "-",
        bytes_per_s(device.memory_bandwidth.value),
        f"{island.kind} {bytes_per_s(island.bandwidth.value)} x {island.devices:,}" if island else "-",
        f"{device.host_link.kind} {bytes_per_s(device.host_link.bandwidth.value)}",
        percent(one.reached.value),
    )
