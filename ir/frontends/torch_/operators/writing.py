"""ATen operators that share or overwrite storage, and how a part is put back into the whole.

`translate.py` turns tensors that are written in place into values that are written once (`storage.py`); what it has to
know about single operators is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from meshwright.ir.frontends.folding.emit import Emitter
from meshwright.ir.frontends.folding.handles import Assembly, Handle
from meshwright.ir.frontends.folding.layout import view_strides
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.torch_.operators.invoked import called, invoked, overload_of, public_name
from meshwright.ir.frontends.torch_.operators.lowerings import opaque, permute
from meshwright.ir.frontends.torch_.operators.values import Call
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES, TORCH_DTYPES
from meshwright.ir.graph.graph import Attr, Type

VIEWS = frozenset(
    (
        "alias.default", "detach.default", "view.default", "view_as.default", "reshape.default", "_unsafe_view.default",
        "flatten.using_ints", "unflatten.int", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
        "transpose.int", "permute.default", "t.default", "expand.default", "expand_as.default", "contiguous.default",
        "slice.Tensor", "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int",
        "to.dtype", "to.dtype_layout", "to.device",
    )
)  # fmt: skip
"""Operators whose result may share storage with their first argument; some copy where they cannot (`copied`)."""


def shares(target: Any) -> bool:
    """Whether the result of an overload may share storage with its first argument."""
    name = str(target).removeprefix("aten.")
    marks = [result.alias_info for result in target._schema.returns]
    return name in VIEWS or (not writes(name) and any(mark is not None and not mark.is_write for mark in marks))


def copied(node: fx.Node) -> bool:
    """Whether an operator that shares storage where it can had to copy: the strides of what it was given decide."""
    target: Any = node.target
    source, result = (one.meta.get("val") for one in (node.args[0], node) if isinstance(one, fx.Node))
    if not isinstance(source, Tensor) or not isinstance(result, Tensor):
        return False
    packet = str(target).removeprefix("aten.").split(".", maxsplit=1)[0]
    if packet in ("reshape", "flatten"):
        return view_strides(source.shape, source.stride(), result.shape) is None
    given = dict(zip((one.name for one in target._schema.arguments), node.args, strict=False)) | node.kwargs
    unlike = source.dtype != result.dtype or source.stride() != result.stride() or given.get("copy")
    return packet in ("contiguous", "to") and bool(unlike)


def writes(target: str) -> bool:
    """Whether the operator writes into its first argument."""
    packet = target.split(".", maxsplit=1)[0]
    return packet.endswith("_") and not packet.startswith("__")


def functional(target: str) -> str:
    """The functional name: `div_.Tensor` -> `div.Tensor`."""
    packet, _, overload = target.partition(".")
    return f"{packet.rstrip('_')}.{overload}"


def functional_twin(call: Call, type_of: Callable[[Handle], Type]) -> Call:
    """The call of the operator that computes what this one writes, whose arguments may have other names. What it
    computes may have another dtype than what it is written into (`x += y` of a wider `y`)."""
    target = functional(call.target)
    twin = overload_of(target)
    if twin is None or len(twin._schema.arguments) != len(call.args):
        return replace(call, target=target)
    args = dict(zip((one.name for one in twin._schema.arguments), call.args.values(), strict=True))
    made = replace(call, target=target, args=args)
    return replace(made, types=(Type(call.type.shape, _computed(made, type_of) or call.type.dtype), *call.types[1:]))


def _computed(call: Call, type_of: Callable[[Handle], Type]) -> str | None:
    """The dtype of an operator's result, if it can be asked."""
    operands, attrs = invoked(call)
    given = (type_of(one) for one in operands)
    tensors = [torch.empty(one.shape, dtype=TORCH_DTYPES[one.dtype], device="meta") for one in given]
    try:
        made = called(overload_of(call.target), attrs["call"], tensors, "meta")
    except (KeyError, RuntimeError, TypeError):
        return None
    return DTYPES.get(made.dtype) if isinstance(made, Tensor) else None


def updates(target: str) -> tuple[int, ...]:
    """Positions of arguments that the operator updates besides computing its result."""
    return (3, 4) if target == "batch_norm.default" else ()


def is_pure(target: str) -> bool:
    """Whether the operator gives the same result each time, so that a constant of constants is one."""
    random = ("rand", "bernoulli", "dropout", "normal", "multinomial", "uniform", "exponential", "batch_norm")
    if any(mark in target for mark in random):
        return False
    *space, packet, overload = target.split(".")
    found = getattr(getattr(torch.ops, space[0] if space else "aten"), packet, None)
    return torch.Tag.nondeterministic_seeded not in getattr(getattr(found, overload, None), "tags", ())


def is_creation(target: str) -> bool:
    """Whether the operator makes a constant like another tensor."""
    return target.split(".", maxsplit=1)[0] in (
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
    )


def putting(t: Emitter, call: Call) -> Callable[[Handle, Handle], Handle]:
    """The function that puts a part, taken by this view, back into its parent."""
    packet = call.target.split(".")[0]

    def back(parent: Handle, part: Handle) -> Handle:
        if packet in ("slice", "select"):
            return _put_slice(t, call, parent, part)
        if packet in ("transpose", "t", "permute"):
            rank = len(t.type(parent).shape)
            order = [d % rank for d in call["dims"]] if packet == "permute" else list(range(rank))
            if packet != "permute":
                a, b = (call["dim0"], call["dim1"]) if packet == "transpose" else (0, 1)
                order[a], order[b] = order[b], order[a]
            return permute(t, part, [order.index(d) for d in range(rank)])
        if call.target not in VIEWS or packet in ("expand", "expand_as"):
            return _scattered(t, call, parent, part)
        return t.view(part, t.type(parent).shape) if t.type(part).shape != t.type(parent).shape else part

    return back


def putting_part(t: Emitter, call: Call, index: int) -> Callable[[Handle, Handle], Handle]:
    """The function that puts one part of a split back into its parent."""

    def back(parent: Handle, part: Handle) -> Handle:
        if call.target.startswith("unbind"):
            return _put_index(t, parent, part, call["dim"] % len(t.type(parent).shape), index)
        if call.target not in VIEWS:
            return _scattered(t, call, parent, part)
        dim = call["dim"] % len(call.type.shape)
        start = sum(type_.shape[dim] for type_ in call.types[:index])
        return _overwrite(t, parent, part, dim, start, start + call.types[index].shape[dim])

    return back


def _put_slice(t: Emitter, call: Call, parent: Handle, part: Handle) -> Handle:
    shape = t.type(parent).shape
    dim = call["dim"] % len(shape)
    if call.target.startswith("select"):
        return _put_index(t, parent, part, dim, call["index"] % shape[dim])
    start, end, step = slice(call["start"], call["end"], call["step"]).indices(shape[dim])
    if step == 1:
        return _overwrite(t, parent, part, dim, start, end)
    if isinstance(parent, Term) and isinstance(part, Term):
        arguments = (parent, part, dim, start, end, step)
        return t.keep(Term("slice_scatter", shape, t.type(parent).dtype, arguments, target="slice_scatter.default"))
    every = shape[dim] // step
    if start >= step or shape[dim] % step or t.type(part).shape[dim] != every:
        return _scattered(t, call, parent, part)
    wide = (*shape[:dim], every, step, *shape[dim + 1 :])  # each step'th index is one index of a dimension of its own
    return t.view(_put_index(t, t.view(parent, wide), part, dim + 1, start), shape)


def _put_index(t: Emitter, parent: Handle, part: Handle, dim: int, index: int) -> Handle:
    shape = t.type(parent).shape
    narrow = (*shape[:dim], 1, *shape[dim + 1 :])
    return _overwrite(t, parent, t.view(part, narrow), dim, index, index + 1)


def _scattered(t: Emitter, call: Call, parent: Handle, part: Handle) -> Handle:
    """A part put back by an operator that nobody wrote a rule for."""
    whole, name = t.type(parent), f"{call.target.split('.')[0]}_scatter"
    twin = overload_of(f"{name}.default")
    if twin is None:
        attrs: dict[str, Attr] = {"target": public_name(name), "types": (str(whole),)}
        return t.emit("opaque", [parent, part], (whole,), attrs)
    named = {**call.args, "self": parent, "src": part}
    args = {one.name: named.get(one.name) for one in twin._schema.arguments}
    return opaque(t, Call(f"{name}.default", args, (whole,)))


def _overwrite(t: Emitter, parent: Handle, part: Handle, dim: int, start: int, end: int) -> Handle:
    if isinstance(parent, Term):
        parent = Assembly(parent, dim)
    if isinstance(parent, Assembly) and parent.dim == dim and all(e <= start or s >= end for s, e, _ in parent.pieces):
        return Assembly(parent.base, dim, (*parent.pieces, (start, end, part)))
    whole = t.type(parent)
    pieces = [_piece(t, parent, dim, 0, start), part, _piece(t, parent, dim, end, whole.shape[dim])]
    return t.emit("cat", [piece for piece in pieces if t.type(piece).shape[dim]], (whole,), {"dim": dim})


def _piece(t: Emitter, whole: Handle, dim: int, start: int, end: int) -> Handle:
    type_ = t.type(whole)
    shape = (*type_.shape[:dim], end - start, *type_.shape[dim + 1 :])
    attrs: dict[str, Attr] = {"dim": dim, "start": start, "end": end, "step": 1}
    return t.emit("slice", [whole], (Type(shape, type_.dtype),), attrs, alias=0)
