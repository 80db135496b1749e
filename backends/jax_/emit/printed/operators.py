"""Every operator in JAX.

Expressions name what they read by position (`backends.printing`). Shapes are those of shards.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.backends.jax_.emit.printed.expressions import dtype_of, part, positions
from meshwright.backends.jax_.emit.printed.layers import LAYERS
from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import Writer, called, dim_of, every, refuse, value
from meshwright.backends.printing.writers import INFIX, always, counted, infix, pair, sides, sliced, unary, where
from meshwright.ir.graph.graph import Attr


def _scaled(symbol: str) -> Writer:
    def write(call: LocalOp) -> str:
        left, right = sides(call)
        scale = f"{value(call.attrs['alpha'])} * " if "alpha" in call.attrs else ""
        return f"{left} {symbol} {scale}{right}"

    return write


def _divide(call: LocalOp) -> str:
    left, right = sides(call)
    rounding = call.attrs.get("rounding")
    if rounding is None:
        return f"{left} / {right}"
    if rounding == "floor":
        return f"jnp.floor_divide({left}, {right})"
    whole = f"jnp.trunc({left} / {right})"
    return whole if call.made[0].floating else f"{whole}.astype({dtype_of(call.made[0].dtype)})"


def _masked_fill(call: LocalOp) -> str:
    return f"jnp.where(%1, {'%2' if len(call.given) > 2 else value(call.attrs.get('scalar', 0))}, %0)"


def _like(call: LocalOp) -> str:
    filling = {"zeros_like": 0, "ones_like": 1}.get(call.op.kind, call.attrs.get("value"))
    return called("jnp.full_like", "%0", value(filling), dtype_of(call.made[0].dtype))


def _created(call: LocalOp) -> str:
    filling = {"zeros": 0, "ones": 1}.get(call.op.kind, call.attrs.get("value"))
    return called("jnp.full", value(call.made[0].shape), value(filling), dtype_of(call.made[0].dtype))


def _split(call: LocalOp) -> str:
    dim, ends, total = dim_of(call), list[int](), 0
    for type_ in call.made[:-1]:
        total += type_.shape[dim]
        ends.append(total)
    return f"jnp.split(%0, {ends}, {dim})"


def _joined(function: str) -> Writer:
    return lambda call: f"jnp.{function}([{', '.join(every(call))}], {call.attrs['dim']})"


def _dims(call: LocalOp) -> dict[str, Attr]:
    """The dimensions of a reduction, and whether they stay."""
    dim, kept = call.attrs.get("dim"), call.attrs.get("keepdim")
    axes = {} if dim is None or dim == () else {"axis": dim}
    return {**axes, **({"keepdims": True} if kept else {})}


def _reduced(function: str) -> Writer:
    return lambda call: called(function, "%0", **_dims(call))


def _spread(function: str) -> Writer:
    """A variance, or its root; by what torch calls them, of a sample."""
    return lambda call: called(function, "%0", **_dims(call), ddof=call.attrs.get("correction", 1))


def _extremes(function: str, places: str) -> Writer:
    """An extreme along a dimension, with its place where that is asked for."""

    def write(call: LocalOp) -> str:
        text = called(function, "%0", **_dims(call))
        if len(call.made) == 1:
            return text
        return f"({text}, {called(places, '%0', **_dims(call))}.astype({dtype_of(call.made[1].dtype)}))"

    return write


def _sum(call: LocalOp) -> str:
    text = called("jnp.sum", "%0", **_dims(call))
    return text if call.made[0].dtype == call.given[0].dtype else _typed(text[:-1], call)


def _typed(text: str, call: LocalOp) -> str:
    return f"{text}, dtype={dtype_of(call.made[0].dtype)})"


def _mean(call: LocalOp) -> str:
    count = counted(call)
    return f"{_sum(call)} / {count}" if count else called("jnp.mean", "%0", **_dims(call))


def _along(function: str) -> Writer:
    return lambda call: called(function, "%0", axis=dim_of(call))


def _triangle(call: LocalOp) -> str:
    diagonal, rank = call.attrs.get("diagonal", 0), len(call.given[0].shape)
    down, right = (positions(call, f"d{rank - at}") for at in (2, 1))
    symbol = "<=" if call.op.kind == "tril" else ">="
    return f"jnp.where({right} - {down}[:, None] {symbol} {diagonal}, %0, 0)"


def _arange(call: LocalOp) -> str:
    start, step = call.attrs.get("start", 0), call.attrs.get("step", 1)
    text = called("jnp.arange", value(start), value(call.attrs["end"]), value(step))
    for axis, layout in call.cuts.get("d0", ()):
        text = part(text, axis, 0, layout, call.sizes["d0"], call.op.name)
    return f"{text}.astype({dtype_of(call.made[0].dtype)})"


def _one_hot(call: LocalOp) -> str:
    return f"(%0[..., None] == {positions(call, 'v')}).astype({dtype_of(call.made[0].dtype)})"


def _power(call: LocalOp) -> str:
    return " ** ".join(sides(call))


def _vector_norm(call: LocalOp) -> str:
    return called("vector_norm", "%0", value(call.attrs.get("p", 2)), **_dims(call))


def _sort(function: str) -> Writer:
    def write(call: LocalOp) -> str:
        dim, down = call.attrs.get("dim", -1), call.attrs.get("descending", False)
        return called(function, "%0", value(dim), **({"descending": True} if down else {}))

    return write


def _top(call: LocalOp) -> str:
    return called("largest", "%0", value(call.attrs["k"]), value(call.attrs.get("dim", -1)))


def _flipped(call: LocalOp) -> str:
    return called("jnp.flip", "%0", value(call.attrs["dims"]))


def _padded(call: LocalOp) -> str:
    pad, rank = call.attrs["pad"], len(call.given[0].shape)
    assert isinstance(pad, tuple)
    pairs: list[Attr] = [(0, 0)] * (rank - len(pad) // 2)
    pairs += [tuple(pad[at : at + 2]) for at in range(len(pad) - 2, -1, -2)]
    if any(isinstance(one, int) and one < 0 for one in pad):
        raise refuse(call.op, "padding that cuts")
    filling = call.attrs.get("value", 0)
    return called("jnp.pad", "%0", value(tuple(pairs)), **({"constant_values": filling} if filling else {}))


def _gelu(call: LocalOp) -> str:
    return called("jax.nn.gelu", "%0", approximate=call.attrs.get("approximate", "none") == "tanh")


def _grouped(call: LocalOp) -> str:
    return "jax.lax.ragged_dot(%0, %1, jnp.diff(%2, prepend=0))"


FUNCTIONS: Mapping[str, str] = {
    **{name: f"jnp.{name}" for name in ("abs", "exp", "expm1", "sqrt", "reciprocal", "tanh", "log", "log2", "log1p")},
    **{name: f"jnp.{name}" for name in ("sin", "cos", "sign", "floor", "ceil", "round", "logical_not")},
    **{name: f"jnp.{name}" for name in ("isnan", "isinf")},
    **{name: f"jax.nn.{name}" for name in ("relu", "relu6", "sigmoid", "silu", "mish", "log_sigmoid")},
    "neg": "jnp.negative",
    "erf": "jax.lax.erf",
    "rsqrt": "jax.lax.rsqrt",
    "bitwise_not": "jnp.invert",
    "hardswish": "jax.nn.hard_swish",
    "hardsigmoid": "jax.nn.hard_sigmoid",
}
PAIRS = ("remainder", "fmod", "maximum", "minimum", "logical_and", "logical_or", "logical_xor")

WRITERS: Mapping[str, Writer] = {
    **LAYERS,
    **{name: unary(function) for name, function in FUNCTIONS.items()},
    **{name: infix(symbol) for name, symbol in INFIX.items()},
    **{name: pair(f"jnp.{name}") for name in PAIRS},
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), _like),
    **dict.fromkeys(("full", "zeros", "ones"), _created),
    **{name: _reduced(f"jnp.{name}") for name in ("amax", "amin", "argmax", "argmin", "prod", "any", "all")},
    **{name: _spread(f"jnp.{name}") for name in ("var", "std")},
    **{name: _along(f"jnp.{name}") for name in ("cumsum", "cumprod")},
    **{name: _along(f"jax.nn.{name}") for name in ("softmax", "log_softmax")},
    "atan2": pair("jnp.arctan2"),
    "max": _extremes("jnp.max", "jnp.argmax"),
    "min": _extremes("jnp.min", "jnp.argmin"),
    "logsumexp": _reduced("jax.nn.logsumexp"),
    "logcumsumexp": _along("jax.lax.cumlogsumexp"),
    "add": _scaled("+"),
    "sub": _scaled("-"),
    "div": _divide,
    "pow": _power,
    "copy": always("%0"),
    "gelu": _gelu,
    "elu": lambda call: called("jax.nn.elu", "%0", value(call.attrs.get("alpha", 1.0))),
    "leaky_relu": lambda call: called("jax.nn.leaky_relu", "%0", value(call.attrs.get("negative_slope", 0.01))),
    "softplus": lambda call: called(
        "softplus", "%0", **{name: call.attrs[name] for name in ("beta", "threshold") if name in call.attrs}
    ),
    "clamp": lambda call: called(
        "jnp.clip", "%0", **{name: call.attrs[name] for name in ("min", "max") if call.attrs.get(name) is not None}
    ),
    "cast": lambda call: f"%0.astype({dtype_of(call.made[0].dtype)})",
    "where": where("jnp.where"),
    "masked_fill": _masked_fill,
    "tril": _triangle,
    "triu": _triangle,
    "view": lambda call: f"%0.reshape({value(call.made[0].shape)})",
    "permute": lambda call: f"%0.transpose({value(call.attrs['perm'])})",
    "expand": lambda call: f"jnp.broadcast_to(%0, {value(call.made[0].shape)})",
    "slice": sliced,
    "select": lambda call: f"%0[{', '.join([':'] * dim_of(call) + [value(call.attrs['index'])])}]",
    "split": _split,
    "cat": _joined("concatenate"),
    "stack": _joined("stack"),
    "flip": _flipped,
    "roll": lambda call: called("jnp.roll", "%0", value(call.attrs["shifts"]), value(call.attrs["dims"])),
    "pad": _padded,
    "sum": _sum,
    "mean": _mean,
    "norm": _vector_norm,
    "topk": _top,
    "sort": _sort("sort"),
    "argsort": _sort("jnp.argsort"),
    "matmul": always("%0 @ %1"),
    "bmm": always("%0 @ %1"),
    "einsum": lambda call: f"jnp.einsum({', '.join([value(call.attrs['equation']), *every(call)])})",
    "grouped_mm": _grouped,
    "arange": _arange,
    "one_hot": _one_hot,
}
"""The expression of every kind of operator that is printed."""
