"""Parts of expressions that are alike in all dialects: calls, values, layouts; and refusals.

Expressions name what they read by position.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.backends.printing.dialect import LocalOp
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Attr, Op
from meshwright.ir.quoting import constant
from meshwright.ir.sharding.layouts import CONTIGUOUS, Contiguous, Layout, Nested, Sections, Zigzag

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


def axes_of(call: LocalOp, factor: str) -> tuple[str, ...]:
    """The axes that cut a factor into runs, major to minor."""
    if any(layout != CONTIGUOUS for _, layout in call.cuts[factor]):
        raise refuse(call.op, f"{factor} is cut in another order than that of ranks")
    return tuple(axis for axis, _ in call.cuts[factor])
