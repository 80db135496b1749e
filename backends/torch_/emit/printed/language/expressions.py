"""Parts of expressions: calls, values, shapes, parts of dimensions; and refusals.

Expressions name what they read by position (`backends.printing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshwright.backends.printing import LocalOp
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Attr, Op
from meshwright.ir.quoting import constant
from meshwright.ir.sharding.layouts import CONTIGUOUS, Contiguous, Layout, Nested, Sections, Uneven, Zigzag

DTYPE = {
    "f64": "torch.float64", "f32": "torch.float32", "bf16": "torch.bfloat16", "f16": "torch.float16",
    "f8e4m3": "torch.float8_e4m3fn", "f8e5m2": "torch.float8_e5m2", "i64": "torch.int64", "i32": "torch.int32",
    "i16": "torch.int16", "i8": "torch.int8", "u8": "torch.uint8", "bool": "torch.bool", "c64": "torch.complex64",
}  # fmt: skip
Writer = Callable[[LocalOp], str]


def refuse(op: Op, cause: str, ways: tuple[str, ...] = ()) -> EmissionPrinted:
    """The refusal to print an operator, with the options of `plan` that help."""
    return EmissionPrinted(place=f"%{op.name} ({op.kind}) {op.source}".strip(), cause=cause, ways=ways)


def value(attr: Attr) -> str:
    """An attribute as code."""
    if isinstance(attr, tuple):
        inside = ", ".join(map(value, attr))
        return f"({inside},)" if len(attr) == 1 else f"({inside})"
    return constant(attr)


def read(slot: int) -> str:
    return f"%{slot}"


def called(function: str, *arguments: str, **named: Attr) -> str:
    given = [*arguments, *(f"{name}={value(one)}" for name, one in named.items())]
    return f"{function}({', '.join(given)})"


def every(call: LocalOp) -> list[str]:
    return [read(slot) for slot in range(len(call.given))]


def dim_of(call: LocalOp) -> int:
    """The dimension that an operator's attribute numbers, from the front."""
    dim = call.attrs["dim"]
    assert isinstance(dim, int)
    return dim % max(1, len(call.given[0].shape))


def shape_of(shape: Sequence[int], *, batch: bool) -> str:
    """A shape as arguments; with `batch`, of any length along the first dimension."""
    free = batch and bool(shape) and prod(shape[1:]) > 0
    return ", ".join(["-1", *map(str, shape[1:])] if free else list(map(str, shape)))


def layout_of(layout: Layout, op: str) -> str:
    """A layout as further arguments of a move."""
    if isinstance(layout, Contiguous):
        return ""
    if isinstance(layout, Zigzag):
        return ", zigzag=True"
    if isinstance(layout, Sections):
        return f", sections={value(layout.sizes)}"
    raise EmissionPrinted(place=op, cause=f"a dimension is cut {layout}")


def nested(layout: Layout, extent: int, op: str) -> str:
    """The layout of equal runs over a dimension of so many elements, as further arguments of a move."""
    if isinstance(layout, Nested):
        zigzag = ", zigzag=True" if isinstance(layout.layout, Zigzag) else ""
        return f", sections=({extent // layout.runs},) * {layout.runs}{zigzag}"
    return layout_of(layout, op)


def part(text: str, axis: str, dim: int, layout: Layout, extent: int, op: str) -> str:
    """This rank's part of a value that all have, along an axis that cuts a dimension of so many elements."""
    if isinstance(layout, Uneven):
        return f"{text}.split({list(layout.sizes)}, {dim})[{axis}.get_local_rank()]"
    return f"cut({text}, {axis}, {dim}{nested(layout, extent, op)})"


def positions(call: LocalOp, factor: str, slot: int | None) -> str:
    """The global indices of a factor on this rank, in order; `slot` says on which device."""
    device = "" if slot is None else f", device=%{slot}.device"
    text, extent = f"torch.arange({call.sizes[factor]}{device})", call.sizes[factor]
    for axis, layout in call.cuts.get(factor, ()):
        text = part(text, axis, 0, layout, extent, call.op.name)
    return text


def one_axis(call: LocalOp, factor: str) -> str:
    """The one axis that cuts a factor, plainly."""
    cut = call.cuts[factor]
    if len(cut) != 1 or cut[0][1] != CONTIGUOUS:
        raise refuse(call.op, f"{factor} is cut by several axes, or in another order")
    return cut[0][0]
