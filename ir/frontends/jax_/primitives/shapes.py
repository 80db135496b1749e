"""Primitives that move elements: reshapes, transposes, cuts and joins."""

from __future__ import annotations

from typing import Any

from meshwright.ir.frontends.jax_.flat import Equation
from meshwright.ir.frontends.jax_.primitives.constants import number
from meshwright.ir.frontends.jax_.primitives.translate import Given, Lowering, Translator, Wide, opaque
from meshwright.ir.graph.graph import Attr, Type


def broadcasted(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Dimensions of extent 1 put in, and repeated."""
    x, shape = given[0], equation.types[0].shape
    narrow = [1] * len(shape)
    own = t.shape(x)
    inner = t.types[x.value].shape if isinstance(x, Wide) else own
    inner = (*(1 for _ in range(len(own) - len(inner))), *inner)
    for dim, extent in zip(equation.params["broadcast_dimensions"], inner, strict=True):
        narrow[int(dim)] = extent
    value = t.view(x.value if isinstance(x, Wide) else t.read(x), tuple(narrow))
    return value if tuple(narrow) == shape else Wide(value, shape)


def reshaped(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """The same elements; `dimensions` of a reshape would reorder them first."""
    x = given[0]
    if equation.name == "reshape" and equation.params.get("dimensions") is not None:
        x = t.permuted(x, equation.params["dimensions"])
    return t.seen(x, equation.types[0].shape)


def tiled(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Every dimension repeated as a whole: preceded by one of as many copies, and merged with it."""
    value, reps = t.read(given[0]), tuple(map(int, equation.params["reps"]))
    shape = (*(1 for _ in range(len(reps) - len(t.types[value].shape))), *t.types[value].shape)
    pairs = list(zip(reps, shape, strict=True))
    if all(count == 1 or extent == 1 for count, extent in pairs):
        seen = t.view(value, shape)
        return seen if equation.types[0].shape == shape else Wide(seen, equation.types[0].shape)
    narrow = tuple(size for count, extent in pairs for size in ((1, extent) if count > 1 else (extent,)))
    wide = tuple(size for count, extent in pairs for size in ((count, extent) if count > 1 else (extent,)))
    spread = Wide(t.view(value, narrow), wide)
    return t.view(t.read(spread), equation.types[0].shape)


def transposed(t: Translator, equation: Equation, given: list[Any]) -> Given:
    return t.permuted(given[0], equation.params["permutation"])


def sliced(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Of every dimension a range."""
    starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
    return cut(t, given[0], starts, ends, equation.params["strides"] or (1,) * len(starts))


def cut(t: Translator, given: Given, starts: Any, ends: Any, steps: Any) -> Given:
    value = t.read(given)
    for dim, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        shape, dtype = t.types[value].shape, t.types[value].dtype
        if (start, end, step) == (0, shape[dim], 1):
            continue
        length = len(range(int(start), int(end), int(step)))
        attrs: dict[str, Attr] = {"dim": dim, "start": int(start), "end": int(end), "step": int(step)}
        type_ = Type((*shape[:dim], length, *shape[dim + 1 :]), dtype)
        value = t.emit("slice", [value], (type_,), attrs, alias=0)
    return value


def dynamically(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """A slice whose start is a number after all."""
    x, *starts = given
    numbers = [number(start) for start in starts]
    if any(value is None for value in numbers):
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    shape, sizes = t.shape(x), equation.params["slice_sizes"]
    at = [min(max(int(n or 0), 0), extent - size) for n, extent, size in zip(numbers, shape, sizes, strict=True)]
    return cut(t, x, at, [a + size for a, size in zip(at, sizes, strict=True)], [1] * len(at))


def updated(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """A part written over, at a place that is a number after all: what is around it, joined with it."""
    x, part, *starts = given
    numbers = [number(start) for start in starts]
    shape, sizes = t.shape(x), t.shape(part)
    differing = [dim for dim, (extent, size) in enumerate(zip(shape, sizes, strict=True)) if extent != size]
    if any(value is None for value in numbers) or len(differing) > 1:
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    if not differing:
        return part  # type: ignore[no-any-return]
    dim = differing[0]
    start = min(max(int(numbers[dim] or 0), 0), shape[dim] - sizes[dim])
    whole = [0] * len(shape), list(shape), [1] * len(shape)
    before, after = ([*whole[0]], [*whole[1]]), ([*whole[0]], [*whole[1]])
    before[1][dim], after[0][dim] = start, start + sizes[dim]
    pieces = [cut(t, x, *before, whole[2]), t.read(part), cut(t, x, *after, whole[2])]
    kept = [t.read(piece) for piece in pieces if t.shape(piece)[dim]]
    return t.emit("cat", kept, (equation.types[0],), {"dim": dim})


def split(t: Translator, equation: Equation, given: list[Any]) -> Any:
    value, dim = t.read(given[0]), int(equation.params["axis"])
    if len(equation.types) == 1:
        return value
    sizes = tuple(int(size) for size in equation.params["sizes"])
    return t.emit_all("split", [value], equation.types, {"dim": dim, "sizes": sizes}, alias=0)


def concatenated(t: Translator, equation: Equation, given: list[Any]) -> Given:
    parts = [t.read(part) for part in given if t.shape(part)[int(equation.params["dimension"])]]
    if len(parts) == 1:
        return parts[0]
    return t.emit("cat", parts, equation.types, {"dim": int(equation.params["dimension"])})


def reversed_(t: Translator, equation: Equation, given: list[Any]) -> Given:
    dims = tuple(int(dim) for dim in equation.params["dimensions"])
    return t.emit("flip", [t.read(given[0])], equation.types, {"dims": dims})


def spaced(t: Translator, given: Given, dim: int, holes: int, value: float) -> Given:
    """Elements along a dimension with holes between them."""
    x = t.read(given)
    shape, dtype = t.types[x].shape, t.types[x].dtype
    rank, extent = len(shape), shape[dim]
    apart = t.view(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    wide = (*shape[: dim + 1], 1 + holes, *shape[dim + 1 :])
    amounts = [0] * (2 * (rank + 1))
    amounts[2 * (rank - dim - 1) + 1] = holes
    filled = t.emit("pad", [apart], (Type(wide, dtype),), {"pad": tuple(amounts), "value": value})
    joined = t.view(filled, (*shape[:dim], extent * (1 + holes), *shape[dim + 1 :]))
    ends = [*t.types[joined].shape]
    ends[dim] = max(extent * (1 + holes) - holes, 0)
    return cut(t, joined, [0] * rank, ends, [1] * rank)


def padded(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Extents grown by a number, also between elements; negative amounts cut."""
    x, filling = given
    config = [tuple(map(int, one)) for one in equation.params["padding_config"]]
    if number(filling) is None:
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    for dim, (_, _, inner) in enumerate(config):
        x = spaced(t, x, dim, inner, float(number(filling) or 0.0)) if inner else x
    shape = t.shape(x)
    starts = [max(-low, 0) for low, _, _ in config]
    ends = [extent - max(-high, 0) for extent, (_, high, _) in zip(shape, config, strict=True)]
    value = t.read(cut(t, x, starts, ends, [1] * len(shape)))
    amounts = tuple(max(amount, 0) for low, high, _ in reversed(config) for amount in (low, high))
    if not any(amounts):
        return value
    attrs: dict[str, Attr] = {"pad": amounts, "value": number(filling) or 0.0}
    return t.emit("pad", [value], equation.types, attrs)


TABLE: dict[str, Lowering] = {
    "broadcast_in_dim": broadcasted,
    "reshape": reshaped,
    "squeeze": reshaped,
    "expand_dims": reshaped,
    "transpose": transposed,
    "slice": sliced,
    "dynamic_slice": dynamically,
    "dynamic_update_slice": updated,
    "tile": tiled,
    "split": split,
    "concatenate": concatenated,
    "rev": reversed_,
    "pad": padded,
}
