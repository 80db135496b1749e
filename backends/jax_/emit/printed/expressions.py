"""Parts of expressions in JAX: dtypes, shapes, parts of dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import axes_of, nested, refuse
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.frontends.jax_.dtypes import NUMPY
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.layouts import Layout, Uneven


def dtype_of(dtype: str) -> str:
    return f"jnp.{NUMPY[dtype]}"


def group(axes: Sequence[str]) -> str:
    """Mesh axes as an argument."""
    names = [literal(axis) for axis in axes]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def axis_of(call: LocalOp, factor: str) -> str:
    """The axis that cuts a factor, as an argument."""
    axes = axes_of(call, factor)
    if len(axes) > 1:
        raise refuse(call.op, f"{factor} is cut by several axes")
    return group(axes)


def part(text: str, axis: str, dim: int, layout: Layout, extent: int, op: str) -> str:
    """This device's part of a value that all have, along an axis that cuts a dimension of so many elements."""
    if isinstance(layout, Uneven):
        raise EmissionPrinted(place=op, cause="parts are unequal")
    return f"cut({text}, {literal(axis)}, {dim}{nested(layout, extent, op)})"


def positions(call: LocalOp, factor: str) -> str:
    """The global indices of a factor on this device, in order."""
    text, extent = f"jnp.arange({call.sizes[factor]})", call.sizes[factor]
    for axis, layout in call.cuts.get(factor, ()):
        text = part(text, axis, 0, layout, extent, call.op.name)
    return text
