"""Every operator in PyTorch.

Expressions name what they read by position (`backends.printing`). Shapes are those of shards. The first dimension is
never written out in a view: it is the batch, most often, and a script is for any.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import Writer, called, dim_of, every, refuse, value
from meshwright.backends.printing.writers import INFIX, always, counted, infix, pair, sliced, unary, where
from meshwright.backends.torch_.emit.printed.language.attention import attention
from meshwright.backends.torch_.emit.printed.language.experts import combine, dispatch
from meshwright.backends.torch_.emit.printed.language.expressions import DTYPE, part, positions, shape_of
from meshwright.backends.torch_.emit.printed.language.layers import LAYERS
from meshwright.ir.graph.invocation import written


def _scaled(symbol: str, function: str) -> Writer:
    def write(call: LocalOp) -> str:
        if "alpha" not in call.attrs:
            return infix(symbol)(call)
        other = "%1" if len(call.given) > 1 else value(call.attrs["scalar"])
        return called(function, "%0", other, alpha=call.attrs["alpha"])

    return write


def _of_tensors(function: str) -> Writer:
    """A function of two operands, or of one and a number, that takes tensors only."""

    def write(call: LocalOp) -> str:
        if len(call.given) > 1:
            return f"{function}(%0, %1)"
        number = value(call.attrs["scalar"])
        return f"{function}(%0, torch.full((), {number}, dtype={DTYPE[call.given[0].dtype]}))"

    return write


def _divide(call: LocalOp) -> str:
    if "rounding" not in call.attrs:
        return infix("/")(call)
    other = "%1" if len(call.given) > 1 else value(call.attrs["scalar"])
    sides = (other, "%0") if call.attrs.get("reverse") else ("%0", other)
    return called("torch.div", *sides, rounding_mode=call.attrs["rounding"])


def _masked_fill(call: LocalOp) -> str:
    return f"%0.masked_fill(%1, {'%2' if len(call.given) > 2 else value(call.attrs.get('scalar', 0))})"


def _with(function: str, *names: str, **renamed: str) -> Writer:
    """A function of all operands, with the attributes that are given."""

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


def _split(call: LocalOp) -> str:
    dim = dim_of(call)
    sizes = [type_.shape[dim] for type_ in call.made]
    return f"%0.split({sizes}, {dim})"


def _joined(function: str) -> Writer:
    return lambda call: f"torch.{function}([{', '.join(every(call))}], {call.attrs['dim']})"


def _reduced(function: str, *names: str) -> Writer:
    """A reduction over some or all dimensions."""

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
    count = counted(call)
    return f"{_sum(call)} / {count}" if count else _reduced("mean")(call)


def _along(function: str) -> Writer:
    return lambda call: f"%0.{function}({call.attrs['dim']})"


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

WRITERS: Mapping[str, Writer] = {
    **LAYERS,
    **{name: unary(f"torch.{name}") for name in FUNCTIONS},
    **{name: infix(symbol) for name, symbol in INFIX.items()},
    **{name: unary(f"F.{name}") for name in ("silu", "relu6", "hardswish", "hardsigmoid", "mish")},
    **{name: pair(f"torch.{name}") for name in ("remainder", "fmod", "logical_and", "logical_or", "logical_xor")},
    **{name: _of_tensors(f"torch.{name}") for name in ("maximum", "minimum", "atan2")},
    **{name: _like(name) for name in ("zeros_like", "ones_like", "full_like")},
    **{name: _reduced(name) for name in ("amax", "amin", "logsumexp", "argmax", "argmin", "prod", "any", "all")},
    **{name: _reduced(name) for name in ("max", "min")},
    **{name: _reduced(name, "correction") for name in ("var", "std")},
    **{name: _along(name) for name in ("softmax", "log_softmax", "cumsum", "cumprod")},
    **{name: _created(name) for name in ("full", "zeros", "ones")},
    "copy": _copy,
    "pow": _power,
    "gelu": _with("F.gelu", "approximate"),
    "elu": _with("F.elu", "alpha"),
    "leaky_relu": _with("F.leaky_relu", "negative_slope"),
    "softplus": _with("F.softplus", "beta", "threshold"),
    "log_sigmoid": unary("F.logsigmoid"),
    "clamp": _with("torch.clamp", "min", "max"),
    "cast": _cast,
    "dropout": _with("F.dropout", "p"),
    "tril": _triangle,
    "triu": _triangle,
    "add": _scaled("+", "torch.add"),
    "sub": _scaled("-", "torch.sub"),
    "div": _divide,
    "where": where("torch.where"),
    "masked_fill": _masked_fill,
    "view": _view,
    "permute": lambda call: f"%0.permute{value(call.attrs['perm'])}",
    "expand": _expand,
    "slice": sliced,
    "select": lambda call: f"%0.select({call.attrs['dim']}, {call.attrs['index']})",
    "split": _split,
    "cat": _joined("cat"),
    "stack": _joined("stack"),
    "flip": lambda call: f"%0.flip({value(call.attrs['dims'])})",
    "roll": lambda call: f"%0.roll({value(call.attrs['shifts'])}, {value(call.attrs['dims'])})",
    "pad": lambda call: called("F.pad", "%0", value(call.attrs["pad"]), value=call.attrs.get("value", 0)),
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
    "matmul": always("%0 @ %1"),
    "bmm": always("torch.bmm(%0, %1)"),
    "einsum": lambda call: f"torch.einsum({', '.join([value(call.attrs['equation']), *every(call)])})",
    "grouped_mm": always("F.grouped_mm(%0, %1, offs=%2)"),
    "attention": attention,
    "adaptive_avg_pool2d": lambda call: f"F.adaptive_avg_pool2d(%0, {value(call.attrs['output_size'])})",
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
