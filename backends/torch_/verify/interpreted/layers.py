"""Layers as torch computes them: products, norms, attention, losses, convolutions, routing to experts."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.ir.rules.families.moe import routing_groups

Attrs = Mapping[str, Any]
Results = tuple[Tensor, ...]
Run = Callable[[tuple[Tensor, ...], Attrs], Results]


def position_mask(mask: str, width: int, queries: Tensor, keys: Tensor, shift: int) -> Tensor:
    """The keys that each query sees, both given by position; `shift` aligns the last query with the last key."""
    at, key = (queries + shift)[:, None], keys[None, :]
    if mask == "causal":
        return key <= at
    if mask == "window":
        return (key <= at) & (key > at - width)
    if mask == "band":
        return (key < at + width) & (key > at - width)
    if mask == "chunk":
        return (key <= at) & (key >= at // width * width)
    return torch.ones(len(queries), len(keys), dtype=torch.bool)


def _linear(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, w, *bias = operands
    if not attrs.get("transposed"):
        return (F.linear(x, w, *bias),)
    flat = x.reshape(-1, x.shape[-1])
    out = torch.addmm(bias[0], flat, w) if bias else flat @ w
    return (out.reshape(*x.shape[:-1], w.shape[1]),)


def _grouped_linear(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    rows, w, *bias = operands
    out = torch.bmm(rows, w if attrs.get("transposed") else w.transpose(1, 2))
    return (out + bias[0][:, None] if bias else out,)


def _grouped_mm(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    """A grouped product in any dtype; torch's own has no fp64."""
    x, w, ends = operands
    if x.dtype != torch.float64:
        return (F.grouped_mm(x, w, offs=ends),)
    runs = zip([0, *ends.tolist()[:-1]], ends.tolist(), w, strict=True)
    return (torch.cat([x[start:end] @ weight for start, end, weight in runs]),)


def _layer_norm(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, *scales = operands
    shape = tuple(scales[0].shape) if scales else attrs.get("normalized_shape", x.shape[-1:])
    weight, bias = (*scales, None, None)[:2]
    return (F.layer_norm(x, shape, weight, bias, attrs.get("eps", 1e-5)),)


def _rms_norm(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, *scales = operands
    shape = tuple(scales[0].shape) if scales else attrs.get("normalized_shape", x.shape[-1:])
    return (F.rms_norm(x, shape, scales[0] if scales else None, attrs.get("eps", 1e-6)),)


def _group_norm(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, *scales = operands
    weight, bias = (*scales, None, None)[:2]
    return (F.group_norm(x, attrs["groups"], weight, bias, attrs.get("eps", 1e-5)),)


def _batch_norm(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, w, b, mean, var = operands
    mean, var = mean.detach().clone(), var.detach().clone()
    training = attrs.get("training", True)
    y = F.batch_norm(x, mean, var, w, b, training, attrs.get("momentum", 0.1), attrs.get("eps", 1e-5))
    return (y, mean, var) if training else (y,)


def _batch_moments(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    (x,) = operands
    over = [0, *range(2, x.ndim)]
    return (torch.stack((x.double().mean(over), x.double().square().mean(over))),)


def _batch_normalize(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, moments, w, b = operands
    mean, spread = moments[0], (moments[1] - moments[0].square() + attrs.get("eps", 1e-5)).rsqrt()
    mean, spread, w, b = (one.reshape(-1, *[1] * (x.ndim - 2)) for one in (mean, spread, w, b))
    return (((x - mean) * spread * w + b).to(x.dtype),)


def _attention(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    q, k, v, *bias = operands
    mask, scale = attrs.get("mask", "full"), attrs.get("scale")
    width: Any = attrs.get("width")  # of masks that have one
    common = {"dropout_p": attrs.get("dropout", 0.0), "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if not bias and (mask == "full" or (mask == "causal" and q.shape[2] == k.shape[2])):
        return (F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal", **common),)
    queries, keys = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    seen = position_mask(mask, width, queries, keys, k.shape[2] - q.shape[2]).to(q.device)
    if bias:
        hidden = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, float("-inf"))
        added = bias[0] if mask == "full" else bias[0] + hidden
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=added, **common),)
    return (F.scaled_dot_product_attention(q, k, v, attn_mask=seen, **common),)


def _embedding(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    table, ids = operands
    return (F.embedding(ids, table, padding_idx=attrs.get("padding_idx")),)


def _cross_entropy(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    logits, labels = operands
    reduction = attrs.get("reduction", "mean")
    loss = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=attrs.get("ignore_index", -100),
        reduction=reduction,
        label_smoothing=attrs.get("label_smoothing", 0.0),
    )
    return (loss.reshape(labels.shape) if reduction == "none" else loss,)


def _nll_loss(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    scores, labels = operands
    reduction = attrs.get("reduction", "mean")
    ignore = attrs.get("ignore_index", -100)
    loss = F.nll_loss(
        scores.reshape(-1, scores.shape[-1]), labels.reshape(-1), ignore_index=ignore, reduction=reduction
    )
    return (loss.reshape(labels.shape) if reduction == "none" else loss,)


def _loss(call: Callable[..., Tensor], *names: str) -> Run:
    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        extra = {name: attrs[name] for name in names if name in attrs}
        return (call(*operands, reduction=attrs.get("reduction", "mean"), **extra),)

    return run


def _kl_div(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "reduction:")
        return _loss(F.kl_div, "log_target")(operands, attrs)


def _conv(call: Callable[..., Tensor]) -> Run:
    names = ("stride", "padding", "dilation", "groups", "output_padding")
    return lambda operands, attrs: (call(*operands, **{name: attrs[name] for name in names if name in attrs}),)


def _pool(call: Callable[..., Tensor]) -> Run:
    names = ("stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")

    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        return (call(operands[0], attrs["kernel"], **{name: attrs[name] for name in names if name in attrs}),)

    return run


def _upsample(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    where = {"scale_factor": attrs["scales"]} if "scales" in attrs else {"size": attrs["size"]}
    return (
        F.interpolate(
            operands[0], **where, mode=attrs.get("mode", "nearest"), align_corners=attrs.get("align_corners")
        ),
    )


def slots(idx: Tensor, experts: int, capacity: int, groups: tuple[int, ...]) -> Tensor:
    """The slot of each (token, choice) at its expert, or -1 where its routing group has no room left.

    A group is a combination of equal runs, one of each leading dimension, and owns an equal share of the slots."""
    room = capacity // math.prod(groups)
    found = torch.full_like(idx, -1)
    for number, group in enumerate(itertools.product(*map(range, groups))):
        taken = [0] * experts
        runs = [
            range(extent // count * at, extent // count * (at + 1))
            for extent, count, at in zip(idx.shape, groups, group, strict=False)
        ]
        for place in itertools.product(*runs, range(idx.shape[-1])):
            expert = int(idx[place])
            found[place] = number * room + taken[expert] if taken[expert] < room else -1
            taken[expert] += 1
    return found


def _dispatch(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, idx = operands
    at = slots(idx, attrs["num_experts"], attrs["capacity"], routing_groups(attrs, idx.shape[:-1], attrs["capacity"]))
    return (dispatched(x, idx, at, attrs["num_experts"], attrs["capacity"]),)


def _combine(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    rows, idx, weights = operands
    groups = routing_groups(attrs, idx.shape[:-1], rows.shape[1])
    return (combined(rows, idx, weights, slots(idx, rows.shape[0], rows.shape[1], groups)),)


def dispatched(x: Tensor, idx: Tensor, at: Tensor, experts: int, capacity: int) -> Tensor:
    """Tokens x[t…, d] in slot `at` of expert `idx`; where `at` is negative, nowhere."""
    *token, choice = (at >= 0).nonzero(as_tuple=True)
    place = (*token, choice)
    rows = x.new_zeros(experts * capacity, x.shape[-1])
    return rows.index_add(0, idx[place] * capacity + at[place], x[tuple(token)]).view(experts, capacity, -1)


def combined(rows: Tensor, idx: Tensor, weights: Tensor, at: Tensor) -> Tensor:
    """The sum of each token's rows, weighted, back in the token's place."""
    *token, choice = (at >= 0).nonzero(as_tuple=True)
    place = (*token, choice)
    taken = rows.flatten(0, 1)[idx[place] * rows.shape[1] + at[place]] * weights[place][:, None].to(rows.dtype)
    return rows.new_zeros(*idx.shape[:-1], rows.shape[2]).index_put(tuple(token), taken, accumulate=True)


LAYERS: Mapping[str, Run] = {
    "linear": _linear,
    "grouped_linear": _grouped_linear,
    "grouped_mm": _grouped_mm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "batch_moments": _batch_moments,
    "batch_normalize": _batch_normalize,
    "attention": _attention,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "mse_loss": _loss(F.mse_loss),
    "l1_loss": _loss(F.l1_loss),
    "smooth_l1_loss": _loss(F.smooth_l1_loss, "beta"),
    "huber_loss": _loss(F.huber_loss, "delta"),
    "binary_cross_entropy": _loss(F.binary_cross_entropy),
    "binary_cross_entropy_with_logits": _loss(F.binary_cross_entropy_with_logits),
    "kl_div": _kl_div,
    "conv1d": _conv(F.conv1d),
    "conv2d": _conv(F.conv2d),
    "conv3d": _conv(F.conv3d),
    "conv_transpose1d": _conv(F.conv_transpose1d),
    "conv_transpose2d": _conv(F.conv_transpose2d),
    "conv_transpose3d": _conv(F.conv_transpose3d),
    "max_pool1d": _pool(F.max_pool1d),
    "max_pool2d": _pool(F.max_pool2d),
    "max_pool3d": _pool(F.max_pool3d),
    "avg_pool1d": _pool(F.avg_pool1d),
    "avg_pool2d": _pool(F.avg_pool2d),
    "avg_pool3d": _pool(F.avg_pool3d),
    "upsample": _upsample,
    "dispatch": _dispatch,
    "combine": _combine,
}
"""The kinds that are layers."""
