"""Products, convolutions and windows.

`dot_general` sums any dimensions of two tensors. With a parameter on one side it is a linear layer, or one linear per
expert, whatever order and number of dimensions the parameter has: those that are summed, and the others, are seen as
one each. Any other product is an `einsum`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import prod
from typing import Any

from meshwright.ir.frontends.jax_.flat import Equation
from meshwright.ir.frontends.jax_.primitives.translate import Given, Lowering, Translator, opaque
from meshwright.ir.graph.graph import Attr, Type

Dims = tuple[int, ...]


def product(t: Translator, equation: Equation, given: list[Any]) -> Given:
    (left, right), (left_batch, right_batch) = (
        tuple(tuple(map(int, dims)) for dims in pair) for pair in equation.params["dimension_numbers"]
    )
    type_ = equation.types[0]
    x, w = (t.read(one) for one in given)
    if is_weight(t, w) != is_weight(t, x):
        swapped = is_weight(t, x)
        sides = ((x, left, left_batch), (w, right, right_batch))
        made = with_weight(t, *(sides[::-1] if swapped else sides), swapped=swapped)
        if made is not None:
            return t.cast(made, type_.dtype)  # type: ignore[return-value]
    letters = iter(string.ascii_letters)
    first = [next(letters) for _ in t.types[x].shape]
    second = ["" for _ in t.types[w].shape]
    for mine, theirs in ((left, right), (left_batch, right_batch)):
        for one, other in zip(mine, theirs, strict=True):
            second[other] = first[one]
    second = [letter or next(letters) for letter in second]
    out = [first[dim] for dim in left_batch]
    out += [first[dim] for dim in range(len(first)) if dim not in (*left, *left_batch)]
    out += [second[dim] for dim in range(len(second)) if dim not in (*right, *right_batch)]
    equation_ = f"{''.join(first)},{''.join(second)}->{''.join(out)}"
    attrs: dict[str, Attr] = {"equation": equation_}
    if type_.dtype != t.types[x].dtype:
        attrs["preferred"] = type_.dtype  # of its result, which is kept so
    made = t.emit("einsum", [x, w], (Type(type_.shape, t.types[x].dtype),), attrs)
    return t.cast(made, type_.dtype)  # type: ignore[return-value]


def is_weight(t: Translator, value: str) -> bool:
    """Whether a value is a parameter, but for its dtype and shape."""
    while value not in t.params:
        before = t.producer.get(value)
        if before is None or before.kind not in ("view", "cast", "permute"):
            return False
        value = before.operands[0]
    return not t.params[value].buffer


Side = tuple[str, Dims, Dims]
"""A tensor of a product, its summed dimensions, and those of its batch."""


def with_weight(t: Translator, x_side: Side, w_side: Side, *, swapped: bool) -> str | None:
    """A linear layer, or one per expert, with the dimensions in the order of `dot_general`; None if the parameter's
    summed dimensions do not lie side by side, in order, at one of its ends."""
    (x, summed, batch), (w, inner, experts) = x_side, w_side
    shape, weight = t.types[x].shape, t.types[w].shape
    if len(experts) > 1 or experts not in ((), (0,)):
        return None
    free = [dim for dim in range(len(shape)) if dim not in (*summed, *batch)]
    order = sorted(range(len(inner)), key=lambda at: inner[at])
    inner, summed = tuple(inner[at] for at in order), tuple(summed[at] for at in order)
    lead, rank = len(experts), len(weight)
    outer = [dim for dim in range(lead, rank) if dim not in inner]
    if not outer or not inner or list(inner) != list(range(inner[0], inner[0] + len(inner))):
        return None
    if inner[0] != lead and inner[-1] != rank - 1:
        return None
    transposed = inner[0] == lead
    k, n = (prod(weight[dim] for dim in dims) for dims in (inner, outer))
    matrix = t.view(w, (*weight[:lead], *((k, n) if transposed else (n, k))))
    matrix, transposed = _unswapped(t, matrix, transposed)
    rows = t.read(t.permuted(x, [*batch, *free, *summed]))
    extents = [shape[dim] for dim in free]
    rows = t.view(rows, (weight[0], prod(extents), k) if lead else (*extents, k))
    attrs: dict[str, Attr] = {"transposed": True} if transposed else {}
    type_ = Type((*t.types[rows].shape[:-1], n), t.types[x].dtype)
    made = t.emit("grouped_linear" if lead else "linear", [rows, matrix], (type_,), attrs)
    sizes = [weight[dim] for dim in outer]
    made = t.view(made, (*weight[:lead], *extents, *sizes))
    if not swapped:
        return made
    first, second = len(free), len(outer)
    back = [*range(lead), *range(lead + first, lead + first + second), *range(lead, lead + first)]
    return t.read(t.permuted(made, back))


def _unswapped(t: Translator, matrix: str, transposed: bool) -> tuple[str, bool]:
    """The matrix before it was transposed, which a linear layer may read as it is."""
    before = t.producer.get(matrix)
    rank = len(t.types[matrix].shape)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if before is not None and before.kind == "permute" and before.integers("perm") == swap:
        return before.operands[0], not transposed
    return matrix, transposed


def ragged(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Rows sorted by expert, times the matrix of each: `ragged_dot_general` in its usual form."""
    x, w, sizes = (t.read(one) for one in given)
    numbers = equation.params["ragged_dot_dimension_numbers"]
    usual = numbers.dot_dimension_numbers == (((1,), (1,)), ((), ())) or [
        list(map(list, pair)) for pair in numbers.dot_dimension_numbers
    ] == [[[1], [1]], [[], []]]
    if not usual or len(t.types[x].shape) != 2 or len(t.types[w].shape) != 3:
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    type_ = t.types[sizes]
    ends = t.emit("cumsum", [sizes], (type_,), {"dim": 0, "dtype": type_.dtype})
    return t.emit("grouped_mm", [x, w, ends], equation.types)


# Images --------------------------------------------------------------------------------------------------------------


def convolution(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """With batch and channels in front, and as we have them."""
    params, type_ = equation.params, equation.types[0]
    numbers = params["dimension_numbers"]
    rank = len(type_.shape) - 2
    plain = params["batch_group_count"] == 1 and set(params["lhs_dilation"]) <= {1} and 1 <= rank <= 3
    if not plain:
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    x = t.read(t.permuted(given[0], numbers.lhs_spec))
    w = t.read(t.permuted(given[1], numbers.rhs_spec))
    x, padding = _evenly_padded(t, x, params["padding"], 0.0)
    attrs: dict[str, Attr] = {
        "stride": tuple(map(int, params["window_strides"])),
        "padding": padding,
        "dilation": tuple(map(int, params["rhs_dilation"])),
        "groups": int(params["feature_group_count"]),
    }
    order = [int(dim) for dim in numbers.out_spec]
    shape = tuple(type_.shape[dim] for dim in order)
    made = t.emit(f"conv{rank}d", [x, w], (Type(shape, t.types[x].dtype),), attrs)
    back = t.permuted(made, [order.index(dim) for dim in range(len(order))])
    return t.cast(t.read(back), type_.dtype)  # type: ignore[return-value]


def _evenly_padded(t: Translator, x: str, padding: Any, value: float) -> tuple[str, Dims]:
    """Padding that is the same before and after is the operator's own; what is more on one side is put there."""
    pairs = [(int(low), int(high)) for low, high in padding]
    common = tuple(max(min(low, high), 0) for low, high in pairs)
    extra = [(low - both, high - both) for (low, high), both in zip(pairs, common, strict=True)]
    if not any(amount for pair in extra for amount in pair):
        return x, common
    shape = t.types[x].shape
    lead = len(shape) - len(extra)
    grown = tuple(extent + sum(pair) for extent, pair in zip(shape[lead:], extra, strict=True))
    amounts = tuple(amount for pair in reversed(extra) for amount in pair)
    type_ = Type((*shape[:lead], *grown), t.types[x].dtype)
    return t.emit("pad", [x], (type_,), {"pad": amounts, "value": value}), common


def window(kind: str) -> Lowering:
    """The maximum, or the sum, of every window."""

    def lower(t: Translator, equation: Equation, given: list[Any]) -> Given:
        params, type_ = equation.params, equation.types[0]
        sizes, steps = (tuple(map(int, params[key])) for key in ("window_dimensions", "window_strides"))
        spatial = [dim for dim, (size, step) in enumerate(zip(sizes, steps, strict=True)) if (size, step) != (1, 1)]
        dilated = set(params["base_dilation"]) | (set(params["window_dilation"]) if kind == "avg" else set())
        if not 1 <= len(spatial) <= 3 or dilated - {1}:
            return opaque(t, equation, given)  # type: ignore[no-any-return]
        order = [dim for dim in range(len(sizes)) if dim not in spatial] + spatial
        x = t.read(t.permuted(given[0], order))
        pads = [params["padding"][dim] for dim in spatial]
        kernel = _of(sizes, spatial)
        x, padding = _evenly_padded(t, x, pads, 0.0 if kind == "avg" else float("-inf"))
        attrs: dict[str, Attr] = {"kernel": kernel, "stride": _of(steps, spatial), "padding": padding}
        if kind == "max":
            attrs["dilation"] = _of(params["window_dilation"], spatial)
        shape = tuple(type_.shape[dim] for dim in order)
        lead = len(order) - len(spatial)
        flat = t.view(x, (prod(shape[: lead - 1]), *t.types[x].shape[lead - 1 :])) if lead > 2 else x
        flat_shape = (*t.types[flat].shape[: len(t.types[flat].shape) - len(spatial)], *shape[lead:])
        made = t.emit(f"{kind}_pool{len(spatial)}d", [flat], (Type(flat_shape, type_.dtype),), attrs)
        if kind == "avg":
            made = t.emit("mul", [made], (t.types[made],), {"scalar": float(prod(kernel))})
        return t.permuted(t.view(made, shape), [order.index(dim) for dim in range(len(order))])

    return lower


def _of(values: Sequence[Any], dims: Sequence[int]) -> Dims:
    return tuple(int(values[dim]) for dim in dims)


TABLE: dict[str, Lowering] = {
    "dot_general": product,
    "ragged_dot_general": ragged,
    "conv_general_dilated": convolution,
    "reduce_window_max": window("max"),
    "reduce_window_sum": window("avg"),
}
