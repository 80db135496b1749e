"""The profile of compute prices: constants, chips and curves, read from `profiles/compute.json`.

The file is data, each number with its unit, kind of provenance, source and date. This module reads it into frozen
values, so that whoever fits may `replace` one and price again; nothing else in the room holds a number.

- `ComputeConstants`: the few numbers that are the same for every device.
- `Chip`: how many units (SMs, CUs, tensor cores) share a product, the architecture that attention kernels are written
  for, and the *ceiling*: the share of the datasheet peak that the best matmul reached in a search over shapes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.ir.errors import BadQuantity

SUSTAINED = {"hopper": "hopper", "cdna3": "hopper", "cdna4": "hopper", "blackwell": "blackwell", "tpu": "tpu"}
"""Whose sustained share an architecture takes, where it is not that of Ampere: parts of one power density."""
BITS = {"fp8": "8", "nvfp4": "4", "mxfp4": "4"}
"""Dtypes that have a sustained share of their own where one is known: fewer bits take less power for a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConstants:
    """Numbers common to all devices; what each was fitted on, or why it is assumed, stands in the profile.

    - Shares must lie in (0, 1]; times and penalties must not be negative.
    """

    tile_penalty: float
    """Slow-down of a matmul tile whose operand traffic per product is twice that of 128 x 256."""
    hbm_efficiency: float
    """Share of the memory bandwidth that a streaming kernel reaches."""
    kernel_floor_s: float
    """What a kernel takes on the device beside its work."""
    xla_floor_s: float
    """The same on a TPU, where kernels of one program follow each other without a launch."""
    sustained_ampere: float
    sustained_hopper: float
    sustained_hopper_8: float
    sustained_blackwell: float
    sustained_blackwell_8: float
    sustained_blackwell_4: float
    sustained_tpu: float
    """Share of the best isolated matmul that matmuls inside a training step reach, by architecture (see `SUSTAINED`)
    and bits of an operand (16 or more, 8, 4): power limits, clocks, real data, cold caches, time between kernels."""
    sustained_ultra: float
    """The same of chips that are given more power, beside the first ones of their architecture: GB300 and B300."""
    sustained_grouped: float
    """The same once more of products of experts: of unlike numbers of rows, and one after the other."""
    sustained_untuned: float
    """The same once more on Hopper and later for stacks without kernels tuned to them: plain torch, eager or
    compiled."""
    attention_backward: float
    """Efficiency of the fused attention backward beside the forward."""
    narrow_heads: float
    """Growth of 1/efficiency of fused attention per unit of 128/d - 1, outside the widths measured."""
    host_s: float
    """Host time of a launch, operator by operator, through a framework."""
    compiled_host_s: float

    def __post_init__(self) -> None:
        sustained = [getattr(self, name) for name in sustained_names() if name != "sustained_ultra"]
        shares = (self.hbm_efficiency, self.attention_backward, *sustained)
        times = (self.kernel_floor_s, self.xla_floor_s, self.host_s, self.compiled_host_s)
        rest = (self.tile_penalty, self.narrow_heads, self.sustained_ultra, *times)
        if not all(0 < share <= 1 for share in shares) or min(rest) < 0:
            raise BadQuantity(
                place="the constants of compute",
                cause=f"shares {shares}, times and penalties {rest}",
                fix="give shares in (0, 1], and nothing negative",
            )

    def sustained(self, chip: Chip, style: str, dtype: str) -> float:
        """The share of a chip's ceiling at which products of a dtype run for minutes on end."""
        family = SUSTAINED.get(chip.architecture, "ampere")
        share: float = getattr(self, f"sustained_{family}")
        share = getattr(self, f"sustained_{family}_{BITS.get(dtype, '16')}", share)
        if chip.ultra:
            share = min(1.0, share * self.sustained_ultra)
        untuned = family in ("hopper", "blackwell") and style in ("eager", "compiled")
        return share * self.sustained_untuned if untuned else share

    def isolated(self) -> ComputeConstants:
        """The constants for products by themselves, as benchmarks of kernels run them."""
        return replace(self, **dict.fromkeys(sustained_names(), 1.0))

    def floor_s(self, chip: Chip) -> float:
        return self.xla_floor_s if chip.architecture == "tpu" else self.kernel_floor_s


@dataclass(frozen=True, slots=True)
class Chip:
    """A device as its matmuls and attention kernels see it.

    `ceilings`: the share of the peak of a dtype (`bf16`, `fp8`); `usual`: the same for any other dtype.
    `ultra`: it is given more power than the first ones of its architecture.
    """

    units: int
    architecture: str
    ceilings: tuple[tuple[str, Quantity], ...]
    usual: Quantity
    ultra: bool = False

    def ceiling(self, dtype: str) -> Quantity:
        """The share of the peak that a dtype can reach; bf16 and fp16 run at one rate, so that either speaks for the
        other."""
        alike = ("bf16", "fp16") if dtype in ("bf16", "fp16") else (dtype,)
        return next((share for name, share in self.ceilings if name in alike), self.usual)


def sustained_names() -> tuple[str, ...]:
    """The constants that say what lasts."""
    return tuple(field.name for field in fields(ComputeConstants) if field.name.startswith("sustained_"))


def constants() -> ComputeConstants:
    """The shipped constants."""
    table = profile()["constants"]
    return ComputeConstants(**{field.name: float(table[field.name]["value"]) for field in fields(ComputeConstants)})


def chip_of(device: Device) -> Chip:
    """The chip of a device, or of the one that a user's device is like; else a chip without units to quantize over."""
    table = profile()
    usual = _share(*table["families"].get(device.vendor, table["families"]["any"]))
    entry = table["chips"].get(device.name) or table["chips"].get(device.like)
    if entry is None:
        return Chip(1, "", (), usual)
    ceilings = tuple((name, _share(*pair)) for name, pair in entry["ceilings"].items())
    return Chip(entry["units"], entry["architecture"], ceilings, usual, entry.get("ultra", False))


def _share(share: float, name: str) -> Quantity:
    source = profile()["sources"][name]
    return Quantity(value=float(share), unit="1", source=source["document"], date=source["date"], kind=source["kind"])


@cache
def profile() -> dict[str, Any]:
    return read_json("compute.json")


def read_json(name: str) -> dict[str, Any]:
    text = resources.files("meshwright.cost_models").joinpath("profiles", name).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
