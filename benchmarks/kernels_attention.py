"""Attention kernels, predicted beside measured, each row left out in turn.

The price is the production one, `Compute` with the shipped curves; a row that is a point of a shipped curve is taken
out of it before asking (where two documents measured one point, the other stays). Rows that no curve holds are priced
as they stand. Measured seconds follow from the row's TFLOP/s, which the documents count with causal halving, backward
as 2.5 times forward (FlashAttention-2, arXiv:2307.08691, section 4).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.kernel_scores import Scored, Skip, number, read_each, report
from meshwright.cost_models.compute.attention import Curve, Curves, shipped_curves
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.compute.profile import chip_of, constants
from meshwright.cost_models.hardware.devices import Device, device
from meshwright.ir.rules.base import Engine

GENERATIONS = {
    "standard": "math",
    "flash_attn_1": "flash1",
    "flash_attn_2": "flash2",
    "flash_attn_3": "flash3",
    "triton": "triton",
    "triton_fa2": "triton_fa2",
    "cudnn": "cudnn",
}
_DTYPES = {"fp16": "fp16", "bf16": "bf16", "bf16_or_fp16": "bf16", "fp8": "fp8"}
_COUNTED = {"fwd": 1.0, "bwd": 2.5, "fwd_bwd": 3.5}
_WORKS = {"fwd": ("forward",), "bwd": ("backward",), "fwd_bwd": ("forward", "backward")}
_RULE_COUNTS = {"forward": 1.0, "backward": 2.0}


def score(path: Path) -> dict[str, object]:
    """Of the attention rows among (kernel, device, dtype, batch, heads, head_dim, seq_len, causal, direction, tflops,
    impl)."""
    return report(*read_each(path, _scored))


def _scored(row: dict[str, str]) -> Scored:
    if row.get("kernel") != "attention":
        raise Skip(f"a row of {row.get('kernel')}")
    generation, dtype, direction = _known(GENERATIONS, row, "impl"), _known(_DTYPES, row, "dtype"), row["direction"]
    if direction not in _WORKS:
        raise Skip(f"direction {direction!r} is not known")
    batch, heads, width, sequence = (int(number(row, name)) for name in ("batch", "heads", "head_dim", "seq_len"))
    if row.get("causal") not in ("0", "1"):
        raise Skip(f"causal is {row.get('causal')!r}")
    causal = row["causal"] == "1"
    full = 4.0 * batch * heads * sequence**2 * width
    measured_s = full * _COUNTED[direction] * (0.5 if causal else 1.0) / (number(row, "tflops") * 1e12)
    one = device(row["device"])
    curves = _without(one, generation, dtype, width, causal, sequence, number(row, "tflops") * 1e12)
    prices = Compute(one, attention=generation, curves=curves)
    shape = (batch, heads, heads, sequence, sequence, width, width)
    predicted_s = sum(
        prices.seconds(Kernel(Engine.ATTENTION, work, dtype, full * _RULE_COUNTS[work], 0.0, shape, causal)).seconds
        for work in _WORKS[direction]
    )
    return Scored(f"{row.get('source', '')} {row['impl']}", predicted_s, measured_s)


def _known(table: dict[str, str], row: dict[str, str], name: str) -> str:
    found = table.get(row.get(name, ""))
    if found is None:
        raise Skip(f"{name} {row.get(name)!r} is not known")
    return found


def _without(
    one: Device, generation: str, dtype: str, width: int, causal: bool, sequence: int, flops_per_s: float
) -> Curves:
    """The shipped curves, less the one point that is this row."""
    measured, figures = shipped_curves()
    name = "fp8" if dtype == "fp8" else "bf16"
    architecture = chip_of(one).architecture
    against = one.memory_bandwidth.value if generation == "math" else one.peak(name).value
    point = (sequence, round(flops_per_s / against, 4))
    law = (generation, architecture, name, width, causal)
    kept = (_dropped(curve, point) if _law(curve) == law else curve for curve in measured)
    return Curves(tuple(curve for curve in kept if curve.points), figures, constants().narrow_heads)


def _law(curve: Curve) -> tuple[str, str, str, int, bool]:
    return curve.generation, curve.architecture, curve.dtype, curve.head_dim, curve.causal


def _dropped(curve: Curve, point: tuple[int, float]) -> Curve:
    points = list(curve.points)
    if point in points:
        points.remove(point)
    return replace(curve, points=tuple(points))
