"""Everything that is known of a device: its datasheet, its links, and the share of its peaks that is reached.

In: the name of a device. Out: a `Known`, in which every number says where it comes from. Nothing is priced here.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost_models.compute.profile import Chip, chip_of
from meshwright.cost_models.hardware.devices import Device, device, devices, latency_of
from meshwright.cost_models.hardware.quantity import Quantity

SIXTEEN_BITS = ("bf16", "fp16")
"""The dtypes of 16 bits, the preferred one first: V100 and T4 have a peak for the second one alone."""
OF_ALL = "any"
"""The vendor of what is of no one vendor, which is listed last."""


@dataclass(frozen=True, slots=True)
class Known:
    """A device of the table, and its chip."""

    device: Device
    chip: Chip

    @property
    def peak_16_bits(self) -> tuple[str, Quantity] | None:
        """The dtype of 16 bits that the device multiplies in, and its peak."""
        return next(((name, self.device.peak(name)) for name in SIXTEEN_BITS if name in self.device.dtypes), None)

    @property
    def reached(self) -> Quantity:
        """The share of its peak that products reach: of 16 bits, or of the dtype that it has."""
        return self.chip.ceiling(next((name for name in SIXTEEN_BITS if name in self.device.dtypes), ""))

    def quantities(self) -> tuple[tuple[str, Quantity], ...]:
        """Every number, by name: those of the device, the latencies of its links, the shares that are reached."""
        found = list(self.device.quantities())
        wires = (self.device.island, self.device.host_link, self.device.nic)
        kinds = dict.fromkeys(wire.kind for wire in wires if wire is not None)
        found += [(f"latency, {kind}", latency_of(kind)) for kind in kinds]
        found += [(f"share of the peak reached, {dtype}", share) for dtype, share in self.chip.ceilings]
        left = [dtype for dtype in self.device.dtypes if self.chip.ceiling(dtype) is self.chip.usual]
        if left:
            found.append((f"share of the peak reached, {', '.join(left)}", self.chip.usual))
        return tuple(found)

    def to_json(self) -> dict[str, object]:
        """All of it as data."""
        return {
            **self.device.to_json(),
            "aliases": list(self.device.aliases),
            "architecture": self.chip.architecture or None,
            "units": self.chip.units if self.chip.architecture else None,
            "numbers": [{"name": name, **quantity.to_json()} for name, quantity in self.quantities()],
        }


def known(name: str) -> Known:
    """Everything that is known of the device of a name or alias."""
    return _known(device(name))


def all_known() -> tuple[Known, ...]:
    """Every device of the table: by vendor, the fastest in 16 bits first."""
    return tuple(sorted(map(_known, devices()), key=_place))


def _known(one: Device) -> Known:
    return Known(one, chip_of(one))


def _place(one: Known) -> tuple[bool, str, float, str]:
    peak = one.peak_16_bits
    vendor = one.device.vendor
    return vendor == OF_ALL, vendor, -peak[1].value if peak else 0.0, one.device.name
