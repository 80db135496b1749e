"""ATen to our vocabulary, one line per operator.

Each entry of `LOWERINGS` says how one overload becomes operators of ours: it receives the translator and the call (arguments by schema
name) and returns a handle. Most lines are built by a few factories (`op`, `unary`, `binary`, `reduction`, `shaped`); what does not fit one
is a small function above the table. An operator without an entry becomes `opaque`: its operands must be whole, its cost is counted from
its tensors, and reports list it.

To add an operator: add its line here, give its kind a rule in `meshwright.ir.rules`, and run `tests/ir/frontends/test_aten.py`, which
executes every entry against torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.ir.frontends import masks
from meshwright.ir.frontends.constants import NotEvaluable, Term
from meshwright.ir.graph import Attr, Type

if TYPE_CHECKING:
    from meshwright.ir.frontends.translate import Call, Handle, Translator

Lowering = Callable[["Translator", "Call"], "Handle"]

VERY_NEGATIVE = -1e4
"""What a number must be below to mean minus infinity in an attention mask, whatever the dtype (half precision ends at -65504)."""


# Factories -----------------------------------------------------------------------------------------------------------


def op(kind: str, operands: str, **attrs: str) -> Lowering:
    """The operands by schema name, missing ones left out; attributes as `ours="theirs"`. Dimensions are counted from the front."""

    def lower(t: Translator, call: Call) -> Handle:
        given = [call[name] for name in operands.split() if call[name] is not None]
        rank = len(t.type(given[0]).shape)
        values = {ours: _attr(ours, call[theirs], rank) for ours, theirs in attrs.items()}
        results = t.emit_all(
            kind, given, call.types, {k: v for k, v in values.items() if v is not None}, name=call.name
        )
        return results[0] if len(results) == 1 else results

    return lower


def unary(kind: str) -> Lowering:
    return lambda t, call: t.emit(kind, [call["self"]], call.types, name=call.name)


def binary(kind: str, left: str = "self", right: str = "other") -> Lowering:
    """Two tensors, or a tensor and a number (attribute `scalar`; `reverse` if the number is on the left)."""

    def lower(t: Translator, call: Call) -> Handle:
        a, b = call[left], call[right]
        attrs: dict[str, Attr] = {}
        if (alpha := call["alpha"]) not in (None, 1):
            a, b = (a, b * alpha) if _number(b) else (a, t.emit("mul", [b], (t.type(b),), {"scalar": alpha}))
        if (mode := _text(call["rounding_mode"])) is not None:
            attrs["rounding"] = mode
        if _number(b):
            attrs["scalar"] = b
        elif _number(a):
            a, b = b, a
            attrs |= {"scalar": b, "reverse": True}
        operands = [a] if _number(b) else [a, b]
        return t.emit(kind, operands, call.types, attrs, name=call.name)

    return lower


def reduction(kind: str) -> Lowering:
    def lower(t: Translator, call: Call) -> Handle:
        rank = len(t.type(call["self"]).shape)
        dims = call["dim"]
        chosen = range(rank) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
        attrs: dict[str, Attr] = {"dim": tuple(sorted(d % rank for d in chosen)), "keepdim": bool(call["keepdim"])}
        operand = _cast_to(t, call["self"], call.type.dtype) if kind in ("sum", "mean") else call["self"]
        return t.emit(kind, [operand], call.types, attrs, name=call.name)

    return lower


def shaped(t: Translator, call: Call) -> Handle:
    """Every row-major change of shape."""
    return t.view(call["self"], call.type.shape, name=call.name)


def reversed_sub(t: Translator, call: Call) -> Handle:
    """`rsub`: other - self."""
    if _number(call["other"]):
        return t.emit("sub", [call["self"]], call.types, {"scalar": call["other"], "reverse": True}, name=call.name)
    return t.emit("sub", [call["other"], call["self"]], call.types, name=call.name)


# Shapes and storage --------------------------------------------------------------------------------------------------


def passed(t: Translator, call: Call) -> Handle:
    handle: Handle = call["self"]
    return handle


def cast(t: Translator, call: Call) -> Handle:
    return _cast_to(t, call["self"], call.type.dtype, name=call.name)


def packed(t: Translator, call: Call) -> Handle:
    """`contiguous` and `clone`: a copy only if the elements do not lie in order already."""
    from meshwright.ir.frontends.translate import contiguous

    value = t.value(call["self"])
    keep = call.target.startswith("contiguous") and t.strides[value] == contiguous(t.types[value].shape)
    copied = (
        value if keep or _dense_in_order(t, value) else t.view(value, t.types[value].shape, copy=True, name=call.name)
    )
    if value in t.masked:
        t.masked[copied] = t.masked[value]
    return copied


def permuted(t: Translator, call: Call) -> Handle:
    value = t.value(call["self"])
    rank = len(t.types[value].shape)
    if call.target.startswith("permute"):
        order = [d % rank for d in call["dims"]]
    else:
        first, second = (call["dim0"], call["dim1"]) if call.target.startswith("transpose") else (0, 1)
        order = list(range(rank))
        if rank > 1:
            order[first], order[second] = order[second], order[first]
    return permute(t, value, order, name=call.name)


def permute(t: Translator, handle: Handle, order: Sequence[int], name: str = "") -> Handle:
    value = t.value(handle)
    if list(order) == list(range(len(order))):
        return value
    source = t.types[value]
    type_ = Type(tuple(source.shape[d] for d in order), source.dtype)
    return t.emit("permute", [value], (type_,), {"perm": tuple(order)}, alias=0, name=name)


def expanded(t: Translator, call: Call) -> Handle:
    value = t.value(call["self"])
    if t.types[value].shape == call.type.shape:
        return value
    return t.emit("expand", [value], (call.type,), {"shape": call.type.shape}, alias=0, name=call.name)


def sliced(t: Translator, call: Call) -> Handle:
    value = t.value(call["self"])
    shape = t.types[value].shape
    dim, step = call["dim"] % len(shape), call["step"]
    start, end, _ = slice(call["start"], call["end"]).indices(shape[dim])
    if (start, end, step) == (0, shape[dim], 1):
        return value
    attrs: dict[str, Attr] = {"dim": dim, "start": start, "end": end, "step": step}
    return t.emit("slice", [value], (call.type,), attrs, alias=0, name=call.name)


def selected(t: Translator, call: Call) -> Handle:
    value = t.value(call["self"])
    shape = t.types[value].shape
    dim = call["dim"] % len(shape)
    attrs: dict[str, Attr] = {"dim": dim, "index": call["index"] % shape[dim]}
    return t.emit("select", [value], (call.type,), attrs, alias=0, name=call.name)


def split(t: Translator, call: Call) -> Handle:
    """`split`, `chunk` and `split_with_sizes`: parts that share the operand's storage."""
    value = t.value(call["self"])
    dim = call["dim"] % len(t.types[value].shape)
    if len(call.types) == 1:
        return (value,)
    sizes = tuple(type_.shape[dim] for type_ in call.types)
    return t.emit_all("split", [value], call.types, {"dim": dim, "sizes": sizes}, alias=0, name=call.name)


def unbound(t: Translator, call: Call) -> Handle:
    """`unbind`: each index of a dimension."""
    value = t.value(call["self"])
    dim = call["dim"] % len(t.types[value].shape)
    return tuple(
        t.emit("select", [value], (type_,), {"dim": dim, "index": index}, alias=0)
        for index, type_ in enumerate(call.types)
    )


def concatenated(t: Translator, call: Call) -> Handle:
    parts = [part for part in call["tensors"] if t.type(part).elements]
    if len(parts) == 1:
        return parts[0]  # type: ignore[no-any-return]
    cast_parts = [_cast_to(t, part, call.type.dtype) for part in parts]
    return t.emit("cat", cast_parts, call.types, {"dim": call["dim"] % len(call.type.shape)}, name=call.name)


def stacked(t: Translator, call: Call) -> Handle:
    dim = call["dim"] % len(call.type.shape)
    shape = tuple(1 if d == dim else extent for d, extent in enumerate(call.type.shape))
    return t.emit("cat", [t.view(part, shape) for part in call["tensors"]], call.types, {"dim": dim}, name=call.name)


def repeated(t: Translator, call: Call) -> Handle:
    """`repeat_interleave` by a number: a new dimension, expanded and merged."""
    value = t.value(call["self"])
    shape = t.types[value].shape
    dim, times = call["dim"], call["repeats"]
    if dim is None or not isinstance(times, int):
        return opaque(t, call)
    dim %= len(shape)
    narrow = (*shape[: dim + 1], 1, *shape[dim + 1 :])
    wide = Type((*shape[: dim + 1], times, *shape[dim + 1 :]), t.types[value].dtype)
    seen = t.view(value, narrow)
    spread = t.emit("expand", [seen], (wide,), {"shape": wide.shape}, alias=0)
    return t.view(spread, call.type.shape, name=call.name)


def padded(t: Translator, call: Call) -> Handle:
    if _text(call["mode"]) != "constant":
        return opaque(t, call)
    attrs: dict[str, Attr] = {"pad": tuple(call["pad"]), "value": call["value"] or 0.0}
    return t.emit("pad", [call["self"]], call.types, attrs, name=call.name)


def copied(t: Translator, call: Call) -> Handle:
    """`copy_`: the source, in the shape and dtype of what it overwrites."""
    source = call["src"]
    source = _cast_to(t, source, call.type.dtype) if t.type(source).dtype != call.type.dtype else source
    if t.type(source).shape == call.type.shape:
        return source
    return t.emit("expand", [source], (call.type,), {"shape": call.type.shape}, name=call.name)


def filled(t: Translator, call: Call) -> Handle:
    value = 0 if call.target.startswith("zero") else call["value"]
    if not _number(value):
        return opaque(t, call)
    return t.keep(Term("scalar_tensor", call.type.shape, call.type.dtype, (value,)))


# Products ------------------------------------------------------------------------------------------------------------


def addmm(t: Translator, call: Call) -> Handle:
    """bias + x · w with w stored [in, out]: a linear layer, if w is a parameter."""
    if (call["alpha"], call["beta"]) != (1, 1) or t.value(call["mat2"]) not in t.params:
        return opaque(t, call)
    operands = [call["mat1"], call["mat2"], call["self"]]
    return t.emit("linear", operands, call.types, {"transposed": True}, name=call.name)


def matmul(t: Translator, call: Call) -> Handle:
    """`mm`, `bmm` and `matmul`. With a parameter (or its transpose) on the right it is a linear layer, or one per expert."""
    left, right = (
        call[name] for name in (("self", "mat2") if not call.target.startswith("matmul") else ("self", "other"))
    )
    right_value = t.value(right)
    rank = len(t.types[right_value].shape)
    before = t.producer.get(right_value)
    swapped = (
        before is not None
        and before.kind == "permute"
        and before.attr("perm") == (*range(rank - 2), rank - 1, rank - 2)
    )
    weight = before.operands[0] if before is not None and swapped else right_value
    if weight in t.params and rank in (2, 3) and len(t.type(left).shape) >= rank:
        kind = "linear" if rank == 2 else "grouped_linear"
        return t.emit(kind, [left, weight], call.types, {} if swapped else {"transposed": True}, name=call.name)
    return t.emit("matmul", [left, right_value], call.types, name=call.name)


def attention(t: Translator, call: Call) -> Handle:
    """Scaled dot-product attention: the mask becomes a law where it has one, a bias operand where it does not."""
    query = t.type(call["query"])
    scale = call["scale"] if call["scale"] is not None else 1 / math.sqrt(query.shape[-1])
    law, bias = _mask(t, call)
    attrs: dict[str, Attr] = {"mask": law.kind, "width": law.width, "scale": scale, "dropout": call["dropout_p"]}
    if law.width:
        attrs["mask_shape"] = t.type(
            call["attn_mask"]
        ).shape  # eager kernels keep such a mask, in the shape they were given
    operands = [call["query"], call["key"], call["value"], *(() if bias is None else (bias,))]
    b, h, s, d = (*(1,) * (4 - len(call.type.shape)), *call.type.shape)[-4:]
    strides = (s * h * d, d, h * d, 1)[-len(call.type.shape) :]  # kernels lay the result out as [b, s, h, d]
    return t.emit("attention", operands, call.types, attrs, strides=(strides,), name=call.name)


def _mask(t: Translator, call: Call) -> tuple[masks.MaskLaw, Handle | None]:
    if call["is_causal"]:
        return masks.MaskLaw("causal"), None
    mask: Handle | None = call["attn_mask"]
    if mask is None:
        return masks.MaskLaw("full"), None
    if isinstance(mask, str) and mask in t.masked:
        condition, bias = t.masked[mask]
        law = masks.recognise(condition)
        if law is not None:
            return law, bias
    if isinstance(mask, Term):
        law = masks.recognise(mask)
        if law is not None:
            return law, None
        t.notes.append(f"{t.place.source}: the attention mask follows no known law; it is kept as an operand")
    return masks.MaskLaw("full"), mask


def where(t: Translator, call: Call) -> Handle:
    """A choice. With a constant condition and a very negative alternative it may turn out to be an attention mask over a bias."""
    condition, chosen, other = call["condition"], call["self"], call["other"]
    attrs: dict[str, Attr] = {"scalar": other} if _number(other) else {}
    if _number(chosen):
        attrs = {"scalar": chosen, "reverse": True} if not attrs else {"scalar": chosen, "other": other}
    operands = [condition, *(h for h in (chosen, other) if not _number(h))]
    result = t.emit("where", operands, call.types, attrs, name=call.name)
    if isinstance(condition, Term) and _very_negative(other):
        t.masked[result] = (condition, chosen)
    return result


def _very_negative(handle: Any) -> bool:
    if _number(handle):
        return bool(handle <= VERY_NEGATIVE)
    if not isinstance(handle, Term) or math.prod(handle.shape) != 1:
        return False
    try:
        return bool(handle.at(tuple(_zero() for _ in handle.shape)) <= VERY_NEGATIVE)
    except NotEvaluable:
        return False


# Normalisation, loss, images -----------------------------------------------------------------------------------------


def norm(kind: str) -> Lowering:
    def lower(t: Translator, call: Call) -> Handle:
        operands = [h for h in (call["input"], call["weight"], call["bias"]) if h is not None]
        eps = (
            call["eps"]
            if call["eps"] is not None
            else {"f32": 1.1920928955078125e-07, "f64": 2.220446049250313e-16}.get(call.type.dtype, 0.0078125)
        )
        attrs: dict[str, Attr] = {"eps": eps, "normalized_shape": tuple(call["normalized_shape"])}
        return t.emit(kind, operands, call.types, attrs, name=call.name)

    return lower


def batch_norm(t: Translator, call: Call) -> Handle:
    """The result; in training, the new running statistics too."""
    operands = [call[name] for name in ("input", "weight", "bias", "running_mean", "running_var")]
    if any(handle is None for handle in operands):
        return opaque(t, call)
    attrs: dict[str, Attr] = {"momentum": call["momentum"], "eps": call["eps"], "training": call["training"]}
    if not call["training"]:
        return t.emit("batch_norm", operands, call.types, attrs, name=call.name)
    statistics = t.type(call["running_mean"])
    return t.emit_all("batch_norm", operands, (call.type, statistics, statistics), attrs, name=call.name)


def cross_entropy(t: Translator, call: Call) -> Handle:
    """Logits against class indices. Torch has the classes in dimension 1; we have them last."""
    logits, labels = call["self"], call["target"]
    if t.type(labels).dtype not in ("i64", "i32") or call["weight"] is not None:
        return opaque(t, call)
    rank = len(t.type(logits).shape)
    if rank > 2:
        logits = permute(t, logits, (0, *range(2, rank), 1))
    attrs: dict[str, Attr] = {
        "reduction": ("none", "mean", "sum")[call["reduction"]],
        "ignore_index": call["ignore_index"],
        "label_smoothing": call["label_smoothing"],
    }
    return t.emit("cross_entropy", [logits, labels], call.types, attrs, name=call.name)


def compared(kind: str) -> Lowering:
    """A loss of two tensors."""

    def lower(t: Translator, call: Call) -> Handle:
        attrs: dict[str, Attr] = {"reduction": ("none", "mean", "sum")[call["reduction"]]}
        return t.emit(kind, [call["self"], call["target"]], call.types, attrs, name=call.name)

    return lower


def convolution(t: Translator, call: Call) -> Handle:
    dims = len(call.type.shape) - 2
    kind = call.target.split(".")[0]
    operands = [h for h in (call["input"], call["weight"], call["bias"]) if h is not None]
    padding = call["padding"]
    if not isinstance(padding, tuple | list | int):
        return opaque(t, call)  # "same" and "valid"
    attrs: dict[str, Attr] = {
        "stride": _each(call["stride"], dims),
        "padding": _each(padding, dims),
        "dilation": _each(call["dilation"], dims),
        "groups": call["groups"],
    }
    if kind.startswith("conv_transpose"):
        attrs["output_padding"] = _each(call["output_padding"], dims)
    return t.emit(kind, operands, call.types, attrs, name=call.name)


def pooling(t: Translator, call: Call) -> Handle:
    kind = call.target.split(".")[0]
    dims = int(kind[-2])
    kernel = _each(call["kernel_size"], dims)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": _each(call["stride"], dims) if call["stride"] else kernel,
        "padding": _each(call["padding"], dims),
        "dilation": _each(call["dilation"] or 1, dims),
        "ceil_mode": bool(call["ceil_mode"]),
    }
    return t.emit(kind, [call["self"]], call.types, attrs, name=call.name)


def upsampling(mode: str) -> Lowering:
    return lambda t, call: t.emit(
        "upsample",
        [call["input"] if call["input"] is not None else call["self"]],
        call.types,
        {"mode": mode, "size": call.type.shape[2:]},
        name=call.name,
    )


def dropout(t: Translator, call: Call) -> Handle:
    if not call["p"] or not call["train"]:
        return call["input"]  # type: ignore[no-any-return]
    return t.emit("dropout", [call["input"]], call.types, {"p": call["p"]}, name=call.name)


def softmax(t: Translator, call: Call) -> Handle:
    operand = _cast_to(t, call["self"], call.type.dtype)
    kind = "log_softmax" if call.target.startswith("log_") else "softmax"
    return t.emit(kind, [operand], call.types, {"dim": call["dim"] % len(call.type.shape)}, name=call.name)


def opaque(t: Translator, call: Call) -> Handle:
    """Any other operator: all its tensors, nothing known about it but the types of its results."""
    from meshwright.ir.frontends.translate import Assembly

    operands = [h for h in _leaves(call.args) if isinstance(h, str | Term | Assembly)]
    attrs: dict[str, Attr] = {"target": public_name(call.target), "types": tuple(str(type_) for type_ in call.types)}
    results = t.emit_all("opaque", operands, call.types, attrs, name=call.name)
    return results[0] if len(results) == 1 else results


def public_name(target: str) -> str:
    """The name under which users register a rule: `aten::roll`, `mylib::rotary`."""
    parts = target.split(".")
    return f"{parts[0]}::{parts[1]}" if len(parts) > 2 else f"aten::{parts[0]}"


# Writing -------------------------------------------------------------------------------------------------------------

VIEWS = frozenset(
    [
        "alias.default",
        "detach.default",
        "view.default",
        "reshape.default",
        "flatten.using_ints",
        "unflatten.int",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "_unsafe_view.default",
        "transpose.int",
        "permute.default",
        "t.default",
        "expand.default",
        "expand_as.default",
        "slice.Tensor",
        "select.int",
        "split.Tensor",
        "split_with_sizes.default",
        "chunk.default",
        "to.dtype",
        "to.dtype_layout",
        "to.device",
        "contiguous.default",
        "view_as.default",
        "narrow.default",
    ]
)
"""Operators whose result may share storage with their first argument."""


def writes(target: str) -> bool:
    """Whether the operator writes into its first argument."""
    packet = target.split(".", maxsplit=1)[0]
    return packet.endswith("_") and not packet.startswith("__")


def functional(target: str) -> str:
    """`div_.Tensor` -> `div.Tensor`."""
    packet, _, overload = target.partition(".")
    return f"{packet.rstrip('_')}.{overload}"


def updates(target: str) -> tuple[int, ...]:
    """Positions of arguments that the operator updates besides computing its result."""
    return (3, 4) if target == "batch_norm.default" else ()


def is_pure(target: str) -> bool:
    """Whether the operator gives the same result each time, so that a constant of constants is one."""
    random = ("rand", "bernoulli", "dropout", "normal", "multinomial", "uniform", "exponential", "batch_norm")
    return not any(mark in target for mark in random)


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


def putting(t: Translator, call: Call) -> Callable[[Handle, Handle], Handle]:
    """How a part that was taken by this view is put back into its parent."""
    packet = call.target.split(".")[0]

    def back(parent: Handle, part: Handle) -> Handle:
        if packet in ("slice", "select", "narrow"):
            return _put_slice(t, call, parent, part)
        if packet in ("transpose", "t", "permute"):
            rank = len(t.type(parent).shape)
            order = [d % rank for d in call["dims"]] if packet == "permute" else list(range(rank))
            if packet != "permute":
                a, b = (call["dim0"], call["dim1"]) if packet == "transpose" else (0, 1)
                order[a], order[b] = order[b], order[a]
            return permute(t, part, [order.index(d) for d in range(rank)])
        if packet in ("expand", "expand_as"):
            return opaque(t, call)
        return t.view(part, t.type(parent).shape) if t.type(part).shape != t.type(parent).shape else part

    return back


def putting_part(t: Translator, call: Call, index: int) -> Callable[[Handle, Handle], Handle]:
    """The same for one part of a split."""

    def back(parent: Handle, part: Handle) -> Handle:
        dim = call["dim"] % len(call.type.shape)
        start = sum(type_.shape[dim] for type_ in call.types[:index])
        return _overwrite(t, parent, part, dim, start, start + call.types[index].shape[dim])

    return back


def _put_slice(t: Translator, call: Call, parent: Handle, part: Handle) -> Handle:
    shape = t.type(parent).shape
    dim = call["dim"] % len(shape)
    if call.target.startswith("select"):
        start = call["index"] % shape[dim]
        narrow = (*shape[:dim], 1, *shape[dim + 1 :])
        return _overwrite(t, parent, t.view(part, narrow), dim, start, start + 1)
    if call["step"] not in (None, 1):
        return opaque(t, call)
    length = call["length"]
    start, end, _ = slice(call["start"], call["end"] if length is None else call["start"] + length).indices(shape[dim])
    return _overwrite(t, parent, part, dim, start, end)


def _overwrite(t: Translator, parent: Handle, part: Handle, dim: int, start: int, end: int) -> Handle:
    from meshwright.ir.frontends.translate import Assembly

    if isinstance(parent, Term):
        parent = Assembly(parent, dim)
    if isinstance(parent, Assembly) and parent.dim == dim and all(e <= start or s >= end for s, e, _ in parent.pieces):
        return Assembly(parent.base, dim, (*parent.pieces, (start, end, part)))
    whole = t.type(parent)
    pieces = [_piece(t, parent, dim, 0, start), part, _piece(t, parent, dim, end, whole.shape[dim])]
    return t.emit("cat", [piece for piece in pieces if t.type(piece).shape[dim]], (whole,), {"dim": dim})


def _piece(t: Translator, whole: Handle, dim: int, start: int, end: int) -> Handle:
    type_ = t.type(whole)
    shape = (*type_.shape[:dim], end - start, *type_.shape[dim + 1 :])
    attrs: dict[str, Attr] = {"dim": dim, "start": start, "end": end, "step": 1}
    return t.emit("slice", [whole], (Type(shape, type_.dtype),), attrs, alias=0)


# Small helpers -------------------------------------------------------------------------------------------------------


def _zero() -> Any:
    import numpy as np

    return np.asarray(0)


def _number(item: Any) -> bool:
    return isinstance(item, int | float) and not isinstance(item, str)


def _text(item: Any) -> str | None:
    return getattr(item, "text", None)


def _attr(name: str, value: Any, rank: int) -> Attr:
    if name == "dim" and isinstance(value, int):
        return value % max(rank, 1)
    if isinstance(value, list | tuple):
        return tuple(value)
    return _text(value) if _text(value) is not None else value


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values


def _cast_to(t: Translator, handle: Handle, dtype: str, name: str = "") -> Handle:
    type_ = t.type(handle)
    if type_.dtype == dtype:
        return handle
    return t.emit("cast", [handle], (Type(type_.shape, dtype),), {"dtype": dtype}, name=name)


def _dense_in_order(t: Translator, value: str) -> bool:
    from meshwright.ir.frontends.translate import view_strides

    shape = t.types[value].shape
    return view_strides(shape, t.strides[value], (math.prod(shape),)) is not None


def _leaves(item: Any) -> list[Any]:
    if isinstance(item, dict):
        item = tuple(item.values())
    if isinstance(item, list | tuple):
        return [leaf for part in item for leaf in _leaves(part)]
    return [item]


# The table -----------------------------------------------------------------------------------------------------------

LOWERINGS: dict[str, Lowering] = {
    # products
    "linear.default": op("linear", "input weight bias"),
    "addmm.default": addmm,
    "mm.default": matmul,
    "bmm.default": matmul,
    "matmul.default": matmul,
    "embedding.default": op("embedding", "weight indices"),
    "scaled_dot_product_attention.default": attention,
    "conv1d.default": convolution,
    "conv2d.default": convolution,
    "conv3d.default": convolution,
    "conv_transpose1d.default": convolution,
    "conv_transpose2d.input": convolution,
    "conv_transpose3d.input": convolution,
    # routed experts (`moe.py`)
    "meshwright.dispatch.default": op("dispatch", "x idx", num_experts="experts", capacity="capacity"),
    "meshwright.combine.default": op("combine", "rows idx weights", num_experts="experts", capacity="capacity"),
    # elementwise, two operands
    "add.Tensor": binary("add"),
    "add.Scalar": binary("add"),
    "sub.Tensor": binary("sub"),
    "sub.Scalar": binary("sub"),
    "rsub.Scalar": reversed_sub,
    "rsub.Tensor": reversed_sub,
    "mul.Tensor": binary("mul"),
    "mul.Scalar": binary("mul"),
    "div.Tensor": binary("div"),
    "div.Scalar": binary("div"),
    "div.Tensor_mode": binary("div"),
    "pow.Tensor_Scalar": binary("pow", right="exponent"),
    "pow.Tensor_Tensor": binary("pow", right="exponent"),
    "pow.Scalar": binary("pow", right="exponent"),
    "maximum.default": binary("maximum"),
    "minimum.default": binary("minimum"),
    "eq.Tensor": binary("eq"),
    "eq.Scalar": binary("eq"),
    "ne.Tensor": binary("ne"),
    "ne.Scalar": binary("ne"),
    "lt.Tensor": binary("lt"),
    "lt.Scalar": binary("lt"),
    "le.Tensor": binary("le"),
    "le.Scalar": binary("le"),
    "gt.Tensor": binary("gt"),
    "gt.Scalar": binary("gt"),
    "ge.Tensor": binary("ge"),
    "ge.Scalar": binary("ge"),
    "logical_and.default": binary("logical_and"),
    "logical_or.default": binary("logical_or"),
    "bitwise_and.Tensor": binary("bitwise_and"),
    "bitwise_or.Tensor": binary("bitwise_or"),
    "__and__.Tensor": binary("bitwise_and"),
    "__or__.Tensor": binary("bitwise_or"),
    # elementwise, one operand
    "neg.default": unary("neg"),
    "abs.default": unary("abs"),
    "exp.default": unary("exp"),
    "log.default": unary("log"),
    "sqrt.default": unary("sqrt"),
    "rsqrt.default": unary("rsqrt"),
    "reciprocal.default": unary("reciprocal"),
    "log2.default": unary("log2"),
    "log1p.default": unary("log1p"),
    "expm1.default": unary("expm1"),
    "erf.default": unary("erf"),
    "sign.default": unary("sign"),
    "floor.default": unary("floor"),
    "ceil.default": unary("ceil"),
    "round.default": unary("round"),
    "sin.default": unary("sin"),
    "cos.default": unary("cos"),
    "tanh.default": unary("tanh"),
    "sigmoid.default": unary("sigmoid"),
    "relu.default": unary("relu"),
    "silu.default": unary("silu"),
    "gelu.default": op("gelu", "self", approximate="approximate"),
    "softplus.default": op("softplus", "self", beta="beta", threshold="threshold"),
    "elu.default": op("elu", "self", alpha="alpha"),
    "leaky_relu.default": op("leaky_relu", "self", negative_slope="negative_slope"),
    "hardswish.default": unary("hardswish"),
    "hardsigmoid.default": unary("hardsigmoid"),
    "relu6.default": unary("relu6"),
    "mish.default": unary("mish"),
    "log_sigmoid.default": unary("log_sigmoid"),
    "logical_not.default": unary("logical_not"),
    "bitwise_not.default": unary("bitwise_not"),
    "logical_xor.default": binary("logical_xor"),
    "clamp.default": op("clamp", "self", min="min", max="max"),
    "dropout.default": dropout,
    "where.self": where,
    "where.ScalarOther": where,
    "where.ScalarSelf": where,
    "masked_fill.Scalar": op("masked_fill", "self mask", scalar="value"),
    "masked_fill.Tensor": op("masked_fill", "self mask value"),
    # dtypes and storage
    "to.dtype": cast,
    "to.dtype_layout": cast,
    "to.device": cast,
    "to.other": cast,
    "_to_copy.default": cast,
    "type_as.default": cast,
    "alias.default": passed,
    "lift_fresh_copy.default": passed,
    "detach.default": lambda t, call: t.detached(call["self"]),
    "contiguous.default": packed,
    "clone.default": packed,
    "copy.default": copied,
    "fill.Scalar": filled,
    "fill.Tensor": filled,
    "zero.default": filled,
    # shapes
    "view.default": shaped,
    "view_as.default": shaped,
    "reshape.default": shaped,
    "_unsafe_view.default": shaped,
    "flatten.using_ints": shaped,
    "unflatten.int": shaped,
    "unsqueeze.default": shaped,
    "squeeze.default": shaped,
    "squeeze.dim": shaped,
    "squeeze.dims": shaped,
    "transpose.int": permuted,
    "permute.default": permuted,
    "t.default": permuted,
    "expand.default": expanded,
    "expand_as.default": expanded,
    "slice.Tensor": sliced,
    "select.int": selected,
    "split.Tensor": split,
    "split_with_sizes.default": split,
    "chunk.default": split,
    "unbind.int": unbound,
    "cat.default": concatenated,
    "stack.default": stacked,
    "repeat_interleave.self_int": repeated,
    "flip.default": op("flip", "self", dims="dims"),
    "roll.default": op("roll", "self", dims="dims", shifts="shifts"),
    "pad.default": padded,
    "tril.default": op("tril", "self", diagonal="diagonal"),
    "triu.default": op("triu", "self", diagonal="diagonal"),
    # indexing
    "index_select.default": op("index_select", "self index", dim="dim"),
    "scatter.src": op("scatter", "self index src", dim="dim"),
    "scatter_add.default": op("scatter_add", "self index src", dim="dim"),
    "topk.default": op("topk", "self", k="k", dim="dim"),
    "gather.default": op("gather", "self index", dim="dim"),
    "scatter.value": op("scatter", "self index", dim="dim", scalar="value"),
    # reductions
    "sum.default": reduction("sum"),
    "sum.dim_IntList": reduction("sum"),
    "mean.default": reduction("mean"),
    "mean.dim": reduction("mean"),
    "amax.default": reduction("amax"),
    "amin.default": reduction("amin"),
    "prod.default": reduction("prod"),
    "any.default": reduction("any"),
    "any.dim": reduction("any"),
    "all.default": reduction("all"),
    "all.dim": reduction("all"),
    "logsumexp.default": reduction("logsumexp"),
    "cumsum.default": op("cumsum", "self", dim="dim"),
    "argmax.default": op("argmax", "self", dim="dim", keepdim="keepdim"),
    "max.dim": op("max", "self", dim="dim", keepdim="keepdim"),
    "min.dim": op("min", "self", dim="dim", keepdim="keepdim"),
    "softmax.int": softmax,
    "log_softmax.int": softmax,
    # normalisation and loss
    "layer_norm.default": norm("layer_norm"),
    "rms_norm.default": norm("rms_norm"),
    "group_norm.default": op("group_norm", "input weight bias", groups="num_groups", eps="eps"),
    "batch_norm.default": batch_norm,
    "cross_entropy_loss.default": cross_entropy,
    "mse_loss.default": compared("mse_loss"),
    "l1_loss.default": compared("l1_loss"),
    "smooth_l1_loss.default": compared("smooth_l1_loss"),
    "huber_loss.default": compared("huber_loss"),
    # images
    "max_pool1d.default": pooling,
    "max_pool2d.default": pooling,
    "max_pool3d.default": pooling,
    "avg_pool1d.default": pooling,
    "avg_pool2d.default": pooling,
    "avg_pool3d.default": pooling,
    "adaptive_avg_pool2d.default": op("adaptive_avg_pool2d", "self", output_size="output_size"),
    "upsample_nearest2d.vec": upsampling("nearest"),
    "upsample_bilinear2d.vec": upsampling("bilinear"),
}


def lower(t: Translator, call: Call) -> Handle:
    """The handle of a call: by its entry in the table, else opaque."""
    entry = LOWERINGS.get(call.target)
    if entry is None:
        t.notes.append(f"{t.place.source or t.place.module}: no entry for aten::{call.target}; it is opaque")
        return opaque(t, call)
    return entry(t, call)
