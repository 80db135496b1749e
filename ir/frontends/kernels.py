"""Lowerings of operators with an algorithm behind them: products, attention, normalisation, losses, images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.ir.errors import SequenceTooLong
from meshwright.ir.frontends import masks
from meshwright.ir.frontends.constants import NotEvaluable, Term
from meshwright.ir.frontends.emit import Emitter
from meshwright.ir.frontends.layout import broadcast, contiguous, ordered
from meshwright.ir.frontends.lowerings import Lowering, each, in_order, number, opaque, permute
from meshwright.ir.frontends.values import Call, Handle
from meshwright.ir.graph import Attr, Type

VERY_NEGATIVE = -1e4
"""What a number must be below to mean minus infinity in an attention mask, whatever the dtype (half precision ends at
-65504)."""

MOST_INDICES = 1 << 22
"""Of a table, that are looked at."""

# Products ------------------------------------------------------------------------------------------------------------


def addmm(t: Emitter, call: Call) -> Handle:
    """`addmm`, `baddbmm`: bias + x · w. With a parameter w, stored [in, out], a linear layer; else a product, a sum."""
    left, right = (
        call[name] for name in (("mat1", "mat2") if call.target.startswith("addmm") else ("batch1", "batch2"))
    )
    alpha, beta = call["alpha"], call["beta"]
    if (alpha, beta) == (1, 1) and len(call.type.shape) == 2 and t.value(right) in t.params:
        return t.emit("linear", [left, right, call["self"]], call.types, {"transposed": True})
    product = _scaled(t, t.emit("matmul", [left, right], call.types), alpha)
    return product if beta == 0 else t.emit("add", [product, _scaled(t, call["self"], beta)], call.types)


def _scaled(t: Emitter, handle: Handle, factor: float) -> Handle:
    return handle if factor == 1 else t.emit("mul", [handle], (t.type(handle),), {"scalar": factor})


def matmul(t: Emitter, call: Call) -> Handle:
    """`mm`, `bmm`, `matmul`. With a parameter (or its transpose) on the right: a linear layer, or one per expert."""
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
        return t.emit(kind, [left, weight], call.types, {} if swapped else {"transposed": True})
    return t.emit("matmul", [left, right_value], call.types)


def embedding(t: Emitter, call: Call) -> Handle:
    """Rows of a table. The padding row, if there is one, gets no gradient. Rows that are known must be there."""
    last, rows = _last(call["indices"]), t.type(call["weight"]).shape[0]
    if last >= rows:
        raise SequenceTooLong(
            place=t.place.source or t.place.module,
            cause=f"position {last} is looked up, and the table has a row for each of {rows} positions",
            fix=f"give sequences of {rows} tokens at most (--seq), or the model a longer table",
        )
    padding = call["padding_idx"]
    attrs: dict[str, Attr] = {} if padding is None or padding < 0 else {"padding_idx": padding}
    return t.emit("embedding", [call["weight"], call["indices"]], call.types, attrs)


def _last(indices: Handle) -> int:
    """The greatest of constant indices; -1 if they are no constant that can be evaluated."""
    if not isinstance(indices, Term) or not 0 < math.prod(indices.shape) <= MOST_INDICES:
        return -1
    try:
        return int(indices.at(tuple(np.indices(indices.shape))).max())
    except NotEvaluable:
        return -1


# Attention -----------------------------------------------------------------------------------------------------------


def attention(t: Emitter, call: Call) -> Handle:
    """Scaled dot-product attention: the mask becomes a law where it has one, a bias operand where it does not."""
    query = t.type(call["query"])
    scale = call["scale"] if call["scale"] is not None else 1 / math.sqrt(query.shape[-1])
    law, bias = _mask(t, call)
    attrs: dict[str, Attr] = {"mask": law.kind, "width": law.width, "scale": scale, "dropout": call["dropout_p"]}
    kept = None if bias is not None and not law.width else _kept_mask(t, law, call["attn_mask"])
    if kept is not None:
        attrs["mask_shape"] = kept
    operands = [call["query"], call["key"], call["value"], *(() if bias is None else (_of_rank_four(t, bias),))]
    if t.hugging_face and law.kind in ("full", "causal") and bias is None:
        operands[1:3] = _grouped(t, call["key"], call["value"])
    if len(call.type.shape) != 4:
        return opaque(t, call)
    alike = call.type.shape == query.shape  # then kernels lay the result out like the queries
    laid_out = ordered(query.shape, t.strides[t.value(call["query"])]) if alike else contiguous(call.type.shape)
    return t.emit("attention", operands, call.types, attrs, strides=laid_out)


def _kept_mask(t: Emitter, law: masks.MaskLaw, mask: Handle | None) -> tuple[int, ...] | None:
    """The shape of a mask that eager kernels are given, and keep. Hugging Face's booleans that hide nothing, or the
    future, are only made for exports, alone or over a mask of numbers."""
    if mask is None or (t.hugging_face and not law.width and t.type(mask).dtype == "bool"):
        return None
    if t.hugging_face and isinstance(mask, Term) and mask.op == "where":
        condition, chosen = mask.args[:2]
        if isinstance(chosen, Term) and masks.recognise(condition) == masks.MaskLaw("full"):
            return chosen.shape
    return t.type(mask).shape


def _grouped(t: Emitter, key: Handle, value: Handle) -> tuple[Handle, Handle]:
    """Keys and values before their heads were repeated for each group of queries, where a kernel may take them so."""
    few_keys, few_values = _unrepeated(t, t.value(key)), _unrepeated(t, t.value(value))
    takes_few = t.type(key).shape[-1] == t.type(value).shape[-1] <= 256
    return (few_keys, few_values) if takes_few and few_keys and few_values else (key, value)


def _unrepeated(t: Emitter, value: str) -> str | None:
    """x [b, h, s, d], if the value is x with each head repeated (unsqueeze, expand, merge)."""
    chain = []
    for kind in ("view", "expand", "view"):
        op = t.producer.get(value)
        if op is None or op.kind != kind:
            return None
        value = op.operands[0]
        chain.append(t.types[op.name].shape)
    b, h, s, d = t.types[value].shape if len(t.types[value].shape) == 4 else (0, 0, 0, 0)
    repeated = (b, h, chain[0][1] // max(h, 1), s, d)
    return value if chain[1] == repeated and chain[2] == (b, h, 1, s, d) else None


def _mask(t: Emitter, call: Call) -> tuple[masks.MaskLaw, Handle | None]:
    if call["is_causal"]:
        return masks.MaskLaw("causal"), None
    mask: Handle | None = call["attn_mask"]
    if mask is None:
        return masks.MaskLaw("full"), None
    if isinstance(mask, str) and mask in t.masked:
        condition, bias = t.masked[mask]
        law = masks.recognise(condition)
        if law is not None:
            return law, in_order(t, bias if law.kind == "full" else _hidden(t, condition, bias))
    if isinstance(mask, Term):
        law = masks.recognise(mask)
        if law is not None:
            return law, None
        t.notes.append(f"{t.place.source}: the attention mask follows no known law; it is kept as an operand")
    return masks.MaskLaw("full"), mask


def _first_of(t: Emitter, constant: Term, dim: int) -> Term:
    """The first slice of a constant that is the same in all of them."""
    if constant.shape[dim] == 1:
        return constant
    shape = (*constant.shape[:dim], 1, *constant.shape[dim + 1 :])
    return t.keep(Term("slice", shape, constant.dtype, (constant, dim, 0, 1), target="slice.Tensor"))


def _of_rank_four(t: Emitter, bias: Handle) -> Handle:
    shape = t.type(bias).shape
    return t.view(bias, (*(1 for _ in range(4 - len(shape))), *shape))


def _hidden(t: Emitter, condition: Term, bias: Handle) -> Handle:
    """The bias with what the mask hides at minus infinity. Masks with a law do not depend on the batch or head."""
    one = condition
    for dim in range(len(condition.shape) - 2):
        one = _first_of(t, one, dim)
    seen = t.type(bias)
    whole = Type(broadcast(one.shape, seen.shape), seen.dtype)
    return t.emit("where", [one, bias], (whole,), {"scalar": float("-inf")})


def where(t: Emitter, call: Call) -> Handle:
    """A choice. With a constant condition and a very negative alternative it may turn out to be an attention mask over
    a bias."""
    condition, chosen, other = call["condition"], call["self"], call["other"]
    attrs: dict[str, Attr] = {"scalar": other} if number(other) else {}
    if number(chosen):
        attrs = {"scalar": chosen, "reverse": True} if not attrs else {"scalar": chosen, "other": other}
    operands = [condition, *(h for h in (chosen, other) if not number(h))]
    result = t.emit("where", operands, call.types, attrs)
    if isinstance(condition, Term) and _very_negative(other):
        t.masked[result] = (condition, chosen)
    return result


def _very_negative(handle: Any) -> bool:
    if number(handle):
        return bool(handle <= VERY_NEGATIVE)
    if not isinstance(handle, Term) or math.prod(handle.shape) != 1:
        return False
    try:
        return bool(handle.at(tuple(np.asarray(0) for _ in handle.shape)) <= VERY_NEGATIVE)
    except NotEvaluable:
        return False


# Normalisation and loss ----------------------------------------------------------------------------------------------


def norm(kind: str) -> Lowering:
    def lower(t: Emitter, call: Call) -> Handle:
        operands = [h for h in (call["input"], call["weight"], call["bias"]) if h is not None]
        eps = (
            call["eps"]
            if call["eps"] is not None
            else {"f32": 1.1920928955078125e-07, "f64": 2.220446049250313e-16}.get(call.type.dtype, 0.0078125)
        )
        attrs: dict[str, Attr] = {"eps": eps, "normalized_shape": tuple(call["normalized_shape"])}
        return t.emit(kind, operands, call.types, attrs)

    return lower


def batch_norm(t: Emitter, call: Call) -> Handle:
    """The result; in training, the new running statistics too."""
    operands = [call[name] for name in ("input", "weight", "bias", "running_mean", "running_var")]
    if any(handle is None for handle in operands):
        return opaque(t, call)
    attrs: dict[str, Attr] = {"momentum": call["momentum"], "eps": call["eps"], "training": call["training"]}
    if not call["training"]:
        return t.emit("batch_norm", operands, call.types, attrs)
    statistics = t.type(call["running_mean"])
    return t.emit_all("batch_norm", operands, (call.type, statistics, statistics), attrs)


def instance_norm(t: Emitter, call: Call) -> Handle:
    """Of its samples alone: a norm of groups of one channel. Running statistics are means over samples: opaque."""
    if call["running_mean"] is not None or not call["use_input_stats"]:
        return opaque(t, call)
    operands = [handle for handle in (call["input"], call["weight"], call["bias"]) if handle is not None]
    return t.emit("group_norm", operands, call.types, {"groups": call.type.shape[1], "eps": call["eps"]})


def softmax(t: Emitter, call: Call) -> Handle:
    operand = t.cast(call["self"], call.type.dtype)
    kind = "log_softmax" if call.target.startswith("log_") else "softmax"
    return t.emit(kind, [operand], call.types, {"dim": call["dim"] % len(call.type.shape)})


def dropout(t: Emitter, call: Call) -> Handle:
    if not call["p"] or not call["train"]:
        return call["input"]  # type: ignore[no-any-return]
    return t.emit("dropout", [call["input"]], call.types, {"p": call["p"]})


def cross_entropy(t: Emitter, call: Call) -> Handle:
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
    return t.emit("cross_entropy", [logits, labels], call.types, attrs)


def nll_loss(t: Emitter, call: Call) -> Handle:
    """Scores of classes against their indices. Torch has the classes in dimension 1; we have them last."""
    scores, labels = call["self"], call["target"]
    rank = len(t.type(scores).shape)
    if call["weight"] is not None or rank != len(t.type(labels).shape) + 1:
        return opaque(t, call)
    if rank > 2:
        scores = permute(t, scores, (0, *range(2, rank), 1))
    attrs: dict[str, Attr] = {
        "reduction": ("none", "mean", "sum")[call["reduction"]],
        "ignore_index": call["ignore_index"],
    }
    return t.emit("nll_loss", [scores, labels], call.types, attrs)


USUAL: Mapping[str, Attr] = {"beta": 1.0, "delta": 1.0, "log_target": False}
"""Options of losses, with the values that need not be said."""


def compared(kind: str) -> Lowering:
    """A loss of two tensors of one shape; one with weights for elements is opaque."""

    def lower(t: Emitter, call: Call) -> Handle:
        weighted = any(call[name] is not None for name in ("weight", "pos_weight"))
        if weighted or t.type(call["self"]).shape != t.type(call["target"]).shape:
            return opaque(t, call)
        attrs: dict[str, Attr] = {"reduction": ("none", "mean", "sum")[call["reduction"]]}
        attrs |= {name: call[name] for name, usual in USUAL.items() if call[name] not in (None, usual)}
        return t.emit(kind, [call["self"], call["target"]], call.types, attrs)

    return lower


# Images --------------------------------------------------------------------------------------------------------------


def convolution(t: Emitter, call: Call) -> Handle:
    dims = len(call.type.shape) - 2
    kind = call.target.split(".")[0]
    operands = [h for h in (call["input"], call["weight"], call["bias"]) if h is not None]
    padding = call["padding"]
    if not isinstance(padding, tuple | list | int):
        return opaque(t, call)  # "same" and "valid"
    attrs: dict[str, Attr] = {
        "stride": each(call["stride"], dims),
        "padding": each(padding, dims),
        "dilation": each(call["dilation"], dims),
        "groups": call["groups"],
    }
    if kind.startswith("conv_transpose"):
        attrs["output_padding"] = each(call["output_padding"], dims)
    return t.emit(kind, operands, call.types, attrs)


def pooling(t: Emitter, call: Call) -> Handle:
    kind = call.target.split(".")[0]
    dims = int(kind[-2])
    kernel = each(call["kernel_size"], dims)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": each(call["stride"], dims) if call["stride"] else kernel,
        "padding": each(call["padding"], dims),
        "ceil_mode": bool(call["ceil_mode"]),
    }
    if call["dilation"] is not None:
        attrs["dilation"] = each(call["dilation"], dims)
    return t.emit(kind, [call["self"]], call.types, attrs)


def upsampling(mode: str) -> Lowering:
    return lambda t, call: t.emit(
        "upsample",
        [call["input"] if call["input"] is not None else call["self"]],
        call.types,
        {"mode": mode, "size": call.type.shape[2:]},
    )
