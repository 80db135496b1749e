"""Lowerings of operators with an algorithm behind them: products, attention, normalisation, losses, images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.ir.errors import SequenceTooLong
from meshwright.ir.frontends.folding import masks
from meshwright.ir.frontends.folding.emit import Emitter
from meshwright.ir.frontends.folding.handles import Handle
from meshwright.ir.frontends.folding.layout import broadcast, contiguous, ordered
from meshwright.ir.frontends.folding.terms import NotEvaluable, Term
from meshwright.ir.frontends.torch_.operators.lowerings import (
    Lowering,
    each,
    in_order,
    opaque,
    otherwise,
    permute,
)
from meshwright.ir.frontends.torch_.operators.values import Call, number
from meshwright.ir.graph.graph import Attr, Type

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
        return otherwise(t, call)
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
        return otherwise(t, call)
    attrs: dict[str, Attr] = {"momentum": call["momentum"], "eps": call["eps"], "training": call["training"]}
    if not call["training"]:
        return t.emit("batch_norm", operands, call.types, attrs)
    statistics = t.type(call["running_mean"])
    return t.emit_all("batch_norm", operands, (call.type, statistics, statistics), attrs)


def instance_norm(t: Emitter, call: Call) -> Handle:
    """Of its samples alone: a norm of groups of one channel. Running statistics are means over samples: opaque."""
    if call["running_mean"] is not None or not call["use_input_stats"]:
        return otherwise(t, call)
    operands = [handle for handle in (call["input"], call["weight"], call["bias"]) if handle is not None]
    return t.emit("group_norm", operands, call.types, {"groups": call.type.shape[1], "eps": call["eps"]})


def vector_norm(t: Emitter, call: Call) -> Handle:
    """`linalg_vector_norm`: the p-th root of the sum of p-th powers of magnitudes."""
    dims, rank = call["dim"], len(t.type(call["self"]).shape)
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    attrs: dict[str, Attr] = {"p": call["ord"], "keepdim": bool(call["keepdim"])}
    attrs["dim"] = tuple(sorted(dim % rank for dim in chosen))
    return t.emit("norm", [t.cast(call["self"], call.type.dtype)], call.types, attrs)


def spread(kind: str) -> Lowering:
    """`var`, `std`."""

    def lower(t: Emitter, call: Call) -> Handle:
        dims, rank = call["dim"], len(t.type(call["self"]).shape)
        chosen = range(rank) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
        correction = call["correction"] if call["unbiased"] is None else int(call["unbiased"])
        attrs: dict[str, Attr] = {"correction": 1 if correction is None else correction}
        attrs |= {"dim": tuple(sorted(dim % rank for dim in chosen)), "keepdim": bool(call["keepdim"])}
        return t.emit(kind, [call["self"]], call.types, attrs)

    return lower


def embedding_bag(t: Emitter, call: Call) -> Handle:
    """Bags of one length: rows of a table, and their sum, mean or maximum. Others are opaque, and the table too where
    rows are counted."""
    bags = len(t.type(call["offsets"]).shape) and t.type(call["offsets"]).shape[0]
    count = t.type(call["indices"]).elements
    plain = not call["scale_grad_by_freq"] and not call["include_last_offset"] and call["padding_idx"] in (None, -1)
    if not plain or not bags or count % bags or not _evenly(call["offsets"], count // bags):
        return opaque(t, call)
    table, shape = t.type(call["weight"]), (bags, count // bags)
    rows = (Type((*shape, *table.shape[1:]), table.dtype),)
    found: Handle = t.emit("embedding", [call["weight"], t.view(call["indices"], shape)], rows)
    if call["per_sample_weights"] is not None:
        found = t.emit("mul", [found, t.view(call["per_sample_weights"], (*shape, 1))], rows)
    kind = ("sum", "mean", "amax")[call["mode"]]
    result = t.emit(kind, [found], call.types[:1], {"dim": (1,), "keepdim": False})
    unread = [t.keep(Term("full", type_.shape, type_.dtype, (type_.shape, 0))) for type_ in call.types[1:]]
    return (result, *unread)


def _evenly(offsets: Handle, step: int) -> bool:
    """Whether constant offsets are as far apart from each other."""
    if not isinstance(offsets, Term) or offsets.shape[0] > MOST_INDICES:
        return False
    at = np.arange(offsets.shape[0])
    try:
        return bool((offsets.at((at,)) == at * step).all())
    except NotEvaluable:
        return False


def feature_dropout(t: Emitter, call: Call) -> Handle:
    """Dropout of whole channels: of a mask with one element for each."""
    if not call["p"] or not call["train"]:
        return call["input"]  # type: ignore[no-any-return]
    type_ = call.type
    shape = (*type_.shape[:2], *(1 for _ in type_.shape[2:]))
    ones = t.keep(Term("full", shape, type_.dtype, (shape, 1)))
    mask = t.emit("dropout", [ones], (Type(shape, type_.dtype),), {"p": call["p"]})
    return t.emit("mul", [call["input"], mask], call.types)


def softmax(t: Emitter, call: Call) -> Handle:
    operand = t.cast(call["self"], call.type.dtype)
    kind = "log_softmax" if call.target.lstrip("_").startswith("log_") else "softmax"
    return t.emit(kind, [operand], call.types, {"dim": call["dim"] % len(call.type.shape)})


def dropout(t: Emitter, call: Call) -> Handle:
    if not call["p"] or not call["train"]:
        return call["input"]  # type: ignore[no-any-return]
    return t.emit("dropout", [call["input"]], call.types, {"p": call["p"]})


def cross_entropy(t: Emitter, call: Call) -> Handle:
    """Logits against class indices. Torch has the classes in dimension 1; we have them last."""
    logits, labels = call["self"], call["target"]
    if t.type(labels).dtype not in ("i64", "i32") or call["weight"] is not None:
        return otherwise(t, call)
    rank = len(t.type(logits).shape)
    if rank > 2:
        logits = permute(t, logits, (0, *range(2, rank), 1))
    attrs: dict[str, Attr] = {
        "reduction": REDUCTIONS[call["reduction"]],
        "ignore_index": call["ignore_index"],
        "label_smoothing": call["label_smoothing"],
    }
    return t.emit("cross_entropy", [logits, labels], call.types, attrs)


REDUCTIONS = ("none", "mean", "sum")
"""Of losses, by torch's numbers."""


def nll_loss(t: Emitter, call: Call) -> Handle:
    """Log-probabilities against class indices, the classes last."""
    scores, rank = call["self"], len(t.type(call["self"]).shape)
    if call["weight"] is not None:
        return otherwise(t, call)
    if rank > 2:
        scores = permute(t, scores, (0, *range(2, rank), 1))
    attrs: dict[str, Attr] = {
        "reduction": REDUCTIONS[call["reduction"]],
        "ignore_index": call["ignore_index"],
    }
    return t.emit("nll_loss", [scores, call["target"]], call.types, attrs)


def compared(kind: str, *told: str) -> Lowering:
    """A loss of two tensors of one shape; `told` are further attributes of torch's. Weights come before the mean."""

    def lower(t: Emitter, call: Call) -> Handle:
        pair = [call["self"], call["target"]]
        first, second = map(t.type, pair)
        if call["pos_weight"] is not None or first.shape != second.shape:
            return otherwise(t, call)
        reduction, weight = REDUCTIONS[call["reduction"]], call["weight"]
        extra: dict[str, Attr] = {
            name: value for name in told if (value := call[name]) is True or value not in (None, False, 1.0)
        }
        if weight is None:
            return t.emit(kind, pair, call.types, {"reduction": reduction, **extra})
        each = (Type(first.shape, call.type.dtype),)
        loss = t.emit("mul", [t.emit(kind, pair, each, {"reduction": "none", **extra}), weight], each)
        if reduction == "none":
            return loss
        return t.emit(reduction, [loss], call.types, {"dim": tuple(range(len(first.shape))), "keepdim": False})

    return lower


# Images --------------------------------------------------------------------------------------------------------------


def convolution(t: Emitter, call: Call) -> Handle:
    dims = len(call.type.shape) - 2
    kind = call.target.split(".")[0]
    operands = [h for h in (call["input"], call["weight"], call["bias"]) if h is not None]
    padding = call["padding"]
    if not isinstance(padding, tuple | list | int):
        return otherwise(t, call)  # "same" and "valid"
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
    if call["count_include_pad"] is False and any(each(call["padding"], dims)):
        attrs["count_include_pad"] = False
    if call["divisor_override"]:
        attrs["divisor_override"] = call["divisor_override"]
    return t.emit(kind, [call["self"]], call.types, attrs)


def upsampling(mode: str) -> Lowering:
    """To a size, or by factors, which also say where positions lie if they do not give the size exactly."""

    def lower(t: Emitter, call: Call) -> Handle:
        operand = call["input"] if call["input"] is not None else call["self"]
        before, after = t.type(operand).shape[2:], call.type.shape[2:]
        attrs: dict[str, Attr] = {"mode": mode, "size": after}
        if call["align_corners"]:
            attrs["align_corners"] = True
        scales = call["scale_factors"]
        if scales is not None and tuple(one * by for one, by in zip(before, scales, strict=True)) != after:
            attrs["scales"] = tuple(scales)
        return t.emit("upsample", [operand], call.types, attrs)

    return lower
