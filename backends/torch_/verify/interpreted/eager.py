"""Every kind as the framework runs it: one eager torch call on whole tensors.

This is what a model's author wrote; rules are held against it (result types, counted work, saved tensors), and local
kernels against it too. `EAGER[kind](operands, attrs)` gives the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.layers import LAYERS, Attrs, Results, Run
from meshwright.ir.frontends.torch_.operators.invoked import called, operator_of

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


def _unary(call: Callable[[Tensor], Tensor]) -> Run:
    return lambda operands, attrs: (call(operands[0]),)


def _pair(call: Callable[..., Tensor]) -> Run:
    """A function of two operands, or of one and a number."""

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
    """A reduction over `dim`; `names` are its other attributes."""

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
    """Values in place of a constant: they depend on its name alone. Masks let everything see something."""
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
    wide = any(one.dtype is torch.float64 for one in operands)
    made = called(operator_of(attrs["target"], attrs["overload"]), attrs["call"], operands, wide=wide)
    return (made,) if isinstance(made, Tensor) else tuple(one for one in made if isinstance(one, Tensor))


EAGER: dict[str, Run] = {
    **LAYERS,
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
    "matmul": lambda operands, attrs: (torch.matmul(*operands),),
    "bmm": lambda operands, attrs: (torch.bmm(*operands),),
    "einsum": lambda operands, attrs: (torch.einsum(attrs["equation"], *operands),),
    "adaptive_avg_pool2d": lambda operands, attrs: (F.adaptive_avg_pool2d(operands[0], attrs["output_size"]),),
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
