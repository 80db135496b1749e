"""Scaled dot-product attention, with grouped key and value heads.

    q[b, h, sq, d], k[b, hk, sk, d], v[b, hk, sk, dv] (, bias[b|1, h|1, sq|1, sk]) -> [b, h, sq, dv]

Factors: batch b, key-value head hk, group g (h = hk·g, key-value head major), queries sq, keys sk, widths d and dv.
Splitting hk is head parallelism; reached from a split sequence it is Ulysses. Splitting sq with the keys whole is
context parallelism by all-gather; the pair (sq, sk) is a ring. The mask is a law, not a tensor: attribute `mask` is
full, causal, window, band or chunk, with `width` (see `visible` for the laws). A learned bias is a fourth operand.

Work follows torch's counter: two products forward, whatever the mask hides, and twice that backward.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Dims, Engine, Factor, Law, Pair, Role, Rule, Save, Signature, Work
from meshwright.ir.rules.registry import rule

MASKS = ("full", "causal", "window", "band", "chunk")


@rule("attention")
def attention(signature: Signature) -> Rule:
    """softmax(q · kᵀ · scale + mask + bias) · v."""
    q, _, v, *bias = signature.operands
    _check(signature)
    (b, h, sq, d), (_, hk, sk, dv) = q.shape, v.shape
    head = ("hk", "g") if h != hk else ("hk",)
    factors = {"b": b, "hk": hk, "g": h // hk, "sq": sq, "sk": sk, "d": d, "dv": dv}
    if h == hk:
        del factors["g"]
    dims: tuple[Dims, ...] = (
        (("b",), head, ("sq",), ("d",)),
        (("b",), ("hk",), ("sk",), ("d",)),
        (("b",), ("hk",), ("sk",), ("dv",)),
    )
    result: Dims = (("b",), head, ("sq",), ("dv",))
    return Rule(
        factors=tuple(
            Factor(name, size, Role.WHOLE if name in ("sk", "d") else Role.PARALLEL) for name, size in factors.items()
        ),
        operands=(*dims, *(_bias_dims(signature, type_, result[:3]) for type_ in bias)),
        results=(result,),
        types=(Type((b, h, sq, dv), q.dtype),),
        laws=(Law.NONLINEAR, Law.NONLINEAR, Law.LINEAR, *(Law.NONLINEAR for _ in bias)),
        engine=Engine.ATTENTION,
        work=_work(("b", *head, "sq", "sk")),
        saves=_saves(signature, head),
        pairs=() if bias or sq != sk else (Pair("sq", "sk", "ring"),),
    )


def _check(signature: Signature) -> None:
    if any(len(type_.shape) != 4 for type_ in signature.operands):
        raise signature.error("an operand without four dims", "give [batch, heads, positions, width]")
    q, k, v = (type_.shape for type_ in signature.operands[:3])
    if k[:3] != v[:3] or q[0] != k[0] or q[3] != k[3] or q[1] % k[1]:
        raise signature.error("shapes that do not meet", "make batch, key width and key count agree, heads divide")
    if signature.attr("mask", "full") not in MASKS:
        raise signature.error(f"mask {signature.attr('mask')!r}", f"use one of {', '.join(MASKS)}")


def _bias_dims(signature: Signature, bias: Type, target: Dims) -> Dims:
    if bias.shape[3] != signature.operands[1].shape[2]:
        raise signature.error(f"a bias of {bias.shape[3]} keys", "give one per key")
    return (*((() if extent == 1 else dim) for dim, extent in zip(target, bias.shape, strict=False)), ("sk",))


def _work(points: tuple[str, ...]) -> tuple[Work, ...]:
    """Work of attention: forward scores and output; backward their gradients, of q and k through the scores, of v
    through the output.

    The gradient of the probabilities serves q and k alike."""
    return (
        Work(2, (*points, "d")),
        Work(2, (*points, "dv")),
        Work(2, (*points, "dv"), grad_of=0, shared_with=1),
        *(Work(2, (*points, width), grad_of=of) for of, width in enumerate(("d", "d", "dv"))),
    )


def _saves(signature: Signature, head: tuple[str, ...]) -> tuple[Save, ...]:
    """Tensors that kernels save. On CPU torch's fused kernel wants equal widths, no dropout, and a bias only if it is
    not trained."""
    q, _, v, *bias = signature.operands
    fused, composed = _fused(signature, head), _composed(signature, head)
    if q.shape[3] != v.shape[3] or signature.attr("dropout", 0.0):
        return _on("cuda", fused) + _on("cpu", composed)
    if not bias:
        return fused
    written_out = tuple(replace(save, given=(3,)) for save in composed)
    return _on("cuda", fused) + _on("cpu", tuple(replace(save, unless=(3,)) for save in fused) + written_out)


def _on(device: str, saves: tuple[Save, ...]) -> tuple[Save, ...]:
    return tuple(replace(save, devices=(device,)) for save in saves)


def _fused(signature: Signature, head: tuple[str, ...], *, masked: bool = True) -> tuple[Save, ...]:
    """Tensors that a fused kernel saves: its operands, its result, the logarithm of each row's sum, and a mask that it
    cannot compute, as numbers, in the shape that it was given (`mask_shape`)."""
    operands = tuple(Save("operand", index) for index in range(len(signature.operands)))
    lse: Dims = (("b",), head, ("sq",))
    saves = (*operands, Save("result", 0), Save("extra", dims=lse, dtype="f32"))
    plain = signature.attr("mask", "full") in ("full", "causal") and signature.attr("mask_shape") is None
    if plain or not masked:
        return saves
    q, k = signature.operands[:2]
    shape: tuple[int, ...] = (1, 1, q.shape[2], k.shape[2])
    if signature.attr("mask_shape") is not None:
        shape = (1, 1, 1, 1, *signature.integers("mask_shape"))[-4:]
    mask = _bias_dims(signature, Type(shape, q.dtype), (("b",), head, ("sq",)))
    return (*saves, Save("extra", dims=mask, dtype=q.dtype))


def ring_saves(signature: Signature) -> tuple[Save, ...]:
    """Tensors that ring attention saves: those of a fused kernel, of any widths and on any device. Visits are given
    their part of a mask as they come by, and save nothing of it."""
    head = ("hk",) if signature.operands[0].shape[1] == signature.operands[1].shape[1] else ("hk", "g")
    return _fused(signature, head, masked=False)


def _composed(signature: Signature, head: tuple[str, ...]) -> tuple[Save, ...]:
    """Written out in at least f32: scaled queries and keys, each for the other's gradient, the probabilities, the
    values; with dropout also its mask, and the probabilities before and after. The product wants batch and heads in
    one run, so that values which come from [b, s, h·d] are copied."""
    q = signature.operands[0]
    dtype = "f64" if q.dtype == "f64" else "f32"
    through = (0, 1, *range(3, len(signature.operands)))
    rows: Dims = (("b",), head, ("sq",), ("sk",))
    keys, queries, values = (
        (("b",), head, *rest) for rest in ((("sk",), ("d",)), (("sq",), ("d",)), (("sk",), ("dv",)))
    )
    copied = q.dtype != dtype or len(head) > 1 or q.shape[0] > 1
    scores = Save("extra", dims=rows, dtype=dtype)
    dropped = (replace(scores, needs=through), replace(scores, needs=through), replace(scores, needs=(2,)))
    return (
        Save("extra", needs=(0,), dims=keys, dtype=dtype),
        Save("extra", needs=(1,), dims=queries, dtype=dtype),
        *(dropped if signature.attr("dropout", 0.0) else (scores,)),
        Save("extra", needs=through, dims=values, dtype=dtype) if copied else Save("operand", 2, needs=through),
    )


def visible(mask: str, width: int, query: int, key: int, *, queries: int, keys: int) -> bool:
    """Whether a query sees a key. The last query is aligned with the last key; `width` belongs to the mask's law."""
    at = query + keys - queries
    laws = {
        "full": True,
        "causal": key <= at,
        "window": at - width < key <= at,
        "band": at - width < key < at + width,
        "chunk": width > 0 and at // width * width <= key <= at,
    }
    return laws[mask]
