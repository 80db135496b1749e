"""Reductions and scans along some dimensions: sums, means, extrema, softmax, order.

Attribute `dim` names the dimensions (one, several, or none for all), `keepdim` keeps them with extent 1. Sums and means
split along what they reduce: the shards add up, and a mean divides by the global count wherever it runs. Everything
that compares along a dimension (softmax, sort, top-k) wants that dimension in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshwright.ir.graph import Type
from meshwright.ir.rules.base import Dims, Law, Role, Rule, Save, Signature, rule
from meshwright.ir.rules.dims import Shape, declare, law, loops, real, replaced, whole

OPERAND = Save("operand", 0)
RESULT = Save("result", 0)


def reduced_dims(signature: Signature) -> tuple[int, ...]:
    """The positions that `dim` names, counted from the front; all of them if it is absent."""
    rank = len(signature.operands[0].shape)
    if signature.attr("dim") is None:
        return tuple(range(rank))
    for dim in signature.integers("dim"):
        if not -rank <= dim < max(rank, 1):
            raise signature.error(f"dim={dim} for a tensor of {rank} dims", "give a dimension that exists")
    return tuple(sorted({dim % rank for dim in signature.integers("dim")})) if rank else ()


def reduced(signature: Signature) -> tuple[Dims, Shape]:
    """Dims and shape of the result."""
    x, gone = signature.operands[0], reduced_dims(signature)
    if signature.attr("keepdim", False):
        dims = replaced(loops(x.shape), dict.fromkeys(gone, ()))
        return dims, tuple(1 if dim in gone else extent for dim, extent in enumerate(x.shape))
    kept = [dim for dim in range(len(x.shape)) if dim not in gone]
    return tuple(loops(x.shape)[dim] for dim in kept), tuple(x.shape[dim] for dim in kept)


def reduction(
    signature: Signature, role: Role, own: Law, dtypes: tuple[str, ...], saves: tuple[Save, ...] = ()
) -> Rule:
    """One operand; every result lacks the reduced dimensions."""
    x = signature.operands[0]
    source = loops(x.shape)
    dims, shape = reduced(signature)
    types = tuple(Type(shape, dtype) for dtype in dtypes)
    return Rule(
        factors=declare([(source, x.shape)], whole(source, reduced_dims(signature), role)),
        operands=(source,),
        results=(dims,) * len(types),
        types=types,
        laws=(law(x, own) if types[0].floating else Law.INDEX,),
        saves=saves if types[0].floating else (),
    )


def accumulated(signature: Signature) -> str:
    """The dtype of a sum: that of the operand, i64 for integers, or the attribute `dtype`."""
    dtype = signature.operands[0].dtype
    given = signature.attr("dtype")
    return str(given) if given else (dtype if Type((), dtype).floating else "i64")


@rule("sum")
def sum_(signature: Signature) -> Rule:
    """Shards of what is summed add up."""
    return reduction(signature, Role.SUM, Law.LINEAR, (accumulated(signature),))


@rule("mean")
def mean(signature: Signature) -> Rule:
    """A sum divided by the global count, on every shard."""
    return reduction(
        signature, Role.SUM, Law.LINEAR, (real(str(signature.attr("dtype") or signature.operands[0].dtype)),)
    )


@rule("amax")
def amax(signature: Signature) -> Rule:
    """A maximum of maxima; split, no gradient passes, which is right where it only shifts (log-sum-exp)."""
    return reduction(signature, Role.MAX, Law.NONLINEAR, (signature.operands[0].dtype,), (OPERAND, RESULT))


_WHOLE: Mapping[str, tuple[Save, ...]] = {
    "amin": (OPERAND, RESULT),
    "prod": (OPERAND, RESULT),
    "var": (OPERAND,),
    "std": (OPERAND, RESULT),
    "logsumexp": (OPERAND, RESULT),
    "norm": (OPERAND, RESULT),
}


@rule(*_WHOLE)
def compared(signature: Signature) -> Rule:
    """Reductions that our placements have no partial form for. `var` and `std` take `correction`, `norm` takes `p`."""
    dtype = signature.operands[0].dtype
    dtype = dtype if signature.kind == "amin" else (accumulated(signature) if signature.kind == "prod" else real(dtype))
    return reduction(signature, Role.WHOLE, Law.NONLINEAR, (dtype,), _WHOLE[signature.kind])


@rule("any", "all")
def any_(signature: Signature) -> Rule:
    """Logic along dimensions."""
    return reduction(signature, Role.WHOLE, Law.INDEX, ("bool",))


@rule("argmax", "argmin")
def argmax(signature: Signature) -> Rule:
    """Where the extremum is."""
    return reduction(signature, Role.WHOLE, Law.INDEX, ("i64",))


@rule("max", "min")
def extremum(signature: Signature) -> Rule:
    """The extremum along one `dim` and where it is."""
    dtypes = (signature.operands[0].dtype, "i64")
    return reduction(signature, Role.WHOLE, Law.NONLINEAR, dtypes, (Save("result", 1),))


def along(
    signature: Signature, own: Law, dtypes: tuple[str, ...], saves: tuple[Save, ...] = (), *, extent: int | None = None
) -> Rule:
    """One operand and results like it, with `dim` whole; `extent` gives that dimension of the results another size."""
    x, dim = (
        signature.operands[0],
        signature.axis() if signature.attr("dim") is not None else len(signature.operands[0].shape) - 1,
    )
    source = loops(x.shape)
    target = source if extent is None else replaced(source, {dim: ("k",)})
    shape = x.shape if extent is None else (*x.shape[:dim], extent, *x.shape[dim + 1 :])
    return Rule(
        factors=declare([(source, x.shape), (target, shape)], whole(source, [dim]) | whole(target, [dim])),
        operands=(source,),
        results=(target,) * len(dtypes),
        types=tuple(Type(shape, dtype) for dtype in dtypes),
        laws=(law(x, own) if Type((), dtypes[0]).floating else Law.INDEX,),
        saves=saves if Type((), dtypes[0]).floating else (),
    )


@rule("softmax", "log_softmax")
def softmax(signature: Signature) -> Rule:
    """Normalised exponentials (or their logarithms) along `dim`; keeps its result."""
    dtype = str(signature.attr("dtype") or real(signature.operands[0].dtype))
    return along(signature, Law.NONLINEAR, (dtype,), (RESULT,))


@rule("cumsum")
def cumsum(signature: Signature) -> Rule:
    """Running sums along `dim`."""
    return along(signature, Law.LINEAR, (accumulated(signature),))


@rule("topk")
def topk(signature: Signature) -> Rule:
    """The `k` largest along `dim` and where they are."""
    k = signature.integer("k")
    return along(signature, Law.NONLINEAR, (signature.operands[0].dtype, "i64"), (Save("result", 1),), extent=k)


@rule("sort")
def sort(signature: Signature) -> Rule:
    """Sorted along `dim`, and the order."""
    return along(signature, Law.NONLINEAR, (signature.operands[0].dtype, "i64"), (Save("result", 1),))


@rule("argsort")
def argsort(signature: Signature) -> Rule:
    """The order that sorts along `dim`."""
    return along(signature, Law.INDEX, ("i64",))


def count(signature: Signature) -> int:
    """How many elements one result element reduces."""
    return prod(signature.operands[0].shape[dim] for dim in reduced_dims(signature))
