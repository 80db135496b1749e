"""Parts of expressions in PyTorch: dtypes, shapes, parts of dimensions.

Expressions name what they read by position (`backends.printing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import axes_of, nested
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.ir.sharding.layouts import Layout, Uneven

DTYPE = {
    "f64": "torch.float64", "f32": "torch.float32", "bf16": "torch.bfloat16", "f16": "torch.float16",
    "f8e4m3": "torch.float8_e4m3fn", "f8e5m2": "torch.float8_e5m2", "i64": "torch.int64", "i32": "torch.int32",
    "i16": "torch.int16", "i8": "torch.int8", "u8": "torch.uint8", "bool": "torch.bool", "c64": "torch.complex64",
}  # fmt: skip


def shape_of(shape: Sequence[int], *, batch: bool) -> str:
    """A shape as arguments; with `batch`, of any length along the first dimension."""
    free = batch and bool(shape) and prod(shape[1:]) > 0
    return ", ".join(["-1", *map(str, shape[1:])] if free else list(map(str, shape)))


def part(text: str, axis: str, dim: int, layout: Layout, extent: int, op: str) -> str:
    """This rank's part of a value that all have, along an axis that cuts a dimension of so many elements."""
    if isinstance(layout, Uneven):
        return f"{text}.split({list(layout.sizes)}, {dim})[{axis}.get_local_rank()]"
    return f"cut({text}, {axis}, {dim}{nested(layout, extent, op)})"


def ranks_of(call: LocalOp, factor: str) -> str:
    """The ranks that have the parts of a factor, as an argument (`Printed.together`)."""
    return joined(axes_of(call, factor))


def positions(call: LocalOp, factor: str, slot: int | None) -> str:
    """The global indices of a factor on this rank, in order; `slot` says on which device."""
    device = "" if slot is None else f", device=%{slot}.device"
    text, extent = f"torch.arange({call.sizes[factor]}{device})", call.sizes[factor]
    for axis, layout in call.cuts.get(factor, ()):
        text = part(text, axis, 0, layout, extent, call.op.name)
    return text
