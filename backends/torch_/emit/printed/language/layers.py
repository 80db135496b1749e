"""Layers in PyTorch of which a rank has a part: products, norms, convolutions, look-ups, losses."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import Writer, called, dim_of, every, refuse, value
from meshwright.backends.printing.writers import own_groups
from meshwright.backends.torch_.emit.printed.language.expressions import ranks_of, shape_of
from meshwright.ir.graph.graph import Attr


def _loss(function: str, *names: str) -> Writer:
    """A loss of two tensors; for a mean over parts, their share in the mean over all."""

    def write(call: LocalOp) -> str:
        given = {name: call.attrs[name] for name in names if name in call.attrs}
        reduction = call.attrs.get("reduction", "mean")
        parts = call.given[0].elements != call.whole[0].elements
        if reduction == "mean" and parts:
            summed = called(function, "%0", "%1", reduction="sum", **given)
            return f"{summed} / {call.whole[0].elements}"
        return called(function, "%0", "%1", reduction=reduction, **given)

    return write


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
    return called("embedding_part", "%0", "%1", ranks_of(call, "v"), *([] if padding is None else [str(padding)]))


def _gather(call: LocalOp) -> str:
    if "v" not in call.cuts:
        return f"torch.gather(%0, {call.attrs['dim']}, %1)"
    return f"gather_part(%0, {call.attrs['dim']}, %1, {ranks_of(call, 'v')})"


def _index_select(call: LocalOp) -> str:
    if "v" not in call.cuts:
        return f"%0[{', '.join([':'] * dim_of(call) + ['%1'])}]"
    return f"select_part(%0, {dim_of(call)}, %1, {ranks_of(call, 'v')})"


def _scatter(add: bool) -> Writer:
    def write(call: LocalOp) -> str:
        source = "%2" if len(call.given) > 2 else value(call.attrs["scalar"])
        if "v" not in call.cuts:
            return f"%0.scatter{'_add' * add}({call.attrs['dim']}, %1, {source})"
        return f"scatter_part(%0, {dim_of(call)}, %1, {source}, {ranks_of(call, 'v')}, {add})"

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
        text = f"nll_part(%0, %1, {ranks_of(call, 'v')}, {ignored})"
        return f"{text}.sum()" if reduction == "sum" else text
    flat = len(call.given[0].shape) > 2
    given: dict[str, Attr] = {"ignore_index": ignored, "reduction": reduction}
    text = called("F.nll_loss", "%0.flatten(0, -2)" if flat else "%0", "%1.flatten()" if flat else "%1", **given)
    return f"{text}.reshape({shape_of(call.made[0].shape, batch=True)})" if flat and reduction == "none" else text


def _upsample(call: LocalOp) -> str:
    where = {"scale_factor": call.attrs["scales"]} if "scales" in call.attrs else {"size": call.attrs["size"]}
    corners = {"align_corners": call.attrs["align_corners"]} if call.attrs.get("align_corners") is not None else {}
    return called("F.interpolate", "%0", **where, mode=call.attrs.get("mode", "nearest"), **corners)


LAYERS: Mapping[str, Writer] = {
    **{f"conv{t}{n}d": _conv(f"conv{t}{n}d") for t in ("", "_transpose") for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": _pool(f"{kind}_pool{n}d") for kind in ("max", "avg") for n in (1, 2, 3)},
    **{name: _norm(name) for name in ("layer_norm", "rms_norm")},
    "gather": _gather,
    "index_select": _index_select,
    "scatter": _scatter(add=False),
    "scatter_add": _scatter(add=True),
    "linear": _linear,
    "grouped_linear": _grouped_linear,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "batch_moments": _batch_moments,
    "batch_normalize": _batch_normalize,
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
    "upsample": _upsample,
}
"""The expressions of layers."""
