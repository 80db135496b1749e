"""Prices of compute: one kernel on one device, in seconds.

In goes a `Kernel`: the part of the device it keeps busy, its work, precision and local sizes. Out comes a `Priced`:
seconds, the efficiency they stand for, and the provenance of the weakest number in them. What is predicted is
efficiency (achieved over peak), never time; seconds follow from it, and an efficiency is never above 1.

    MATMUL     the table's time for a measured shape; kriging inside its hull (`gemm_table`); else the law of tiles and
               waves (`gemm`), at  peak · ceiling · sustained;  then the casts of low precision (`memory_bound`)
    ATTENTION  curves by kernel generation, width, mask, sequence (`attention`)
    CONV       its flops at the ceiling, or its bytes
    MEMORY     its bytes at the reached bandwidth (`memory_bound`)
    VIEW       nothing runs

Every kernel takes a floor beside its work. Host time is apart: a launch costs the host `host_s`, and shows only where
the device would run dry, so that a stretch of kernels takes max(sum of device seconds, launches · host_s); see `step`.

Where the machine itself was measured (`Times`), products, attention and streams take what is said there, times what
they take longer inside a training step (`Busy.scale`).

`Compute` is built once per (device, attention generation, style, constants). It holds a dictionary of prices already
given, so that asking again costs a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshwright.cost_models.compute.attention import (
    BLOCK,
    UNFUSED,
    Curves,
    filled,
    shipped_curves,
    visible_share,
)
from meshwright.cost_models.compute.gemm import VECTOR, Product, Rates, aligned, law_s, untiled_s
from meshwright.cost_models.compute.gemm_table import Shape, Table, shipped_rows, table_of
from meshwright.cost_models.compute.memory_bound import CAST_BYTES, SCALE_BYTES, cast_bytes, streamed_s
from meshwright.cost_models.compute.profile import ComputeConstants, chip_of, constants
from meshwright.cost_models.hardware import devices as hardware
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Kind, weakest_kind
from meshwright.cost_models.measured.times import Times
from meshwright.ir.errors import AttentionUnknown, KernelMalformed
from meshwright.ir.rules.base import Engine

WORKS = ("forward", "dgrad", "wgrad", "backward")
PEAK_OF = {
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "fp8_tensorwise": "fp8",
    "fp8_blockwise": "fp8",
    "mxfp8": "fp8",
}
"""The peak that a precision runs at, where its name differs."""
WIDTH_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "nvfp4": 0.5, "mxfp4": 0.5}

EXPERT_LAUNCHES = 3
"""Kernels of one expert's product in eight bits or fewer: its rows are cast, and their scales found before or arranged
after that, each by a kernel of its own, since none before makes them expert by expert (Transformer Engine's
GroupedLinear, as of 2025). Each costs the host a launch, and the device a floor."""

UNFUSED_KERNELS = {"forward": 3, "backward": 5}
"""Of attention that is written out: scores, softmax, values; and backward two products for each of these, and one
derivative of the softmax."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as prices see it, with local sizes on one rank.

    - `work` is one of `WORKS`; attention backward is one kernel, "backward".
    - `dtype` is the precision of the matrix unit (fp32 tf32 bf16 fp16 fp8_tensorwise fp8_blockwise mxfp8 nvfp4), or,
      beside MATMUL, the dtype of the tensors.
    - `flops` as the rule counts them: those of attention are not halved for the mask, `causal` and `window` (keys that
      a query sees, or sees on each side; 0 is all) say what is masked. `nbytes` go through device memory.
    - `shape` of MATMUL is that of the product which runs, (groups, m, n, k): `gemm.gradients` gives those of dgrad and
      wgrad. Of ATTENTION (batch, heads, kv_heads, sq, sk, d_qk, d_v). Else it is empty.
    """

    engine: Engine
    work: str
    dtype: str
    flops: float
    nbytes: float
    shape: tuple[int, ...] = ()
    causal: bool = False
    window: int = 0
    routed: bool = False
    """Of MATMUL: each group is an expert, whose rows depend on routing. Other groups are a batch: one kernel."""


@dataclass(frozen=True, slots=True)
class Priced:
    """Seconds on the device, the provenance of the weakest number behind them, and the share of the peak (of FLOP/s,
    or of bytes/s for a kernel that only moves bytes) that the kernel reaches."""

    seconds: float
    kind: Kind
    efficiency: float


class Compute:
    """Prices of kernels on a device. See the module docstring."""

    __slots__ = (
        "_chip",
        "_curves",
        "_floor_s",
        "_prices",
        "_style",
        "_table",
        "_vector_bytes",
        "attention",
        "bytes_per_s",
        "constants",
        "device",
        "host_s",
        "least",
        "measured",
        "one_by_one",
    )

    def __init__(
        self,
        device: Device,
        *,
        style: str = "eager",
        attention: str = "flash3",
        values: ComputeConstants | None = None,
        curves: Curves | None = None,
        table: Table | None = None,
        one_by_one: bool = False,
        measured: Times | None = None,
        least: bool = False,
    ) -> None:
        """`attention` is the generation of the stack's kernels; the attribute is the one that runs here
        (`attention.DISPATCH`). `values`, `curves` and `table` replace the shipped ones. `one_by_one`: products of
        experts run as one kernel for each expert, which fills the device or does not. `measured`: times of this very
        machine; `least`: of each kernel what it takes in whatever parts."""
        self.device, self.one_by_one = device, one_by_one
        self.measured, self.least = measured, least
        self.constants = values or constants()
        self._chip = chip_of(device)
        self._style = style
        self._vector_bytes = 1 if self._chip.architecture == "tpu" else VECTOR
        self._curves = curves or Curves(*shipped_curves(), self.constants.narrow_heads)
        self._table = table or shipped_table(device, self.constants)
        self.attention = self._dispatched(attention)
        self._floor_s = self.constants.floor_s(self._chip)
        self.bytes_per_s = device.memory_bandwidth.value * self.constants.hbm_efficiency
        self.host_s = self._host_s(style)
        self._prices: dict[Kernel, Priced] = {}

    def seconds(self, kernel: Kernel) -> Priced:
        found = self._prices.get(kernel)
        if found is None:
            found = self._prices[kernel] = _BY_ENGINE[kernel.engine](self, kernel)
        return found

    def kernels(self, kernel: Kernel) -> int:
        """The number of device kernels that a kernel stands for: each takes a floor there, and a launch of the host.

        A product of a batch is one, and so are all experts where a library has a kernel for them together; where it
        runs them one by one, each is one, or `EXPERT_LAUNCHES`. Casts before a product are one more. Attention that is
        written out is two products around a softmax, and two for each of these products backward. All else is one."""
        if kernel.engine is Engine.VIEW:
            return 0
        if kernel.engine is Engine.MATMUL:
            casts = cast_bytes(kernel.dtype, kernel.work, *_sizes(kernel, 4)) > 0
            apart = self._apart(kernel)
            return apart * (EXPERT_LAUNCHES if kernel.dtype in CAST_BYTES else 1) if apart > 1 else 1 + casts
        if kernel.engine is Engine.ATTENTION and self._written_out(kernel):
            return UNFUSED_KERNELS[kernel.work]
        return 1

    def _apart(self, kernel: Kernel) -> int:
        """The kernels that multiply: one for each expert, or one."""
        return kernel.shape[0] if self.one_by_one and kernel.routed else 1

    def _host_s(self, style: str) -> float:
        """Seconds of the host's launches: fused kernels are launched one by one as well; a program of XLA is launched
        whole."""
        values = self.constants
        by_style = {"eager": values.host_s, "fused": values.host_s, "compiled": values.compiled_host_s}
        return by_style.get(style, 0.0)

    def _dispatched(self, generation: str) -> str:
        if self.measured is not None and self.measured.fused and generation not in UNFUSED:
            return generation  # whatever kernels it is made of
        found = self._curves.running(generation, self._chip.architecture)
        if found is None:
            raise AttentionUnknown(
                place=f"device {self.device.name!r}",
                cause=f"no efficiency is known of {generation!r} attention on its architecture",
                fix=f"choose one of {', '.join(self._curves.on(self._chip.architecture) + UNFUSED)}",
            )
        return found

    def _matmul(self, kernel: Kernel) -> Priced:
        groups, m, n, k = _sizes(kernel, 4)
        name = PEAK_OF.get(kernel.dtype, kernel.dtype)
        peak = self.device.peak(name)
        apart = self._apart(kernel)
        together = groups // apart
        found = self._looked_up(name, together, m, n, k)
        if found is None:
            ceiling = self._chip.ceiling(name)
            in_bytes = WIDTH_BYTES[name] + SCALE_BYTES.get(kernel.dtype, 0.0)
            product = Product(together, m, n, k, in_bytes, max(2.0, WIDTH_BYTES[name]))
            lasting = self._sustained(name) * (self.constants.sustained_grouped if kernel.routed else 1.0)
            seconds = law_s(product, self._rates(peak.value * ceiling.value * lasting))
            found = seconds, weakest_kind("fitted", ceiling.kind)
        each_s, kind = found
        cast = cast_bytes(kernel.dtype, kernel.work, groups, m, n, k)
        casts_s = streamed_s(cast, self.bytes_per_s, (self.kernels(kernel) - apart) * self._floor_s)
        seconds = apart * each_s + casts_s
        seconds = max(seconds, 2.0 * groups * m * n * k / peak.value)
        return Priced(seconds, kind, 2.0 * groups * m * n * k / (seconds * peak.value))

    def _looked_up(self, dtype: str, groups: int, m: int, n: int, k: int) -> tuple[float, Kind] | None:
        """The measured time, if the table is for this precision; outside its hull perhaps that of the transposed
        product."""
        if self.measured is not None:
            ask = self.measured.product_least if self.least else self.measured.product
            if (own := ask(dtype, groups, m, n, k)) is not None:
                nbytes = WIDTH_BYTES[dtype] * groups * (m * k + k * n + m * n)
                return self._scaled(*own, cold_s=self.measured.busy.cold_s_per_byte * nbytes)
        table = self._table
        if table is None or groups != 1 or dtype != table.dtype:
            return None
        exact = table.exact_s((m, n, k))
        if exact is not None:
            return exact, "measured" if table.device == self.device.name else "fitted"
        for shape in ((m, n, k), (n, m, k)):
            between = table.interpolated_s(shape)
            if between is not None:
                return between, "fitted"
        return None

    def _scaled(self, seconds: float, kind: Kind, cold_s: float = 0.0) -> tuple[float, Kind]:
        """A measured time as inside a training step; `cold_s`: what it takes there to fetch what it reads."""
        assert self.measured is not None
        scale = self.measured.busy.scale
        return seconds * scale + cold_s, kind if scale == 1 and not cold_s else weakest_kind(kind, "fitted")

    def _sustained(self, dtype: str) -> float:
        return self.constants.sustained(self._chip, self._style, dtype)

    def _rates(self, flops_per_s: float) -> Rates:
        return Rates(
            flops_per_s=flops_per_s,
            bytes_per_s=self.bytes_per_s,
            units=self._chip.units,
            tile_penalty=self.constants.tile_penalty,
            floor_s=self._floor_s,
            vector_bytes=self._vector_bytes,
        )

    def _attention(self, kernel: Kernel) -> Priced:
        batch, heads, _, sq, sk, d_qk, d_v = _sizes(kernel, 7)
        name = PEAK_OF.get(kernel.dtype, kernel.dtype)
        if (own := self._own_attention(kernel, name)) is not None:
            return own
        if self._written_out(kernel):
            return self._unfused(kernel, name)
        peak = self.device.peak(name)
        reach = min(sk, kernel.window) if kernel.window else sk
        windowed = bool(kernel.window) and kernel.window < sk
        found = self._curves.efficiency(
            self.attention,
            self._chip.architecture,
            "fp8" if name == "fp8" else "bf16",
            max(1, (d_qk + d_v) // 2),
            kernel.causal and not windowed,
            reach,
        )
        assert found is not None, "what is dispatched has a curve"
        efficiency, kind = found
        efficiency *= filled(d_qk)
        share = visible_share(sq, sk, kernel.causal, kernel.window)
        if windowed:
            share = min(1.0, share * (reach + BLOCK) / reach)
        work = kernel.flops * share
        if kernel.work == "backward":
            work, efficiency = work * 5 / 4, efficiency * self.constants.attention_backward
        blocks = batch * heads * -(-max(sq, 1) // BLOCK)
        fill = max(1.0, self._chip.units / blocks)
        seconds = max(work / (peak.value * efficiency) * fill, kernel.nbytes / self.bytes_per_s)
        seconds += self._floor_s
        return Priced(seconds, kind, min(1.0, work / (seconds * peak.value)))

    def _own_attention(self, kernel: Kernel, name: str) -> Priced | None:
        """Attention by measurement, which was of the fused operator, whatever that is made of on this machine."""
        if self.measured is None or self.attention in UNFUSED:
            return None
        b, h, kv, sq, sk, d_qk, d_v = _sizes(kernel, 7)
        ask = self.measured.attention_least if self.least else self.measured.attention
        found = ask(name, kernel.work, kernel.causal, kernel.window, (b, h, kv, sq, sk, d_qk, d_v))
        if found is None:
            return None
        seconds, kind = self._scaled(*found)
        work = kernel.flops * visible_share(sq, sk, kernel.causal, kernel.window)
        return Priced(seconds, kind, min(1.0, work / (seconds * self.device.peak(name).value)))

    def _written_out(self, kernel: Kernel) -> bool:
        """Whether attention scores go through memory: fused attention wants 16 bits or fewer, or a machine on which it
        was measured in more."""
        name = PEAK_OF.get(kernel.dtype, kernel.dtype)
        if self.measured is not None and self.attention not in UNFUSED and name in self.measured.fused:
            return False
        return self.attention in UNFUSED or PEAK_OF.get(kernel.dtype, kernel.dtype) in ("fp32", "tf32", "fp64")

    def _unfused(self, kernel: Kernel, name: str) -> Priced:
        """The rate of attention with scores in memory: FLOP/s follow bandwidth, and all scores of a window are made."""
        *_, sk, d_qk, d_v = _sizes(kernel, 7)
        causal = kernel.causal and not kernel.window and self.attention != "megatron"
        per_byte = self._curves.unfused(causal, sk) * ((d_qk + d_v) / 2 / BLOCK) * (2.0 / WIDTH_BYTES[name])
        per_byte *= aligned(d_qk, WIDTH_BYTES[name], self._vector_bytes)
        share = visible_share(sk, sk, True, 0) if causal else 1.0
        peak = self.device.peak(name)
        ceiling = self._chip.ceiling(name).value
        rate = min(per_byte * self.device.memory_bandwidth.value, peak.value * ceiling)
        seconds = kernel.flops * share / rate + self.kernels(kernel) * self._floor_s
        return Priced(seconds, "fitted", min(1.0, kernel.flops * share / (seconds * peak.value)))

    def _conv(self, kernel: Kernel) -> Priced:
        name = PEAK_OF.get(kernel.dtype, kernel.dtype)
        peak = self.device.peak(name)
        ceiling = self._chip.ceiling(name)
        rate = peak.value * ceiling.value * self._sustained(name)
        seconds = max(kernel.flops / rate, kernel.nbytes / self.bytes_per_s) + self._floor_s
        return Priced(seconds, weakest_kind("fitted", ceiling.kind), kernel.flops / (seconds * peak.value))

    def _memory(self, kernel: Kernel) -> Priced:
        if self.measured is not None:
            ask = self.measured.stream_least if self.least else self.measured.stream
            seconds, kind = self._scaled(ask(kernel.nbytes), "fitted")
            return Priced(seconds, kind, min(1.0, kernel.nbytes / (seconds * self.device.memory_bandwidth.value)))
        seconds = streamed_s(kernel.nbytes, self.bytes_per_s, self._floor_s)
        return Priced(seconds, "fitted", kernel.nbytes / (seconds * self.device.memory_bandwidth.value))

    def _view(self, kernel: Kernel) -> Priced:
        return Priced(0.0, "measured", 1.0)


_BY_ENGINE = {
    Engine.MATMUL: Compute._matmul,
    Engine.ATTENTION: Compute._attention,
    Engine.CONV: Compute._conv,
    Engine.MEMORY: Compute._memory,
    Engine.VIEW: Compute._view,
}


def _sizes(kernel: Kernel, count: int) -> tuple[int, ...]:
    if len(kernel.shape) != count or min(kernel.shape) < 1 or kernel.work not in WORKS:
        raise KernelMalformed(
            place=f"a kernel of {kernel.engine.value}",
            cause=f"shape {kernel.shape}, work {kernel.work!r}",
            fix=f"give {count} positive sizes, and a work of {', '.join(WORKS)}",
        )
    return kernel.shape


@lru_cache(maxsize=8)
def shipped_table(device: Device, values: ComputeConstants) -> Table | None:
    """The shipped table, on the device that it was measured on or another of the same chip; times go with the peak."""
    name, dtype, rows = shipped_rows()
    measured = hardware.device(name)
    if device.name != name:
        if chip_of(device) != chip_of(measured) or dtype not in device.dtypes:
            return None
        ratio = measured.peak(dtype).value / device.peak(dtype).value
        rows = tuple((shape, seconds * ratio) for shape, seconds in rows)
    return table_for(device, values, rows, dtype, name)


def table_for(
    device: Device,
    values: ComputeConstants,
    rows: tuple[tuple[Shape, float], ...],
    dtype: str,
    measured_on: str,
) -> Table:
    """A table on a device, with the law, in isolation, as its base: on CPUs the one without tiles."""
    chip = chip_of(device)
    units, timed = (0, untiled_s) if chip.architecture == "cpu" else (chip.units, law_s)
    rates = Rates(
        flops_per_s=device.peak(dtype).value * chip.ceiling(dtype).value,
        bytes_per_s=device.memory_bandwidth.value * values.hbm_efficiency,
        units=chip.units,
        tile_penalty=values.tile_penalty,
        floor_s=values.floor_s(chip),
    )
    width = WIDTH_BYTES[dtype]

    def law(shape: Shape) -> float:
        return timed(Product(1, *shape, width, width), rates)

    return table_of(rows, law, units, measured_on, dtype)
