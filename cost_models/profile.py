"""Profiles: every number that a price needs beside datasheets, as one frozen value.

`published()` is the profile that is shipped: constants fitted on published runs, tables and curves of published
measurements. A calibration of a machine replaces parts of it (`calibrated`): kernels, launches and collectives take
what was measured, and constants that stand for what is now known are neutral. Constants of compute, memory and
collectives live with their models; here are those of the step as a whole, read from `profiles/step.json`, each with its
unit, what it was fitted on, and its date.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, TypeVar

from meshwright.cost_models.collectives.curves import Curves
from meshwright.cost_models.compute.kernels import table_for
from meshwright.cost_models.compute.profile import ComputeConstants, constants, sustained_names
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import DTYPES, Device
from meshwright.cost_models.hardware.devices import device as known
from meshwright.cost_models.hardware.quantity import Kind, Quantity
from meshwright.cost_models.intervals.seen import Case, Seen
from meshwright.cost_models.intervals.widths import Intervals, Widths
from meshwright.cost_models.measured.file import measured_text
from meshwright.cost_models.measured.measured import (
    NO_OVERHEADS,
    AttentionTime,
    Busy,
    Measured,
    Overheads,
    ProductTime,
    StreamTime,
    family_of,
)
from meshwright.cost_models.measured.times import Times
from meshwright.cost_models.memory.peak import MemoryConstants, memory_constants
from meshwright.ir.errors import BadQuantity, ProfileElsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """Constants of how compute and communication overlap in a step.

    - Shares must lie in [0, 1]; the others must not be negative.
    """

    hidden_tensor: float
    """Share of tensor-parallel collectives that a stack which splits them into chunks hides behind products."""
    hidden_backward: float
    """Share of the backward pass's tensor-parallel collectives that run beside weight gradients by themselves."""
    covered: float
    """Share of compute that gathers and reductions of parameters and gradients can run behind."""
    slowdown: float
    """Slow-down of compute while such a collective runs beside it."""
    straggling: float
    """Growth of the step per doubling of the hosts: ranks wait for the slowest."""

    def __post_init__(self) -> None:
        shares = (self.hidden_tensor, self.hidden_backward, self.covered)
        rest = (self.slowdown, self.straggling)
        if not all(0 <= share <= 1 for share in shares) or min(rest) < 0:
            raise BadQuantity(
                place="the constants of a step",
                cause=f"shares {shares}, others {rest}",
                fix="give shares in [0, 1], and nothing negative",
            )


BEYOND = 2
"""How many times as wide an interval is, in its logarithm, for kernels beyond the range of what was measured: assumed,
as nothing was measured there."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All constants that prices use."""

    name: str
    compute: ComputeConstants
    step: StepConstants
    memory: MemoryConstants
    intervals: Intervals
    """Around steps, where whole steps of this machine were not measured."""
    measured: Measured | None = None
    """What was found on the machine itself; None: nothing was."""

    @cached_property
    def curves(self) -> Curves | None:
        """Curves of collectives that were measured on the machine itself; None: those that are shipped."""
        return None if self.measured is None else Curves(self.measured.curves)

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster with the rates that were measured of its devices."""
        if self.measured is None:
            return cluster
        pools = tuple(
            replace(pool, device=_with_rates(pool.device, self.measured, pool.gpus_per_host))
            if pool.device.name == self.measured.identity.device
            else pool
            for pool in cluster.pools
        )
        return replace(cluster, pools=pools)

    def check_of(self, cluster: Cluster) -> None:
        """Check that measurements are of a device that the cluster has."""
        names = [pool.device.name for pool in cluster.pools]
        like = [pool.device.like for pool in cluster.pools]
        if self.measured is not None and self.measured.identity.device not in (*names, *like):
            raise ProfileElsewhere(
                place=f"profile {self.name}",
                cause=f"it is of {self.measured.identity.device}, and the cluster has {', '.join(names)}",
                fix="name a profile of that device, or leave --profile out",
            )

    def times(self, device: Device, ranks: int) -> Times | None:
        """Measured times of kernels on a device, while so many ranks of its host are at work; on one of a user's own
        that is like the measured one, at its rates."""
        if self.measured is None or self.measured.identity.device not in (device.name, device.like):
            return None
        busy = self.measured.with_ranks(ranks)
        itself = device.name == self.measured.identity.device
        if not itself:
            busy = _at_rates_of(device, busy, known(device.like))
        rows = {dtype: [row for row in busy.products if row.dtype == dtype] for dtype in busy.dtypes}
        alone = {
            dtype: tuple((row.shape[1:], row.p50_s) for row in of if row.shape[0] == 1) for dtype, of in rows.items()
        }
        tables = {
            dtype: table_for(device, self.compute, one, dtype, device.name) for dtype, one in alone.items() if one
        }
        return Times(busy, tables, "measured" if itself else "fitted")

    def interval(self, case: Case, stages: int, *, inside: bool) -> tuple[float, float]:
        """The ends of the interval around a predicted step of so many stages, as shares of it: that of its family of
        plans where whole steps were measured, and wider where the plan has kernels that are not `inside` the range of
        what was measured; else by what of the case was among the runs that constants were fitted on."""
        if self.measured is None or not self.measured.spreads:
            return self.intervals.around(case)
        low, high = self.measured.spread(family_of(stages))
        return (low, high) if inside else (low**BEYOND, high**BEYOND)

    @property
    def overheads(self) -> Overheads:
        """Host seconds of the runtime; none that are known by the shipped profile."""
        return NO_OVERHEADS if self.measured is None else self.measured.overheads

    @property
    def synchronous(self) -> bool:
        """Whether host and device take turns."""
        return self.measured is not None and self.measured.synchronous

    def launch_s(self, ranks: int) -> float | None:
        """Measured host seconds of a launch while so many ranks of a host are at work; None: not measured."""
        return None if self.measured is None else self.measured.with_ranks(ranks).launch_s


def _at_rates_of(own: Device, busy: Busy, base: Device) -> Busy:
    """Measured times on a device that is like the measured one: longer by as much as the rates that it is given are
    below the measured ones. Rates that are those of its kind were not given, and are as measured."""
    usual = dict(base.peaks)
    slower = {dtype: busy.peak_flops_per_s(dtype) / peak.value for dtype, peak in own.peaks if peak != usual.get(dtype)}
    streaming = 1.0
    if own.memory_bandwidth != base.memory_bandwidth:
        streaming = busy.bytes_per_s / own.memory_bandwidth.value
    return replace(
        busy,
        products=tuple(_longer(row, slower.get(row.dtype, 1.0)) for row in busy.products),
        attention=tuple(_longer(row, slower.get(row.dtype, 1.0)) for row in busy.attention),
        streams=tuple(_longer(row, streaming) for row in busy.streams),
    )


Row = TypeVar("Row", ProductTime, AttentionTime, StreamTime)


def _longer(row: Row, times: float) -> Row:
    return replace(row, p50_s=row.p50_s * times, p90_s=row.p90_s * times)


def _with_rates(device: Device, measured: Measured, ranks: int) -> Device:
    """A device with measured peaks and memory bandwidth."""
    busy, source = measured.with_ranks(ranks), f"profile {measured.name}"
    peaks = {
        dtype: Quantity(value=rate, unit="flop/s", source=source, date=measured.made, kind="measured")
        for dtype in DTYPES
        if (rate := busy.peak_flops_per_s(dtype))
    }
    known = dict(device.peaks) | peaks
    return replace(
        device,
        peaks=tuple((dtype, known[dtype]) for dtype in DTYPES if dtype in known),
        memory_bandwidth=Quantity(
            value=busy.bytes_per_s, unit="bytes/s", source=source, date=measured.made, kind="measured"
        ),
    )


def calibrated(measured: Measured) -> Profile:
    """The profile of a machine that was measured. Kernels that no measurement is like keep the shipped laws, at the
    rates that were measured."""
    shipped = published()
    shares = dict.fromkeys(sustained_names(), 1.0)
    return Profile(
        name=measured.name,
        compute=replace(shipped.compute, hbm_efficiency=1.0, **shares),
        step=replace(shipped.step, covered=measured.covered, slowdown=measured.slowdown),
        memory=shipped.memory,
        intervals=shipped.intervals,
        measured=measured,
    )


@cache
def published() -> Profile:
    """The shipped profile."""
    table = step_table()
    values = {field.name: float(table[field.name]["value"]) for field in fields(StepConstants)}
    return Profile(
        name="published",
        compute=constants(),
        step=StepConstants(**values),
        memory=memory_constants(),
        intervals=Intervals(seen=Seen.read(table["seen"]), widths=Widths.read(table)),
    )


@cache
def step_table() -> dict[str, Any]:
    """The constants of a step and the widths of intervals with their provenance, and what was seen, as written."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "step.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def digest(measured: Measured | None = None) -> str:
    """A short hexadecimal digest of every number that prices are made of, as written: those that are shipped, and
    those that were measured."""
    files = resources.files("meshwright.cost_models").joinpath("profiles").iterdir()
    held = sorted((file.name, file.read_bytes()) for file in files if file.is_file())
    own = b"" if measured is None else measured_text(measured).encode()
    return hashlib.sha256(b"".join(name.encode() + text for name, text in held) + own).hexdigest()[:DIGITS]


DIGITS = 16
"""Hexadecimal digits of a digest."""


def kind_of_step() -> Kind:
    """The weakest provenance among the constants of a step."""
    kinds: list[Kind] = [step_table()[field.name]["kind"] for field in fields(StepConstants)]
    return "assumed" if "assumed" in kinds else "fitted"
