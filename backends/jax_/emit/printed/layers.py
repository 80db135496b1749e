"""Layers in JAX of which a device has a part: products, norms, convolutions, look-ups, attention, losses."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.backends.jax_.emit.printed.expressions import axis_of, positions
from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import Writer, called, dim_of, every, refuse, value
from meshwright.backends.printing.writers import own_groups
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG

ONLY_WHOLE = ("--fix cp=1", "--fix context=all_gather")


def _linear(call: LocalOp) -> str:
    product = "%0 @ %1" if call.attrs.get("transposed") else "%0 @ %1.T"
    return f"{product} + %2" if len(call.given) > 2 else product


def _grouped_linear(call: LocalOp) -> str:
    product = "%0 @ %1" if call.attrs.get("transposed") else "%0 @ %1.swapaxes(1, 2)"
    return f"{product} + %2[:, None]" if len(call.given) > 2 else product


def _norm(function: str, eps: float) -> Writer:
    def write(call: LocalOp) -> str:
        shape = call.attrs.get("normalized_shape", call.given[0].shape[-1:])
        assert isinstance(shape, tuple)
        return called(function, "%0", str(len(shape)), value(call.attrs.get("eps", eps)), *every(call)[1:])

    return write


def _group_norm(call: LocalOp) -> str:
    groups = call.attrs["groups"]
    assert isinstance(groups, int)
    return called(
        "group_norm", "%0", str(own_groups(call, groups)), value(call.attrs.get("eps", 1e-5)), *every(call)[1:]
    )


def _conv(call: LocalOp) -> str:
    groups = call.attrs.get("groups", 1)
    assert isinstance(groups, int)
    rank, own = len(call.given[0].shape) - 2, own_groups(call, groups)
    given = {name: call.attrs[name] for name in ("stride", "padding", "dilation") if name in call.attrs}
    wide = {name: one if isinstance(one, tuple) else (one,) * rank for name, one in given.items()}
    if any(isinstance(one, str) for several in wide.values() for one in several):
        raise refuse(call.op, "padding by name")
    made = called("conv", "%0", "%1", **wide, groups=own)
    return f"{made} + %2.reshape({value((-1, *(1 for _ in range(rank))))})" if len(call.given) > 2 else made


def _pool(call: LocalOp) -> str:
    names = ("stride", "padding", "dilation")
    if any(call.attrs.get(name) for name in ("ceil_mode", "divisor_override")):
        raise refuse(call.op, "windows beyond the edge")
    given = {name: call.attrs[name] for name in names if name in call.attrs}
    rank = int(call.op.kind[-2])
    kernel = call.attrs["kernel"]
    wide = {name: one if isinstance(one, tuple) else (one,) * rank for name, one in {"kernel": kernel, **given}.items()}
    if call.op.kind.startswith("avg") and call.attrs.get("count_include_pad") is False:
        raise refuse(call.op, "means of windows at the edge by themselves")
    return called("max_pool" if call.op.kind.startswith("max") else "avg_pool", "%0", **wide)


def _embedding(call: LocalOp) -> str:
    if call.attrs.get("padding_idx") is not None:
        raise refuse(call.op, "a row of a table that is not trained")
    return "%0[%1]" if "v" not in call.cuts else f"rows_part(%0, %1, {axis_of(call, 'v')})"


def _gather(call: LocalOp) -> str:
    if "v" not in call.cuts:
        return f"gather(%0, {dim_of(call)}, %1)"
    return f"gather_part(%0, {dim_of(call)}, %1, {axis_of(call, 'v')})"


def _index_select(call: LocalOp) -> str:
    if "v" not in call.cuts:
        return f"jnp.take(%0, %1, {dim_of(call)})"
    return f"select_part(%0, {dim_of(call)}, %1, {axis_of(call, 'v')})"


def _scatter(call: LocalOp) -> str:
    if "v" in call.cuts:
        raise refuse(call.op, "writes into a dimension that is cut")
    source = "%2" if len(call.given) > 2 else value(call.attrs["scalar"])
    add = call.op.kind == "scatter_add"
    return called("scatter", "%0", str(dim_of(call)), "%1", source, **({"add": True} if add else {}))


def _nll(call: LocalOp) -> str:
    ignored, reduction = call.attrs.get("ignore_index", -100), call.attrs.get("reduction", "mean")
    axis = [axis_of(call, "v")] if "v" in call.cuts else []
    return _summed(call, called("nll", "%0", "%1", value(ignored), *axis), reduction)


def _cross_entropy(call: LocalOp) -> str:
    if call.attrs.get("label_smoothing"):
        raise refuse(call.op, "smoothed labels")
    ignored, reduction = call.attrs.get("ignore_index", -100), call.attrs.get("reduction", "mean")
    return _summed(call, called("nll", "jax.nn.log_softmax(%0)", "%1", value(ignored)), reduction)


def _summed(call: LocalOp, text: str, reduction: object) -> str:
    if reduction == "none":
        return text
    if reduction == "sum":
        return f"{text}.sum()"
    ignored = call.attrs.get("ignore_index", -100)
    if "v" in call.cuts or call.given[1].elements != call.whole[1].elements:
        raise refuse(call.op, "a mean of parts")
    return f"{text}.sum() / (%1 != {value(ignored)}).sum()"


def _attention(call: LocalOp) -> str:
    """Attention of this device's queries to all keys."""
    attrs = call.attrs
    if call.coupled and attrs.get("dropout"):
        raise refuse(call.op, "random numbers in a ring", ONLY_WHOLE)
    if call.coupled:
        return _ring(call)
    if "sk" in call.cuts:
        raise refuse(call.op, "attention to a part of the keys")
    mask, width, longer = attrs.get("mask", "full"), attrs.get("width", 0), call.whole[1].shape[2]
    given = ["%0", "%1", "%2"]
    if mask != "full":
        given.append(literal(str(mask)))
        given += [f"width={width}"] if width else []
        given += [f"queries={positions(call, 'sq')}"] if "sq" in call.cuts else []
        given += [f"shift={longer - call.whole[0].shape[2]}"] if longer != call.whole[0].shape[2] else []
    given += ["bias=%3"] if len(call.given) > 3 else []
    return called("attention", *given, **({"scale": attrs["scale"]} if attrs.get("scale") is not None else {}))


def _ring(call: LocalOp) -> str:
    """Attention whose keys and values pass from device to device."""
    layouts = {layout for _, layout in call.cuts["sq"]}
    if len(call.given) > 3 or len(call.coupled) > 1 or layouts not in ({CONTIGUOUS}, {ZIGZAG}):
        raise refuse(call.op, "attention in a ring with a bias, or tokens in another order", ONLY_WHOLE)
    if call.whole[0].shape[2] != call.whole[1].shape[2]:
        raise refuse(call.op, "attention in a ring to another sequence", ONLY_WHOLE)
    scale = call.attrs.get("scale")
    how = [literal(call.coupled[0]), literal(str(call.attrs.get("mask", "full"))), value(call.attrs.get("width", 0))]
    how += [value(call.given[0].shape[-1] ** -0.5 if scale is None else scale), value(layouts == {ZIGZAG})]
    return called("ring", "%0", "%1", "%2", *how)


LAYERS: Mapping[str, Writer] = {
    **{f"conv{n}d": _conv for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": _pool for kind in ("max", "avg") for n in (1, 2, 3)},
    "layer_norm": _norm("layer_norm", 1e-5),
    "rms_norm": _norm("rms_norm", 1e-6),
    "group_norm": _group_norm,
    "linear": _linear,
    "grouped_linear": _grouped_linear,
    "embedding": _embedding,
    "gather": _gather,
    "index_select": _index_select,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "nll_loss": _nll,
    "cross_entropy": _cross_entropy,
    "attention": _attention,
}
"""The expressions of layers."""
