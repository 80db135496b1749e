"""Lowerings of operators that move, reshape or combine elements, and the factories that build most of the rest.

A lowering receives the emitter and the call (arguments by schema name) and returns a handle. The table that says which
operator has which is in `aten.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from meshwright.ir.frontends.folding.emit import Emitter
from meshwright.ir.frontends.folding.handles import Handle
from meshwright.ir.frontends.folding.layout import broadcast, view_strides
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.torch_.operators.discover import discovered
from meshwright.ir.frontends.torch_.operators.invoked import invoked, overload_of, public_name, standing
from meshwright.ir.frontends.torch_.operators.values import Call, nothing, number, text
from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules.opaque import registered

Lowering = Callable[[Emitter, Call], Handle]

# Factories -----------------------------------------------------------------------------------------------------------


def op(kind: str, operands: str, **attrs: str) -> Lowering:
    """The operands by schema name, missing ones left out; attributes as `ours="theirs"`. Dimensions are counted from
    the front."""

    def lower(t: Emitter, call: Call) -> Handle:
        given = [call[name] for name in operands.split() if call[name] is not None]
        rank = len(t.type(given[0]).shape)
        values = {ours: attr(ours, call[theirs], rank) for ours, theirs in attrs.items()}
        results = t.emit_all(kind, given, call.types, {k: v for k, v in values.items() if v is not None})
        return results[0] if len(results) == 1 else results

    return lower


def routed(kind: str, operands: str) -> Lowering:
    """Routing of experts (`moe.py`)."""

    def lower(t: Emitter, call: Call) -> Handle:
        told = {name: call[name] for name in ("groups", "looped") if call[name]}
        attrs = {"num_experts": call["experts"], "capacity": call["capacity"], "dropless": call["dropless"], **told}
        return t.emit(kind, [call[name] for name in operands.split()], call.types, attrs)

    return lower


def unary(kind: str) -> Lowering:
    return lambda t, call: t.emit(kind, [call["self"]], call.types)


def binary(kind: str, left: str = "self", right: str = "other") -> Lowering:
    """Two tensors, or a tensor and a number (attribute `scalar`; `reverse` if the number is on the left)."""

    def lower(t: Emitter, call: Call) -> Handle:
        a, b = call[left], call[right]
        attrs: dict[str, Attr] = {}
        if (alpha := call["alpha"]) not in (None, 1):
            own = b if number(b) else t.cast(b, call.type.dtype)
            b = b * alpha if number(b) else t.emit("mul", [own], (t.type(own),), {"scalar": alpha})
        if (mode := text(call["rounding_mode"])) is not None:
            attrs["rounding"] = mode
        if number(b):
            attrs["scalar"] = b
        elif number(a):
            a, b = b, a
            attrs |= {"scalar": b, "reverse": True}
        operands = [a] if number(b) else [a, b]
        return t.emit(kind, operands, call.types, attrs)

    return lower


def plus(t: Emitter, call: Call) -> Handle:
    """A sum; of a scalar and nothing, the scalar: a loss that begins at zero has no part that is no batch's."""
    for one, other in ((call["self"], call["other"]), (call["other"], call["self"])):
        if call.type.shape == () and nothing(one) and not number(other) and t.type(other) == call.type:
            return other  # type: ignore[no-any-return]
    return binary("add")(t, call)


def reduction(kind: str) -> Lowering:
    def lower(t: Emitter, call: Call) -> Handle:
        rank = len(t.type(call["self"]).shape)
        dims = call["dim"]
        chosen = range(rank) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
        attrs: dict[str, Attr] = {"dim": tuple(sorted(d % rank for d in chosen)), "keepdim": bool(call["keepdim"])}
        operand = t.cast(call["self"], call.type.dtype) if kind in ("sum", "mean") else call["self"]
        return t.emit(kind, [operand], call.types, attrs)

    return lower


# Shapes and storage --------------------------------------------------------------------------------------------------


def shaped(t: Emitter, call: Call) -> Handle:
    """Every row-major change of shape."""
    return t.view(call["self"], call.type.shape)


def passed(t: Emitter, call: Call) -> Handle:
    handle: Handle = call["self"]
    return handle


def cast(t: Emitter, call: Call) -> Handle:
    return t.cast(call["self"], call.type.dtype)


def cloned(t: Emitter, call: Call) -> Handle:
    value = t.value(call["self"])
    return t.copy(value, t.types[value].shape)


def packed(t: Emitter, call: Call) -> Handle:
    """`contiguous`."""
    value = t.value(call["self"])
    copied = in_order(t, value)
    if value in t.masked:
        t.masked[copied] = t.masked[value]
    return copied


def in_order(t: Emitter, handle: Handle) -> str:
    """The operand with its elements in row-major order: a copy only if they do not lie so already."""
    value = t.value(handle)
    shape = t.types[value].shape
    flat = view_strides(shape, t.strides[value], (math.prod(shape),))
    return value if flat == (1,) else t.copy(value, shape)


def permuted(t: Emitter, call: Call) -> Handle:
    value = t.value(call["self"])
    rank = len(t.types[value].shape)
    if call.target.startswith("permute"):
        order = [d % rank for d in call["dims"]]
    else:
        first, second = (call["dim0"], call["dim1"]) if call.target.startswith("transpose") else (0, 1)
        order = list(range(rank))
        if rank > 1:
            order[first], order[second] = order[second], order[first]
    return permute(t, value, order)


def permute(t: Emitter, handle: Handle, order: Sequence[int]) -> Handle:
    value = t.value(handle)
    if list(order) == list(range(len(order))):
        return value
    source = t.types[value]
    type_ = Type(tuple(source.shape[d] for d in order), source.dtype)
    return t.emit("permute", [value], (type_,), {"perm": tuple(order)}, alias=0)


def expanded(t: Emitter, call: Call) -> Handle:
    value = t.value(call["self"])
    if t.types[value].shape == call.type.shape:
        return value
    return t.emit("expand", [value], (call.type,), {"shape": call.type.shape}, alias=0)


def broadcasted(t: Emitter, call: Call) -> Handle:
    """`broadcast_tensors`: every operand expanded to one shape."""
    shape = call.type.shape

    def grown(handle: Handle) -> Handle:
        whole = Type(shape, t.type(handle).dtype)
        return handle if t.type(handle) == whole else t.emit("expand", [handle], (whole,), {"shape": shape}, alias=0)

    return tuple(grown(handle) for handle in call["tensors"])


def sliced(t: Emitter, call: Call) -> Handle:
    value = t.value(call["self"])
    shape = t.types[value].shape
    dim, step = call["dim"] % len(shape), call["step"]
    start, end, _ = slice(call["start"], call["end"]).indices(shape[dim])
    if (start, end, step) == (0, shape[dim], 1):
        return value
    attrs: dict[str, Attr] = {"dim": dim, "start": start, "end": end, "step": step}
    return t.emit("slice", [value], (call.type,), attrs, alias=0)


def selected(t: Emitter, call: Call) -> Handle:
    value = t.value(call["self"])
    shape = t.types[value].shape
    dim = call["dim"] % len(shape)
    attrs: dict[str, Attr] = {"dim": dim, "index": call["index"] % shape[dim]}
    return t.emit("select", [value], (call.type,), attrs, alias=0)


def split(t: Emitter, call: Call) -> Handle:
    """`split`, `chunk` and `split_with_sizes`: parts that share the operand's storage, slices where they are empty."""
    value = t.value(call["self"])
    dim = call["dim"] % len(t.types[value].shape)
    some = tuple(type_ for type_ in call.types if type_.shape[dim])
    sizes: dict[str, Attr] = {"dim": dim, "sizes": tuple(type_.shape[dim] for type_ in some)}
    parts = iter((value,) if len(some) == 1 else t.emit_all("split", [value], some, sizes, alias=0))
    none: dict[str, Attr] = {"dim": dim, "start": 0, "end": 0, "step": 1}
    return tuple(next(parts) if one in some else t.emit("slice", [value], (one,), none, alias=0) for one in call.types)


def unbound(t: Emitter, call: Call) -> Handle:
    """`unbind`: each index of a dimension."""
    value = t.value(call["self"])
    dim = call["dim"] % len(t.types[value].shape)
    return tuple(
        t.emit("select", [value], (type_,), {"dim": dim, "index": index}, alias=0)
        for index, type_ in enumerate(call.types)
    )


def concatenated(t: Emitter, call: Call) -> Handle:
    parts = [part for part in call["tensors"] if t.type(part).elements]
    if len(parts) == 1:  # the others are empty, as the unrotated part of a fully rotary head: what is left is a copy
        return t.copy(t.value(parts[0]), call.type.shape)
    cast_parts = [t.cast(part, call.type.dtype) for part in parts]
    return t.emit("cat", cast_parts, call.types, {"dim": call["dim"] % len(call.type.shape)})


def stacked(t: Emitter, call: Call) -> Handle:
    dim = call["dim"] % len(call.type.shape)
    shape = tuple(1 if d == dim else extent for d, extent in enumerate(call.type.shape))
    return t.emit("cat", [t.view(part, shape) for part in call["tensors"]], call.types, {"dim": dim})


def repeated(t: Emitter, call: Call) -> Handle:
    """`repeat_interleave` by a number: a new dimension, expanded and merged."""
    value = t.value(call["self"])
    shape = t.types[value].shape
    dim, times = call["dim"], call["repeats"]
    if dim is None or not isinstance(times, int):
        return otherwise(t, call)
    dim %= len(shape)
    narrow = (*shape[: dim + 1], 1, *shape[dim + 1 :])
    wide = Type((*shape[: dim + 1], times, *shape[dim + 1 :]), t.types[value].dtype)
    seen = t.view(value, narrow)
    spread = t.emit("expand", [seen], (wide,), {"shape": wide.shape}, alias=0)
    return t.view(spread, call.type.shape)


def tiled(t: Emitter, call: Call) -> Handle:
    """`repeat`: every dimension preceded by one of as many copies, and merged with it."""
    handle, times = call["self"], tuple(call["repeats"])
    extents = (*(1 for _ in range(len(times) - len(t.type(handle).shape))), *t.type(handle).shape)
    narrow = tuple(
        size for count, extent in zip(times, extents, strict=True) for size in ((1, extent) if count > 1 else (extent,))
    )
    wide = tuple(
        size
        for count, extent in zip(times, extents, strict=True)
        for size in ((count, extent) if count > 1 else (extent,))
    )
    if narrow == wide:
        return t.copy(t.value(t.view(handle, narrow)), call.type.shape)
    spread = t.emit("expand", [t.view(handle, narrow)], (Type(wide, call.type.dtype),), {"shape": wide}, alias=0)
    return t.view(spread, call.type.shape)


def indexed(t: Emitter, call: Call) -> Handle:
    """`x[..., i, ...]` with one tensor of integers: rows of one dimension, chosen by the flattened tensor."""
    given = [(dim, index) for dim, index in enumerate(call["indices"]) if index is not None]
    if len(given) != 1 or t.type(given[0][1]).dtype not in ("i64", "i32"):
        return otherwise(t, call)
    (dim, index), shape = given[0], t.type(call["self"]).shape
    chosen = t.type(index).elements
    rows = Type((*shape[:dim], chosen, *shape[dim + 1 :]), call.type.dtype)
    taken = t.emit("index_select", [call["self"], t.view(index, (chosen,))], (rows,), {"dim": dim})
    return t.view(taken, call.type.shape)


def index_added(t: Emitter, call: Call) -> Handle:
    """`index_add`: a `scatter_add` whose index is the same in every other dimension."""
    source = t.type(call["source"]).shape
    if call["alpha"] != 1 or not source:
        return otherwise(t, call)
    dim = call["dim"] % len(source)
    narrow = tuple(extent if d == dim else 1 for d, extent in enumerate(source))
    index = t.view(call["index"], narrow)
    spread = t.emit("expand", [index], (Type(source, t.type(index).dtype),), {"shape": source}, alias=0)
    return t.emit("scatter_add", [call["self"], spread, call["source"]], call.types, {"dim": dim})


def added(kind: str) -> Lowering:
    """`addcmul`, `addcdiv`: self + value · (a kind b)."""

    def lower(t: Emitter, call: Call) -> Handle:
        first, second = call["tensor1"], call["tensor2"]
        shape = broadcast(t.type(first).shape, t.type(second).shape)
        term = t.emit(kind, [first, second], (Type(shape, call.type.dtype),))
        if call["value"] != 1:
            term = t.emit("mul", [term], (t.type(term),), {"scalar": call["value"]})
        return t.emit("add", [call["self"], term], call.types)

    return lower


def interpolated(t: Emitter, call: Call) -> Handle:
    """`lerp` by a number: self + weight · (end - self)."""
    shape = broadcast(t.type(call["end"]).shape, t.type(call["self"]).shape)
    apart = t.emit("sub", [call["end"], call["self"]], (Type(shape, call.type.dtype),))
    part = t.emit("mul", [apart], (t.type(apart),), {"scalar": call["weight"]})
    return t.emit("add", [call["self"], part], call.types)


def padded(t: Emitter, call: Call) -> Handle:
    if text(call["mode"]) != "constant":
        return otherwise(t, call)
    attrs: dict[str, Attr] = {"pad": tuple(call["pad"]), "value": call["value"] or 0.0}
    return t.emit("pad", [call["self"]], call.types, attrs)


def copied(t: Emitter, call: Call) -> Handle:
    """`copy_`, `fill_` with a tensor: the source, in the shape and dtype of what it overwrites."""
    source = call["value"] if call["src"] is None else call["src"]
    source = t.cast(source, call.type.dtype) if t.type(source).dtype != call.type.dtype else source
    if t.type(source).shape == call.type.shape:
        return source
    return t.emit("expand", [source], (call.type,), {"shape": call.type.shape})


def filled(t: Emitter, call: Call) -> Handle:
    value = 0 if call.target.startswith("zero") else call["value"]
    if not number(value):
        return otherwise(t, call)
    return t.keep(Term("full", call.type.shape, call.type.dtype, (call.type.shape, value), target="full.default"))


def floor_divided(t: Emitter, call: Call) -> Handle:
    attrs: dict[str, Attr] = {"rounding": "floor"}
    if number(call["other"]):
        return t.emit("div", [call["self"]], call.types, attrs | {"scalar": call["other"]})
    return t.emit("div", [call["self"], call["other"]], call.types, attrs)


def reversed_sub(t: Emitter, call: Call) -> Handle:
    """`rsub`: other - self."""
    if number(call["other"]):
        return t.emit("sub", [call["self"]], call.types, {"scalar": call["other"], "reverse": True})
    return t.emit("sub", [call["other"], call["self"]], call.types)


# What is left --------------------------------------------------------------------------------------------------------


def opaque(t: Emitter, call: Call) -> Handle:
    """Any other operator: all its tensors, its call, the types of its results, and the findings of trials."""
    call = standing(call)
    operands, said = invoked(call)
    attrs: dict[str, Attr] = {"target": public_name(call.target), **said}
    attrs["types"] = tuple(str(type_) for type_ in call.types)
    points = 1
    if said and not registered(public_name(call.target)):
        given = tuple(t.type(operand) for operand in operands)
        found = discovered(call.target, said["call"], given, call.types)
        attrs |= found.attrs if found else {}
        points = found.points(given) if found else 1
        told = f"a rule was found by trial, {found.rule}" if found else "it is opaque"
        t.notes.append(f"{t.place.source or t.place.module}: no rule for {public_name(call.target)}; {told}")
    if work := t.work():
        attrs["flops"] = work / points if work % points else work // points
    results = t.emit_all("opaque", operands, call.types, attrs)
    return results[0] if len(results) == 1 else results


def otherwise(t: Emitter, call: Call) -> Handle:
    """A case that our kind of the operator does not cover: its parts, if they are known, else opaque."""
    made = t.apart()
    return opaque(t, call) if made is None else made


def by_name(t: Emitter, call: Call) -> Handle:
    """An operator that torch declares elementwise, or that draws each of its elements."""
    call = standing(call)
    operands, said = invoked(call)
    attrs: dict[str, Attr] = {"target": public_name(call.target), **said}
    attrs["dtypes"] = tuple(type_.dtype for type_ in call.types)
    if drawn(call.target):
        attrs["random"] = True
    results = t.emit_all("pointwise", operands, call.types, attrs)
    return results[0] if len(results) == 1 else results


def elementwise(t: Emitter, call: Call) -> bool:
    """Whether an operator without an entry reads, for an element of its results, one element of each operand."""
    call = standing(call)
    overload = overload_of(call.target)
    operands, said = invoked(call)
    if overload is None or not operands or not said:
        return False
    shape = reduce(broadcast, (t.type(operand).shape for operand in operands))
    if any(type_.shape != shape for type_ in call.types):
        return False
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return drawn(call.target)
    return torch.Tag.pointwise in overload.tags


DRAWN = frozenset(
    (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "poisson", "rand_like",
        "randint_like", "randn_like", "random", "rrelu", "uniform",
    )
)  # fmt: skip
"""Random operators that draw every element of their result apart, which no tag of torch says."""


def drawn(target: str) -> bool:
    """Whether an operator draws every element of its result apart."""
    parts = target.split(".")
    return len(parts) == 2 and parts[0].rstrip("_") in DRAWN


def drawn_like(target: str, *arguments: str) -> Lowering:
    """`rand`, `randn`, `randint` of a size: the same of a tensor of that size, which can be cut."""

    def lower(t: Emitter, call: Call) -> Handle:
        shape = t.keep(Term("full", call.type.shape, call.type.dtype, (call.type.shape, 0)))
        return by_name(t, replace(call, target=target, args={"self": shape, **{a: call[a] for a in arguments}}))

    return lower


def attr(name: str, value: Any, rank: int) -> Attr:
    if name == "dim" and isinstance(value, int):
        return value % max(rank, 1)
    if isinstance(value, list | tuple):
        return tuple(value)
    return text(value) if text(value) is not None else value


def each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values
