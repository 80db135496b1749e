"""Primitives that look elements up by their index, or sort them."""

from __future__ import annotations

from math import prod
from typing import Any

from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.jax_.flat import Equation
from meshwright.ir.frontends.jax_.primitives.constants import number
from meshwright.ir.frontends.jax_.primitives.shapes import cut
from meshwright.ir.frontends.jax_.primitives.translate import Given, Lowering, Translator, Wide, opaque
from meshwright.ir.graph.graph import Attr, Type


def gathered(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Rows of one dimension, elements along one dimension, or one place that is a number."""
    x, index = given
    numbers, type_ = equation.params["dimension_numbers"], equation.types[0]
    sizes, shape = tuple(map(int, equation.params["slice_sizes"])), t.shape(x)
    mapped = [int(dim) for dim in numbers.start_index_map]
    free = [at for at, dim in enumerate(mapped) if sizes[dim] != shape[dim]] or [0]  # a whole dimension has one place
    if len(free) != 1:
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    dim = mapped[free[0]]
    index = column(t, index, free[0])
    batched = tuple(map(int, numbers.operand_batching_dims))
    collapsed = tuple(map(int, numbers.collapsed_slice_dims))
    offsets = tuple(map(int, numbers.offset_dims))
    whole = all(size == extent for at, (size, extent) in enumerate(zip(sizes, shape, strict=True)) if at != dim)
    if not batched and whole and collapsed in ((dim,), ()) and sizes[dim] == 1:
        windows = [at for at in range(len(shape)) if at not in collapsed]
        at = offsets[windows.index(dim)] if dim in windows else None
        if at is None:
            return rows(t, type_, x, index, dim, offsets)
        narrow = Type((*type_.shape[:at], *type_.shape[at + 1 :]), type_.dtype)
        others = tuple(one - (one > at) for one in offsets if one != at)
        return t.seen(rows(t, narrow, x, index, dim, others), type_.shape)
    if not batched and whole and number(index) is not None:
        start = min(max(int(number(index) or 0), 0), shape[dim] - sizes[dim])
        starts, ends = [0] * len(shape), list(shape)
        starts[dim], ends[dim] = start, start + sizes[dim]
        return t.seen(cut(t, x, starts, ends, [1] * len(shape)), type_.shape)
    elements = set(sizes) == {1} and sorted((*batched, *collapsed)) == list(range(len(shape))) and len(shape) > 1
    if elements and collapsed == (dim,) and not offsets:
        return along(t, equation, x, index, dim)
    return opaque(t, equation, given)  # type: ignore[no-any-return]


def column(t: Translator, index: Given, at: int) -> Given:
    """One coordinate of places that are given by several, in the last dimension."""
    shape = t.shape(index)
    if shape[-1] > 1:
        before = t.producer.get(index) if isinstance(index, str) else None
        parts = before.operands if before is not None and before.kind == "cat" else ()
        if len(parts) == shape[-1] and before is not None and before.attr("dim") == len(shape) - 1:
            index = parts[at]
        else:
            starts, ends = [0] * len(shape), list(shape)
            starts[-1], ends[-1] = at, at + 1
            index = cut(t, index, starts, ends, [1] * len(shape))
    return t.seen(index, shape[:-1])


def rows(t: Translator, type_: Type, x: Given, index: Given, dim: int, offsets: tuple[int, ...]) -> Given:
    """Rows of dimension `dim`: look-ups of a table, if that is its first of two."""
    shape, ids = t.shape(x), t.shape(index)
    if (value := number(index)) is not None and prod(ids) == 1:
        starts, ends = [0] * len(shape), list(shape)
        starts[dim] = int(value)
        ends[dim] = int(value) + 1
        return t.seen(cut(t, x, starts, ends, [1] * len(shape)), type_.shape)
    plain = unwrapped(t, index, shape[dim])
    if dim == 0 and len(shape) == 2 and offsets == (len(ids),):
        return t.emit("embedding", [t.read(x), t.read(plain)], (type_,))
    flat = t.read(t.seen(plain, (prod(ids),)))
    taken = Type((*shape[:dim], prod(ids), *shape[dim + 1 :]), type_.dtype)
    found = t.emit("index_select", [t.read(x), flat], (taken,), {"dim": dim})
    wide = t.view(found, (*shape[:dim], *ids, *shape[dim + 1 :]))
    kept = [at for at in range(len(shape) + len(ids) - 1) if not dim <= at < dim + len(ids)]
    drawn = iter(range(dim, dim + len(ids)))
    windows = iter(kept)
    order = [next(windows) if at in offsets else next(drawn) for at in range(len(type_.shape))]
    return t.permuted(wide, order)


def along(t: Translator, equation: Equation, x: Given, index: Given, dim: int) -> Given:
    """`take_along_axis`: an index for every place of the other dimensions."""
    numbers, shape, type_ = equation.params["dimension_numbers"], t.shape(x), equation.types[0]
    ids = t.shape(index)
    owners = dict(
        zip(map(int, numbers.start_indices_batching_dims), map(int, numbers.operand_batching_dims), strict=True)
    )
    own = [at for at in range(len(ids)) if at not in owners]
    if len(own) > 1:
        return opaque(t, equation, [x, index])  # type: ignore[no-any-return]
    plain = unwrapped(t, index, shape[dim])
    place = {owners[at]: at for at in owners}
    if not own:
        plain, place[dim] = t.seen(plain, (*ids, 1)), len(ids)
    else:
        place[dim] = own[0]
    order = [place[at] for at in range(len(shape))]
    lined_up = t.permuted(plain, order)
    found = t.emit("gather", [t.read(x), t.read(lined_up)], (Type(t.shape(lined_up), type_.dtype),), {"dim": dim})
    back = t.permuted(found, [order.index(at) for at in range(len(order))])
    return t.seen(back, type_.shape)


def unwrapped(t: Translator, index: Given, extent: int) -> Given:
    """An index before those from the end were counted from the front: `where(i < 0, i + extent, i)`."""
    if isinstance(index, Wide):
        return Wide(t.read(unwrapped(t, index.value, extent)), index.shape)
    if isinstance(index, Term):
        return index
    before = t.producer.get(index)
    if before is not None and before.kind == "view":
        inner = unwrapped(t, before.operands[0], extent)
        return t.seen(inner, t.shape(index)) if inner != before.operands[0] else index
    if before is None or before.kind != "where" or len(before.operands) != 3:
        return index
    below, more = (t.producer.get(value) for value in before.operands[:2])
    plain = before.operands[2]
    if below is None or (below.kind, below.operands[0], below.attr("scalar")) != ("lt", plain, 0):
        return index
    if more is None or (more.kind, more.operands[0], more.attr("scalar")) != ("add", plain, extent):
        return index
    return plain


def scattered(kind: str) -> Lowering:
    """Rows of the first dimension replaced, or increased."""

    def lower(t: Translator, equation: Equation, given: list[Any]) -> Given:
        x, index, part = given
        numbers = equation.params["dimension_numbers"]
        ids = t.shape(index)
        plain = (
            tuple(numbers.inserted_window_dims) == (0,)
            and tuple(numbers.scatter_dims_to_operand_dims) == (0,)
            and not numbers.operand_batching_dims
            and tuple(numbers.update_window_dims) == tuple(range(len(ids) - 1, len(t.shape(part))))
            and t.shape(part)[len(ids) - 1 :] == t.shape(x)[1:]
        )
        if not plain:
            return opaque(t, equation, given)  # type: ignore[no-any-return]
        count, rest = prod(ids[:-1]), t.shape(x)[1:]
        flat = t.read(t.seen(unwrapped(t, t.seen(index, ids[:-1]), t.shape(x)[0]), (count,)))
        narrow = t.view(flat, (count, *(1 for _ in rest)))
        type_ = Type((count, *rest), t.types[flat].dtype)
        wide = t.emit("expand", [narrow], (type_,), {"shape": type_.shape}, alias=0) if rest else narrow
        rows_ = t.read(t.seen(part, (count, *rest)))
        return t.emit(kind, [t.read(x), wide, rows_], equation.types, {"dim": 0})

    return lower


def top(t: Translator, equation: Equation, given: list[Any]) -> Any:
    """The largest, and where they are, which we count in i64."""
    values, places = equation.types
    dim = int(equation.params.get("axis", equation.params.get("dimension", -1)))
    attrs: dict[str, Attr] = {"k": int(equation.params["k"]), "dim": dim % len(values.shape)}
    found, at = t.emit_all("topk", [t.read(given[0])], (values, Type(places.shape, "i64")), attrs)
    return found, t.cast(at, places.dtype)


def sorted_(t: Translator, equation: Equation, given: list[Any]) -> Any:
    """One tensor sorted, perhaps with positions, which make the order."""
    dim = int(equation.params["dimension"])
    type_, *others = equation.types
    positions = len(given) == 2 and isinstance(given[1], Term) and not number(given[1])
    if len(given) > 2 or (others and not positions):
        return opaque(t, equation, given)
    attrs: dict[str, Attr] = {"dim": dim, "descending": False}
    found, at = t.emit_all("sort", [t.read(given[0])], (type_, Type(type_.shape, "i64")), attrs)
    return (found, t.cast(at, others[0].dtype)) if others else found


TABLE: dict[str, Lowering] = {
    "gather": gathered,
    "scatter": scattered("scatter"),
    "scatter-add": scattered("scatter_add"),
    "scatter_add": scattered("scatter_add"),
    "top_k": top,
    "sort": sorted_,
}
