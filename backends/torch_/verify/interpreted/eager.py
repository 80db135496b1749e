"""Every kind as the framework runs it: one eager torch call on whole tensors.

This is what a model's author wrote; rules are held against it (result types, counted work, saved tensors), and local
kernels against it too. `EAGER[kind](operands, attrs)` gives the results.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.ir.frontends.torch_.operators.invoked import called, overload_of
from meshwright.ir.rules.families.moe import routing_groups

Attrs = Mapping[str, Any]
Results = tuple[Tensor, ...]
Run = Callable[[tuple[Tensor, ...], Attrs], Results]

DTYPES: Mapping[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def dtype_of(attrs: Attrs, default: str | None = None) -> torch.dtype | None:
    name = attrs.get("dtype", default)
    return None if name is None else DTYPES[name]


def position_mask(mask: str, width: int, queries: Tensor, keys: Tensor, shift: int) -> Tensor:
    """Which key each query sees, both given by position; `shift` lines the last query up with the last key."""
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


def _unary(call: Callable[[Tensor], Tensor]) -> Run:
    return lambda operands, attrs: (call(operands[0]),)


def _pair(call: Callable[..., Tensor]) -> Run:
    """Two operands, or one and a number."""

    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        if len(operands) > 1:
            return (call(*operands),)
        sides = (attrs["scalar"], operands[0]) if attrs.get("reverse") else (operands[0], attrs["scalar"])
        return (call(*sides),)

    return run


def _scaled(call: Callable[..., Tensor]) -> Run:
    """add and sub, whose second operand `alpha` scales."""

    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        return _pair(lambda x, y: call(x, y, alpha=attrs["alpha"]) if "alpha" in attrs else call(x, y))(operands, attrs)

    return run


def _divide(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    if "rounding" in attrs:
        return _pair(lambda x, y: torch.div(x, y, rounding_mode=attrs["rounding"]))(operands, attrs)
    return _pair(lambda x, y: x / y)(operands, attrs)


def _extreme(call: Callable[[Tensor, Tensor], Tensor]) -> Run:
    return _pair(lambda x, y: call(x, y if isinstance(y, Tensor) else torch.tensor(y, dtype=x.dtype)))


def _where(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    mask, *values = operands
    if len(values) == 2:
        return (torch.where(mask, *values),)
    if not values:
        return (torch.where(mask, attrs["scalar"], attrs["other"]),)
    sides = (attrs["scalar"], values[0]) if attrs.get("reverse") else (values[0], attrs["scalar"])
    return (torch.where(mask, *sides),)


def _masked_fill(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, mask, *value = operands
    return (x.masked_fill(mask, value[0] if value else attrs.get("scalar", 0)),)


def _dims(operands: tuple[Tensor, ...], attrs: Attrs) -> Any:
    return attrs["dim"] if attrs.get("dim") is not None else tuple(range(operands[0].ndim))


def _reduce(call: Callable[..., Tensor], *names: str) -> Run:
    """A reduction over `dim`; `names` are the further attributes it takes."""

    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        extra = {name: attrs[name] for name in names if name in attrs}
        if "dtype" in extra:
            extra["dtype"] = DTYPES[extra["dtype"]]
        return (call(operands[0], dim=_dims(operands, attrs), keepdim=attrs.get("keepdim", False), **extra),)

    return run


def _one_dim(call: Callable[..., Any]) -> Run:
    """A reduction over one dimension or all, positional; several results come as a tuple."""

    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        found = call(operands[0], attrs["dim"], attrs.get("keepdim", False)) if "dim" in attrs else call(operands[0])
        return (found,) if isinstance(found, Tensor) else tuple(found)

    return run


def _along(call: Callable[..., Tensor]) -> Run:
    return lambda operands, attrs: (call(operands[0], attrs["dim"], dtype=dtype_of(attrs)),)


def _scatter(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, index, *source = operands
    return (x.scatter(attrs["dim"], index, source[0] if source else attrs["scalar"]),)


def _scatter_add(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    x, index, source = operands
    return (x.scatter_add(attrs["dim"], index, source),)


def _slice(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    index = slice(attrs.get("start", 0), attrs["end"], attrs.get("step", 1))
    return (operands[0][(slice(None),) * (attrs["dim"] % operands[0].ndim) + (index,)],)


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
    """torch's own has no fp64."""
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
    """The way back: the sum of each token's rows, weighted."""
    *token, choice = (at >= 0).nonzero(as_tuple=True)
    place = (*token, choice)
    taken = rows.flatten(0, 1)[idx[place] * rows.shape[1] + at[place]] * weights[place][:, None].to(rows.dtype)
    return rows.new_zeros(*idx.shape[:-1], rows.shape[2]).index_put(tuple(token), taken, accumulate=True)


def _creation(value: float | None) -> Run:
    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        filling = attrs["value"] if value is None else value
        return (torch.full(attrs["shape"], filling, dtype=dtype_of(attrs, "f32")),)

    return run


def _like(value: float | None) -> Run:
    def run(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
        return (torch.full_like(operands[0], attrs["value"] if value is None else value, dtype=dtype_of(attrs)),)

    return run


def _arange(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    return (torch.arange(attrs.get("start", 0), attrs["end"], attrs.get("step", 1), dtype=dtype_of(attrs, "i64")),)


def _table(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    """Stands for what the law says: values that depend on nothing but its name. Masks let everything see something."""
    draw = torch.Generator().manual_seed(sum(map(ord, attrs["law"])))
    dtype = dtype_of(attrs, "f32")
    halves = torch.randint(0, 4, tuple(attrs["shape"]), generator=draw)  # exact in every dtype
    if dtype is torch.bool:
        halves[..., :1] = 2
    return ((halves / 2).to(dtype) if dtype is not None and dtype.is_floating_point else (halves // 2).to(dtype),)


OPAQUE: dict[str, Run] = {}
"""What opaque operators compute, by target, where it is not what the framework does: whoever checks one puts it
here."""


def _named(operands: tuple[Tensor, ...], attrs: Attrs) -> Results:
    """The framework's operator of this name, as it was called (`meshwright.ir.graph.invocation`)."""
    if (own := OPAQUE.get(attrs["target"])) is not None:
        return own(operands, attrs)
    name = f"{attrs['target'].removeprefix('aten::').replace('::', '.')}.{attrs['overload']}"
    wide = any(one.dtype is torch.float64 for one in operands)
    made = called(overload_of(name), attrs["call"], operands, wide=wide)
    return (made,) if isinstance(made, Tensor) else tuple(one for one in made if isinstance(one, Tensor))


EAGER: dict[str, Run] = {
    "neg": _unary(torch.neg),
    "copy": _unary(torch.clone),
    "abs": _unary(torch.abs),
    "relu": _unary(F.relu),
    "relu6": _unary(F.relu6),
    "silu": _unary(F.silu),
    "gelu": lambda operands, attrs: (F.gelu(operands[0], approximate=attrs.get("approximate", "none")),),
    "elu": lambda operands, attrs: (F.elu(operands[0], attrs.get("alpha", 1.0)),),
    "leaky_relu": lambda operands, attrs: (F.leaky_relu(operands[0], attrs.get("negative_slope", 0.01)),),
    "hardswish": _unary(F.hardswish),
    "hardsigmoid": _unary(F.hardsigmoid),
    "mish": _unary(F.mish),
    "softplus": lambda operands, attrs: (
        F.softplus(operands[0], attrs.get("beta", 1.0), attrs.get("threshold", 20.0)),
    ),
    "log_sigmoid": _unary(F.logsigmoid),
    "clamp": lambda operands, attrs: (operands[0].clamp(attrs.get("min"), attrs.get("max")),),
    "exp": _unary(torch.exp),
    "expm1": _unary(torch.expm1),
    "sqrt": _unary(torch.sqrt),
    "rsqrt": _unary(torch.rsqrt),
    "reciprocal": _unary(torch.reciprocal),
    "tanh": _unary(torch.tanh),
    "sigmoid": _unary(torch.sigmoid),
    "log": _unary(torch.log),
    "log2": _unary(torch.log2),
    "log1p": _unary(torch.log1p),
    "sin": _unary(torch.sin),
    "cos": _unary(torch.cos),
    "erf": _unary(torch.erf),
    "sign": _unary(torch.sign),
    "floor": _unary(torch.floor),
    "ceil": _unary(torch.ceil),
    "round": _unary(torch.round),
    "bitwise_not": _unary(torch.bitwise_not),
    "logical_not": _unary(torch.logical_not),
    "isnan": _unary(torch.isnan),
    "isinf": _unary(torch.isinf),
    "cast": lambda operands, attrs: (operands[0].to(DTYPES[attrs["dtype"]]),),
    "dropout": lambda operands, attrs: (F.dropout(operands[0], attrs.get("p", 0.0)),),
    "tril": lambda operands, attrs: (torch.tril(operands[0], attrs.get("diagonal", 0)),),
    "triu": lambda operands, attrs: (torch.triu(operands[0], attrs.get("diagonal", 0)),),
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "full_like": _like(None),
    "add": _scaled(torch.add),
    "sub": _scaled(lambda x, y, **alpha: torch.sub(x, y, **alpha) if isinstance(x, Tensor) else x - y),
    "mul": _pair(lambda x, y: x * y),
    "div": _divide,
    "pow": _pair(lambda x, y: x**y),
    "maximum": _extreme(torch.maximum),
    "minimum": _extreme(torch.minimum),
    "atan2": _extreme(torch.atan2),
    "remainder": _pair(torch.remainder),
    "fmod": _pair(torch.fmod),
    "eq": _pair(lambda x, y: x == y),
    "ne": _pair(lambda x, y: x != y),
    "lt": _pair(lambda x, y: x < y),
    "le": _pair(lambda x, y: x <= y),
    "gt": _pair(lambda x, y: x > y),
    "ge": _pair(lambda x, y: x >= y),
    "logical_and": _pair(torch.logical_and),
    "logical_or": _pair(torch.logical_or),
    "logical_xor": _pair(torch.logical_xor),
    "bitwise_and": _pair(lambda x, y: x & y),
    "bitwise_or": _pair(lambda x, y: x | y),
    "bitwise_xor": _pair(lambda x, y: x ^ y),
    "where": _where,
    "masked_fill": _masked_fill,
    "view": lambda operands, attrs: (operands[0].reshape(attrs["shape"]),),
    "permute": lambda operands, attrs: (operands[0].permute(attrs["perm"]),),
    "expand": lambda operands, attrs: (operands[0].expand(attrs["shape"]),),
    "slice": _slice,
    "select": lambda operands, attrs: (operands[0].select(attrs["dim"], attrs["index"]),),
    "split": lambda operands, attrs: torch.split(operands[0], attrs["sizes"], attrs["dim"]),
    "cat": lambda operands, attrs: (torch.cat(operands, attrs["dim"]),),
    "stack": lambda operands, attrs: (torch.stack(operands, attrs["dim"]),),
    "flip": lambda operands, attrs: (operands[0].flip(attrs["dims"]),),
    "roll": lambda operands, attrs: (operands[0].roll(attrs["shifts"], attrs["dims"]),),
    "pad": lambda operands, attrs: (F.pad(operands[0], attrs["pad"], value=attrs.get("value", 0)),),
    "gather": lambda operands, attrs: (torch.gather(operands[0], attrs["dim"], operands[1]),),
    "index_select": lambda operands, attrs: (
        operands[0].movedim(attrs["dim"], 0)[operands[1]].movedim(0, attrs["dim"]),
    ),
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "sum": _reduce(torch.sum, "dtype"),
    "mean": _reduce(torch.mean, "dtype"),
    "amax": _reduce(torch.amax),
    "amin": _reduce(torch.amin),
    "var": _reduce(torch.var, "correction"),
    "std": _reduce(torch.std, "correction"),
    "logsumexp": _reduce(torch.logsumexp),
    "norm": lambda operands, attrs: (
        torch.linalg.vector_norm(operands[0], attrs.get("p", 2), attrs.get("dim"), attrs.get("keepdim", False)),
    ),
    "prod": _one_dim(torch.prod),
    "any": _one_dim(torch.any),
    "all": _one_dim(torch.all),
    "argmax": _one_dim(torch.argmax),
    "argmin": _one_dim(torch.argmin),
    "max": _one_dim(torch.max),
    "min": _one_dim(torch.min),
    "softmax": _along(torch.softmax),
    "log_softmax": _along(torch.log_softmax),
    "cumsum": _along(torch.cumsum),
    "cumprod": _along(torch.cumprod),
    "logcumsumexp": lambda operands, attrs: (torch.logcumsumexp(operands[0], attrs["dim"]),),
    "topk": lambda operands, attrs: tuple(torch.topk(operands[0], attrs["k"], attrs.get("dim", -1))),
    "sort": lambda operands, attrs: tuple(
        torch.sort(operands[0], dim=attrs.get("dim", -1), descending=attrs.get("descending", False))
    ),
    "argsort": lambda operands, attrs: (
        torch.argsort(operands[0], dim=attrs.get("dim", -1), descending=attrs.get("descending", False)),
    ),
    "linear": _linear,
    "grouped_linear": _grouped_linear,
    "matmul": lambda operands, attrs: (torch.matmul(*operands),),
    "bmm": lambda operands, attrs: (torch.bmm(*operands),),
    "einsum": lambda operands, attrs: (torch.einsum(attrs["equation"], *operands),),
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
    "adaptive_avg_pool2d": lambda operands, attrs: (F.adaptive_avg_pool2d(operands[0], attrs["output_size"]),),
    "upsample": _upsample,
    "dispatch": _dispatch,
    "combine": _combine,
    "constant": _table,
    "full": _creation(None),
    "zeros": _creation(0),
    "ones": _creation(1),
    "arange": _arange,
    "one_hot": lambda operands, attrs: (
        F.one_hot(operands[0], attrs["num_classes"]).to(DTYPES[attrs.get("dtype", "i64")]),
    ),
    "pointwise": _named,
    "opaque": _named,
}
