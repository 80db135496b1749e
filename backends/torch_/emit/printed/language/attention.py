"""Attention in PyTorch: whole, for a part of the queries, or in a ring."""

from __future__ import annotations

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import called, every, refuse, value
from meshwright.backends.torch_.emit.printed.language.expressions import positions
from meshwright.backends.torch_.emit.printed.language.ring import PLAIN_MASKS
from meshwright.ir.graph.graph import Attr
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Uneven

NO_RING = ("--fix cp=1", "--fix context=all_gather")
"""What helps where a ring cannot be printed."""


def attention(call: LocalOp) -> str:
    attrs, many = call.attrs, call.given[0].shape[1] != call.given[1].shape[1]
    mask, width = attrs.get("mask", "full"), attrs.get("width", 0)
    if call.coupled:
        return _ring(call)
    if call.cuts.keys() & {"sk"}:
        raise refuse(call.op, "attention to a part of the keys")
    options = {"scale": attrs.get("scale")}
    if attrs.get("dropout"):
        options["dropout_p"] = attrs["dropout"]
    cut = call.cuts.get("sq", ())
    longer = call.whole[0].shape[2] != call.whole[1].shape[2]
    biased = len(call.given) > 3
    if not biased and (mask == "full" or (mask == "causal" and not cut and not longer)):
        causal = {"is_causal": True} if mask == "causal" else {}
        return called("F.scaled_dot_product_attention", "%0", "%1", "%2", **causal, **options, **_gqa(many))
    if biased and mask == "full":
        return called("F.scaled_dot_product_attention", *every(call), **options, **_gqa(many))
    named = {"scale": attrs.get("scale"), **({"dropout": attrs["dropout"]} if attrs.get("dropout") else {})}
    if mask == "causal" and not biased and len(cut) == 1 and not longer and not isinstance(cut[0][1], Uneven):
        ((axis, layout),) = cut
        zigzag = {"zigzag": True} if layout != CONTIGUOUS else {}
        return called("attend_in_runs", "%0", "%1", "%2", axis, **zigzag, **named)
    given = ["%0", "%1", "%2", literal(str(mask))]
    if width:
        given.append(f"width={width}")
    if cut:
        given.append(f"queries={positions(call, 'sq', 0)}")
    if longer:
        given.append(f"shift={call.whole[1].shape[2] - call.whole[0].shape[2]}")
    if biased:
        given.append("bias=%3")
    return called("attend", *given, **named)


def _ring(call: LocalOp) -> str:
    """Attention whose keys and values pass from rank to rank."""
    mask, width, ranks = call.attrs.get("mask", "full"), call.attrs.get("width", 0), call.coupled[0]
    if call.attrs.get("dropout") or call.given[2].shape[-1] > call.given[1].shape[-1]:
        raise refuse(call.op, "torch has no fused kernel for it, by which a ring puts parts together", NO_RING)
    layouts = {layout for _, layout in call.cuts["sq"]}
    if len(call.given) > 3 or not (layouts == {CONTIGUOUS} or (layouts == {ZIGZAG} and mask in PLAIN_MASKS)):
        raise refuse(call.op, "attention in a ring with a bias, or tokens in another order", NO_RING)
    given = ["%0", "%1.contiguous()", "%2.contiguous()", ranks, mask == "causal", value(call.attrs.get("scale"))]
    if mask not in PLAIN_MASKS:
        given.append(f"*of_visits({literal(str(mask))}, {width}, %0, {ranks})")
    return f"Ring.apply({', '.join(map(str, given))})"


def _gqa(many: bool) -> dict[str, Attr]:
    return {"enable_gqa": True} if many else {}
