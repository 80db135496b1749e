"""How every operator looks in PyTorch.

Expressions name what they read by position (`backends.printing`). Shapes are those of shards. The first dimension is
never written out in a view: it is the batch, most often, and a script is for any.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshwright.backends.printing import LocalOp
from meshwright.backends.torch_.emit.printed.language.attention import attention
from meshwright.backends.torch_.emit.printed.language.experts import combine, dispatch
from meshwright.backends.torch_.emit.printed.language.expressions import (
    DTYPE,
    Writer,
    called,
    every,
    one_axis,
    part,
    positions,
    refuse,
    shape_of,
    value,
)
from meshwright.ir.graph.graph import Attr
from meshwright.ir.graph.invocation import written
from meshwright.ir.sharding.placement import Uneven


def _unary(function: str) -> Writer:
    return lambda call: f"{function}(%0)"


def _method(text: str) -> Writer:
    return lambda call: text


def _infix(symbol: str) -> Writer:
    """Two operands, or one and a number."""

    def write(call: LocalOp) -> str:
        if len(call.given) > 1:
            return f"%0 {symbol} %1"
        number = value(call.attrs["scalar"])
        return f"{number} {symbol} %0" if call.attrs.get("reverse") else f"%0 {symbol} {number}"

    return write


def _scaled(symbol: str, function: str) -> Writer:
    def write(call: LocalOp) -> str:
        if "alpha" not in call.attrs:
            return _infix(symbol)(call)
        other = "%1" if len(call.given) > 1 else value(call.attrs["scalar"])
        return called(function, "%0", other, alpha=call.attrs["alpha"])

    return write


def _pair(function: str, *, tensors: bool = False) -> Writer:
    """A function of two operands, or one and a number; of which some take tensors only."""

    def write(call: LocalOp) -> str:
        if len(call.given) > 1:
            return f"{function}(%0, %1)"
        number = value(call.attrs["scalar"])
        if tensors:
            return f"{function}(%0, torch.full((), {number}, dtype={DTYPE[call.given[0].dtype]}))"
        return f"{function}({number}, %0)" if call.attrs.get("reverse") else f"{function}(%0, {number})"

    return write


def _divide(call: LocalOp) -> str:
    if "rounding" not in call.attrs:
        return _infix("/")(call)
    other = "%1" if len(call.given) > 1 else value(call.attrs["scalar"])
    sides = (other, "%0") if call.attrs.get("reverse") else ("%0", other)
    return called("torch.div", *sides, rounding_mode=call.attrs["rounding"])


def _where(call: LocalOp) -> str:
    if len(call.given) == 3:
        return "torch.where(%0, %1, %2)"
    number = value(call.attrs["scalar"])
    if len(call.given) == 1:
        return f"torch.where(%0, {number}, {value(call.attrs['other'])})"
    return f"torch.where(%0, {number}, %1)" if call.attrs.get("reverse") else f"torch.where(%0, %1, {number})"


def _masked_fill(call: LocalOp) -> str:
    return f"%0.masked_fill(%1, {'%2' if len(call.given) > 2 else value(call.attrs.get('scalar', 0))})"


def _with(function: str, *names: str, **renamed: str) -> Writer:
    """A function of all operands, with those attributes that are given."""

    def write(call: LocalOp) -> str:
        wanted = {name: name for name in names} | renamed
        given = {torch: call.attrs[ours] for torch, ours in wanted.items() if call.attrs.get(ours) is not None}
        return called(function, *every(call), **given)

    return write


def _cast(call: LocalOp) -> str:
    return f"%0.to({DTYPE[call.made[0].dtype]})"


def _like(function: str) -> Writer:
    def write(call: LocalOp) -> str:
        filling = [value(call.attrs["value"])] if function == "full_like" else []
        return called(f"torch.{function}", "%0", *filling, f"dtype={DTYPE[call.made[0].dtype]}")

    return write


def _view(call: LocalOp) -> str:
    made = call.made[0].shape
    return f"%0.reshape({shape_of(made, batch=bool(call.given[0].shape)) if made else '()'})"


def _expand(call: LocalOp) -> str:
    kept, made = call.given[0].shape, call.made[0].shape
    before = len(made) - len(kept)
    same = [-1 if n >= before and kept[n - before] == size else size for n, size in enumerate(made)]
    return f"%0.expand({', '.join(map(str, same))})"


def _slice(call: LocalOp) -> str:
    if call.made[0].shape == call.given[0].shape:
        return "%0"
    dim = _dim(call)
    start, end, step = (call.attrs.get(name, other) for name, other in (("start", 0), ("end", None), ("step", 1)))
    run = f"{start or ''}:{'' if end is None else end}" + (f":{step}" if step != 1 else "")
    return f"%0[{', '.join([':'] * dim + [run])}]"


def _dim(call: LocalOp) -> int:
    dim = call.attrs["dim"]
    assert isinstance(dim, int)
    return dim % max(1, len(call.given[0].shape))


def _split(call: LocalOp) -> str:
    dim = _dim(call)
    sizes = [type_.shape[dim] for type_ in call.made]
    return f"%0.split({sizes}, {dim})"


def _joined(function: str) -> Writer:
    return lambda call: f"torch.{function}([{', '.join(every(call))}], {call.attrs['dim']})"


def _reduced(function: str, *names: str) -> Writer:
    """A reduction over some dimensions or all."""

    def write(call: LocalOp) -> str:
        given = {name: call.attrs[name] for name in names if call.attrs.get(name) is not None}
        texts = [f"{name}={value(one)}" for name, one in given.items()]
        return f"%0.{function}({', '.join([*_dims(call), *texts])})"

    return write


def _dims(call: LocalOp) -> list[str]:
    dim = call.attrs.get("dim")
    named = [] if dim is None else [value(dim)]
    kept = ["keepdim=True"] if call.attrs.get("keepdim") else []
    return named + (kept if named or not kept else [f"{tuple(range(len(call.given[0].shape)))}", *kept])


def _sum(call: LocalOp) -> str:
    dtype = [f"dtype={DTYPE[call.made[0].dtype]}"] if call.attrs.get("dtype") else []
    return f"%0.sum({', '.join([*_dims(call), *dtype])})"


def _mean(call: LocalOp) -> str:
    dim = call.attrs.get("dim")
    rank = len(call.given[0].shape)
    named = dim if isinstance(dim, tuple) else range(rank) if dim is None else (dim,)
    dims = [d % rank for d in named if isinstance(d, int)]
    count = prod(call.whole[0].shape[d] for d in dims)
    if count == prod(call.given[0].shape[d] for d in dims):
        return _reduced("mean")(call)
    return f"{_sum(call)} / {count}"


def _loss(function: str, *names: str) -> Writer:
    """A loss of two tensors; a mean of parts is their share in that of all."""

    def write(call: LocalOp) -> str:
        given = {name: call.attrs[name] for name in names if name in call.attrs}
        reduction = call.attrs.get("reduction", "mean")
        parts = call.given[0].elements != call.whole[0].elements
        if reduction == "mean" and parts:
            summed = called(function, "%0", "%1", reduction="sum", **given)
            return f"{summed} / {call.whole[0].elements}"
        return called(function, "%0", "%1", reduction=reduction, **given)

    return write


def _along(function: str) -> Writer:
    return lambda call: f"%0.{function}({call.attrs['dim']})"


def _linear(call: LocalOp) -> str:
    if not call.attrs.get("transposed"):
        return called("F.linear", *every(call))
    return "%0 @ %1 + %2" if len(call.given) > 2 else "%0 @ %1"


def _grouped_linear(call: LocalOp) -> str:
    weight = "%1" if call.attrs.get("transposed") else "%1.transpose(1, 2)"
    product = f"torch.bmm(%0, {weight})"
    return f"{product} + %2[:, None]" if len(call.given) > 2 else product


def _norm(function: str) -> Writer:
    def write(call: LocalOp) -> str:
        shape = call.attrs.get("normalized_shape", call.given[0].shape[-1:])
        usual = 1e-5 if function == "layer_norm" else 1e-6
        return called(f"F.{function}", "%0", value(shape), *every(call)[1:], eps=call.attrs.get("eps", usual))

    return write


def own_groups(call: LocalOp, groups: int) -> int:
    """How many of so many groups a rank has."""
    if any(isinstance(layout, Uneven) for _, layout in call.cuts.get("g", ())):
        raise refuse(call.op, "groups in unequal parts")
    return groups // call.parts.get("g", 1)


def _group_norm(call: LocalOp) -> str:
    groups = call.attrs["groups"]
    assert isinstance(groups, int)
    return called(
        "F.group_norm", "%0", str(own_groups(call, groups)), *every(call)[1:], eps=call.attrs.get("eps", 1e-5)
    )


def _conv(function: str) -> Writer:
    names = ("stride", "padding", "dilation", "output_padding")

    def write(call: LocalOp) -> str:
        given = {name: call.attrs[name] for name in names if name in call.attrs}
        groups = call.attrs.get("groups", 1)
        assert isinstance(groups, int)
        return called(f"F.{function}", *every(call), **given, groups=own_groups(call, groups))

    return write


def _pool(function: str) -> Writer:
    names = ("stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")

    def write(call: LocalOp) -> str:
        given = {name: call.attrs[name] for name in names if name in call.attrs}
        return called(f"F.{function}", "%0", value(call.attrs["kernel"]), **given)

    return write


def _batch_norm(call: LocalOp) -> str:
    training = bool(call.attrs.get("training", True))
    if training:
        return called(
            "batch_norm", *every(call), value(call.attrs.get("momentum", 0.1)), value(call.attrs.get("eps", 1e-5))
        )
    given = {name: call.attrs[name] for name in ("momentum", "eps") if name in call.attrs}
    return called("F.batch_norm", "%0", "%3", "%4", "%1", "%2", training=False, **given)


def _batch_moments(call: LocalOp) -> str:
    share = prod(call.given[0].shape) / call.given[0].shape[1] / prod(call.whole[0].shape) * call.whole[0].shape[1]
    return f"batch_moments(%0, {share!r})"


def _batch_normalize(call: LocalOp) -> str:
    return called("batch_normalize", *every(call), value(call.attrs.get("eps", 1e-5)))


def _embedding(call: LocalOp) -> str:
    padding = call.attrs.get("padding_idx")
    cut = call.cuts.get("v", ())
    if not cut:
        return called("F.embedding", "%1", "%0", *([] if padding is None else [f"padding_idx={padding}"]))
    return called("embedding_part", "%0", "%1", one_axis(call, "v"), *([] if padding is None else [str(padding)]))


def _gather(call: LocalOp) -> str:
    if "v" not in call.cuts:
        return f"torch.gather(%0, {call.attrs['dim']}, %1)"
    return f"gather_part(%0, {call.attrs['dim']}, %1, {one_axis(call, 'v')})"


def _index_select(call: LocalOp) -> str:
    if "v" not in call.cuts:
        return f"%0[{', '.join([':'] * _dim(call) + ['%1'])}]"
    return f"select_part(%0, {_dim(call)}, %1, {one_axis(call, 'v')})"


def _scatter(add: bool) -> Writer:
    def write(call: LocalOp) -> str:
        source = "%2" if len(call.given) > 2 else value(call.attrs["scalar"])
        if "v" not in call.cuts:
            return f"%0.scatter{'_add' * add}({call.attrs['dim']}, %1, {source})"
        return f"scatter_part(%0, {_dim(call)}, %1, {source}, {one_axis(call, 'v')}, {add})"

    return write


def _cross_entropy(call: LocalOp) -> str:
    given: dict[str, Attr] = {}
    if call.attrs.get("ignore_index", -100) != -100:
        given["ignore_index"] = call.attrs["ignore_index"]
    if call.attrs.get("label_smoothing"):
        given["label_smoothing"] = call.attrs["label_smoothing"]
    reduction = call.attrs.get("reduction", "mean")
    if reduction != "mean":
        given["reduction"] = reduction
    flat = len(call.given[0].shape) > 2
    text = called("F.cross_entropy", "%0.flatten(0, -2)" if flat else "%0", "%1.flatten()" if flat else "%1", **given)
    return f"{text}.reshape({shape_of(call.made[0].shape, batch=True)})" if flat and reduction == "none" else text


def _nll_loss(call: LocalOp) -> str:
    ignored, reduction = call.attrs.get("ignore_index", -100), call.attrs.get("reduction", "mean")
    if "v" in call.cuts:
        if reduction == "mean":
            raise refuse(call.op, "a mean of parts of the classes")
        text = f"nll_part(%0, %1, {one_axis(call, 'v')}, {ignored})"
        return f"{text}.sum()" if reduction == "sum" else text
    flat = len(call.given[0].shape) > 2
    given: dict[str, Attr] = {"ignore_index": ignored, "reduction": reduction}
    text = called("F.nll_loss", "%0.flatten(0, -2)" if flat else "%0", "%1.flatten()" if flat else "%1", **given)
    return f"{text}.reshape({shape_of(call.made[0].shape, batch=True)})" if flat and reduction == "none" else text


def _triangle(call: LocalOp) -> str:
    diagonal = call.attrs.get("diagonal", 0)
    rank = len(call.given[0].shape)
    rows, columns = (f"d{rank - 2}", f"d{rank - 1}")
    if not call.cuts.keys() & {rows, columns}:
        return f"%0.{call.op.kind}({diagonal})"
    symbol = "<=" if call.op.kind == "tril" else ">="
    down, right = (positions(call, factor, 0) for factor in (rows, columns))
    return f"%0 * ({right} - {down}[:, None] {symbol} {diagonal})"


def _created(function: str) -> Writer:
    def write(call: LocalOp) -> str:
        filling = [value(call.attrs["value"])] if function == "full" else []
        shape = value(call.made[0].shape)
        return called(f"torch.{function}", shape, *filling, f"dtype={DTYPE[call.made[0].dtype]}", "device=DEVICE")

    return write


def _arange(call: LocalOp) -> str:
    start, step = call.attrs.get("start", 0), call.attrs.get("step", 1)
    text = called("torch.arange", value(start), value(call.attrs["end"]), value(step), "device=DEVICE")
    for axis, layout in call.cuts.get("d0", ()):
        text = part(text, axis, 0, layout, call.sizes["d0"], call.op.name)
    return f"{text}.to({DTYPE[call.made[0].dtype]})"


def _one_hot(call: LocalOp) -> str:
    return f"(%0[..., None] == {positions(call, 'v', 0)}).to({DTYPE[call.made[0].dtype]})"


def _power(call: LocalOp) -> str:
    exponent = "%1" if len(call.given) > 1 else value(call.attrs["scalar"])
    return f"{exponent} ** %0" if call.attrs.get("reverse") else f"%0.pow({exponent})"


def _copy(call: LocalOp) -> str:
    return "%0.clone()"


def _upsample(call: LocalOp) -> str:
    where = {"scale_factor": call.attrs["scales"]} if "scales" in call.attrs else {"size": call.attrs["size"]}
    corners = {"align_corners": call.attrs["align_corners"]} if call.attrs.get("align_corners") is not None else {}
    return called("F.interpolate", "%0", **where, mode=call.attrs.get("mode", "nearest"), **corners)


def _vector_norm(call: LocalOp) -> str:
    given = {name: call.attrs[name] for name in ("dim", "keepdim") if call.attrs.get(name) is not None}
    return called("torch.linalg.vector_norm", "%0", value(call.attrs.get("p", 2)), **given)


def _named(call: LocalOp) -> str:
    """An operator of the framework, by its name and with its whole call."""
    attrs = call.attrs
    if not attrs.get("overload"):
        raise refuse(call.op, f"{attrs.get('target')}: it is known by its name alone")
    return written(str(attrs["target"]), str(attrs["overload"]), attrs.get("call"), every(call), "DEVICE")


def _constant(call: LocalOp) -> str:
    raise refuse(call.op, "a constant whose lines are not known")


FUNCTIONS = (
    "neg", "abs", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "log", "log2", "log1p", "sin",
    "cos", "erf", "sign", "floor", "ceil", "round", "bitwise_not", "logical_not", "isnan", "isinf", "relu",
)  # fmt: skip
INFIX = {
    "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip

WRITERS: Mapping[str, Writer] = {
    **{name: _unary(f"torch.{name}") for name in FUNCTIONS},
    **{name: _infix(symbol) for name, symbol in INFIX.items()},
    **{name: _unary(f"F.{name}") for name in ("silu", "relu6", "hardswish", "hardsigmoid", "mish")},
    **{name: _pair(f"torch.{name}") for name in ("remainder", "fmod", "logical_and", "logical_or", "logical_xor")},
    **{name: _pair(f"torch.{name}", tensors=True) for name in ("maximum", "minimum", "atan2")},
    **{name: _like(name) for name in ("zeros_like", "ones_like", "full_like")},
    **{name: _reduced(name) for name in ("amax", "amin", "logsumexp", "argmax", "argmin", "prod", "any", "all")},
    **{name: _reduced(name) for name in ("max", "min")},
    **{name: _reduced(name, "correction") for name in ("var", "std")},
    **{name: _along(name) for name in ("softmax", "log_softmax", "cumsum", "cumprod")},
    **{name: _created(name) for name in ("full", "zeros", "ones")},
    **{f"conv{t}{n}d": _conv(f"conv{t}{n}d") for t in ("", "_transpose") for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": _pool(f"{kind}_pool{n}d") for kind in ("max", "avg") for n in (1, 2, 3)},
    **{name: _norm(name) for name in ("layer_norm", "rms_norm")},
    "copy": _copy,
    "pow": _power,
    "gelu": _with("F.gelu", "approximate"),
    "elu": _with("F.elu", "alpha"),
    "leaky_relu": _with("F.leaky_relu", "negative_slope"),
    "softplus": _with("F.softplus", "beta", "threshold"),
    "log_sigmoid": _unary("F.logsigmoid"),
    "clamp": _with("torch.clamp", "min", "max"),
    "cast": _cast,
    "dropout": _with("F.dropout", "p"),
    "tril": _triangle,
    "triu": _triangle,
    "add": _scaled("+", "torch.add"),
    "sub": _scaled("-", "torch.sub"),
    "div": _divide,
    "where": _where,
    "masked_fill": _masked_fill,
    "view": _view,
    "permute": lambda call: f"%0.permute{value(call.attrs['perm'])}",
    "expand": _expand,
    "slice": _slice,
    "select": lambda call: f"%0.select({call.attrs['dim']}, {call.attrs['index']})",
    "split": _split,
    "cat": _joined("cat"),
    "stack": _joined("stack"),
    "flip": lambda call: f"%0.flip({value(call.attrs['dims'])})",
    "roll": lambda call: f"%0.roll({value(call.attrs['shifts'])}, {value(call.attrs['dims'])})",
    "pad": lambda call: called("F.pad", "%0", value(call.attrs["pad"]), value=call.attrs.get("value", 0)),
    "gather": _gather,
    "index_select": _index_select,
    "scatter": _scatter(add=False),
    "scatter_add": _scatter(add=True),
    "sum": _sum,
    "mean": _mean,
    "norm": _vector_norm,
    "topk": lambda call: f"%0.topk({call.attrs['k']}, {call.attrs.get('dim', -1)})",
    "sort": lambda call: called(
        "%0.sort", dim=call.attrs.get("dim", -1), descending=call.attrs.get("descending", False)
    ),
    "argsort": lambda call: called(
        "%0.argsort", dim=call.attrs.get("dim", -1), descending=call.attrs.get("descending", False)
    ),
    "linear": _linear,
    "grouped_linear": _grouped_linear,
    "matmul": _method("%0 @ %1"),
    "bmm": _method("torch.bmm(%0, %1)"),
    "einsum": lambda call: f"torch.einsum({', '.join([value(call.attrs['equation']), *every(call)])})",
    "grouped_mm": _method("F.grouped_mm(%0, %1, offs=%2)"),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "batch_moments": _batch_moments,
    "batch_normalize": _batch_normalize,
    "attention": attention,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "mse_loss": _loss("F.mse_loss"),
    "l1_loss": _loss("F.l1_loss"),
    "smooth_l1_loss": _loss("F.smooth_l1_loss", "beta"),
    "huber_loss": _loss("F.huber_loss", "delta"),
    "binary_cross_entropy": _loss("F.binary_cross_entropy"),
    "binary_cross_entropy_with_logits": _loss("F.binary_cross_entropy_with_logits"),
    "kl_div": _loss("F.kl_div", "log_target"),
    "adaptive_avg_pool2d": lambda call: f"F.adaptive_avg_pool2d(%0, {value(call.attrs['output_size'])})",
    "upsample": _upsample,
    "dispatch": dispatch,
    "combine": combine,
    "constant": _constant,
    "arange": _arange,
    "one_hot": _one_hot,
    "opaque": _named,
    "pointwise": _named,
    "logcumsumexp": lambda call: f"torch.logcumsumexp(%0, {call.attrs['dim']})",
}
"""The expression of every kind of operator."""
