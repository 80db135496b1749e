"""The GPUs of a host beside those of the table: which device they are, and in what they differ from it.

In: what the driver says of them, and what is drawn of their links. Out: a `Device`, and the keys of a [[device]] for
what differs:

    memory_gb         beyond `MEMORY_TOLERANCE` of the datasheet's
    host_gb_per_s     lanes x rate of a lane, over the devices that share the way
    island_size       the GPUs that NVLinks join, where they are fewer than the device's island has
    island_gb_per_s   the NVLinks that one GPU uses x the rate of one
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.calibrate.detect.nics import wirings_of
from meshwright.calibrate.detect.outputs.nccl import System
from meshwright.calibrate.detect.outputs.smi import Gpu
from meshwright.calibrate.detect.outputs.sources import Source
from meshwright.calibrate.detect.outputs.topo import Wiring
from meshwright.calibrate.detect.told import Told
from meshwright.cost_models.hardware.devices import Device, Island, device, unknown_fix
from meshwright.ir.errors import DeviceUnknown

MIB, GB = 2**20, 1e9

MEMORY_TOLERANCE = 0.12
"""How far the driver's memory may lie from the datasheet's: stacks of HBM are binary, 7 % above decimal gigabytes."""

RATE_TOLERANCE = 0.01
"""How far a PCIe link may lie from the table's, which is rounded."""

LINK_GB_PER_S = {"nvlink1": 20.0, "nvlink2": 25.0, "nvlink3": 25.0, "nvlink4": 25.0, "nvlink5": 50.0}
"""Of one NVLink, each way: NVIDIA's datasheets of P100, V100, A100, H100 (2016 to 2022) and B200 (2024-03)."""

LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.984375, 4: 1.96875, 5: 3.9375}
"""Of one PCIe lane, each way, after line coding, by generation: PCI Express base specification, 2019-05."""

MANUFACTURERS = ("NVIDIA ", "Tesla ")
"""Words of the driver before names, which the table of devices leaves out."""


def device_of(name: str, place: str, like: str | None) -> tuple[Device, tuple[str, ...]]:
    """The device of a driver's name, else that of `like`, with a remark."""
    short = name
    for word in MANUFACTURERS:
        short = short.removeprefix(word)
    try:
        return device(short), ()
    except DeviceUnknown:
        if like is None:
            raise DeviceUnknown(
                place=place,
                cause=f"{name!r} is not in the table of devices",
                fix=f"name the device to describe it as with --like; {unknown_fix(short)}",
            ) from None
    return device(like), (f"{name} is not in the table of devices, and is described as {like} (declared, --like)",)


def differences(
    gpus: tuple[Gpu, ...], base: Device, source: Source, sources: tuple[Source, ...]
) -> tuple[tuple[tuple[str, Told], ...], tuple[str, ...]]:
    """Keys in which the GPUs differ from their device, and remarks on what no key can say."""
    own = [*_memory(gpus, base, source), *_host_link(gpus, base, source, sources)]
    drawn = wirings_of(sources)
    if not drawn:
        return tuple(own), ()
    wiring, by = drawn[0][0], drawn[0][1].by
    if base.island is None or base.island.kind not in LINK_GB_PER_S:
        known = max(map(len, wiring.islands), default=1) == 1
        return tuple(own), () if known else (f"{by} shows NVLinks, and the table has none for {base.name}: left out",)
    own += _island(wiring, by, base.island)
    return tuple(own), tuple(_unsaid(wiring))


def _memory(gpus: tuple[Gpu, ...], base: Device, source: Source) -> Iterator[tuple[str, Told]]:
    least = min((gpu.memory_mib * MIB for gpu in gpus if gpu.memory_mib), default=None)
    if least is not None and abs(least / base.memory.value - 1) > MEMORY_TOLERANCE:
        yield "memory_gb", Told(round(least / GB, 3), "measured", source.by)


def _host_link(
    gpus: tuple[Gpu, ...], base: Device, source: Source, sources: tuple[Source, ...]
) -> Iterator[tuple[str, Told]]:
    wire = base.host_link
    rates = list(_rates(gpus, source, sources))
    if not rates or not wire.kind.startswith("pcie"):
        return
    rate, by = min(rates)
    if abs(rate / (wire.bandwidth.value / GB) - 1) > RATE_TOLERANCE:
        sharers = wire.sharers.value if wire.sharers else 1.0
        shared = f", shared by {sharers:g} (datasheet)" if sharers > 1 else ""
        yield "host_gb_per_s", Told(rate / sharers, "measured", f"{by}{shared}")


def _rates(gpus: tuple[Gpu, ...], source: Source, sources: tuple[Source, ...]) -> Iterator[tuple[float, str]]:
    """GB/s of the GPUs' PCIe links, by the driver and by NCCL."""
    links = [(gpu.pcie_generation, gpu.pcie_width, source.by) for gpu in gpus]
    for one in sources:
        if isinstance(one.facts, System):
            links += [(*link, one.by) for link in one.facts.pcie if link]
    for generation, width, by in links:
        if generation in LANE_GB_PER_S and width:
            yield LANE_GB_PER_S[generation] * width, f"{by}, PCIe {generation} x{width}"


def _island(wiring: Wiring, by: str, island: Island) -> Iterator[tuple[str, Told]]:
    each = LINK_GB_PER_S[island.kind]
    size = min(map(len, wiring.islands))
    if size < min(wiring.gpus, island.devices):
        yield "island_size", Told(size, "measured", f"{by}, by NVLinks")
    own = round(island.bandwidth.value / GB / each)
    used = min(links.of(own) for links in wiring.links)
    if size > 1 and used and used != own:
        how = f"{by}, {used} NVLink{'s' if used > 1 else ''} of {each:g} GB/s (datasheet)"
        yield "island_gb_per_s", Told(used * each, "measured", how)


def _unsaid(wiring: Wiring) -> Iterator[str]:
    """What a size cannot say of islands."""
    sizes = sorted({len(part) for part in wiring.islands})
    if len(sizes) > 1:
        yield f"NVLinks join {' and '.join(map(str, sizes))} GPUs; all are described as joined by {sizes[0]}"
    order = [gpu for part in wiring.islands for gpu in part]
    if order != sorted(order):
        yield (
            "neighbours in an island are taken to be neighbours in rank: set CUDA_VISIBLE_DEVICES="
            + ",".join(map(str, order))
        )


def of_state(gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """What of their state makes GPUs less than the datasheet promises."""
    if sliced := [str(index) for index, gpu in enumerate(gpus) if gpu.sliced]:
        yield f"MIG divides GPU {', '.join(sliced)}; whole GPUs are described"
    held = [gpu for gpu in gpus if gpu.power_w and gpu.default_power_w and gpu.power_w < gpu.default_power_w]
    if held:
        yield f"power is held at {held[0].power_w:g} of {held[0].default_power_w:g} W; peaks are the datasheet's"
