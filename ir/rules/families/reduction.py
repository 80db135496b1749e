"""Reductions and scans along some dimensions: sums, means, extrema, softmax, order.

Attribute `dim` names the dimensions (one, several, or none for all), `keepdim` keeps them with extent 1. Sums and means
split along what they reduce: the shards add up, and a mean divides by the global count wherever it runs. Everything
that compares along a dimension (softmax, sort, top-k) wants that dimension in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, prod

from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules.base import Dims, Expansion, Law, Role, Rule, Save, Signature
from meshwright.ir.rules.dims import Shape, declare, law, loops, real, replaced, whole
from meshwright.ir.rules.registry import expansion, rule
from meshwright.ir.rules.writing import Writer

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
    """A sum; shards of the summed dimensions add up."""
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
}


@rule(*_WHOLE)
def compared(signature: Signature) -> Rule:
    """Reductions for which placements have no partial form. `var` and `std` take `correction`."""
    dtype = signature.operands[0].dtype
    dtype = dtype if signature.kind == "amin" else (accumulated(signature) if signature.kind == "prod" else real(dtype))
    return reduction(signature, Role.WHOLE, Law.NONLINEAR, (dtype,), _WHOLE[signature.kind])


@rule("norm")
def norm(signature: Signature) -> Rule:
    """The `p`-th root of the sum of p-th powers of magnitudes; to split what is summed, it is written as that. The
    greatest and the least magnitude (p = inf, -inf) and counts (p = 0) want it in one place."""
    plain = reduction(signature, Role.WHOLE, Law.NONLINEAR, (real(signature.operands[0].dtype),), (OPERAND, RESULT))
    if not 0 < _power(signature) < inf:
        return plain
    gone = {name for dim in reduced_dims(signature) for name in plain.operands[0][dim]}
    factors = tuple(
        replace(one, role=Role.PARALLEL, expanded=True) if one.name in gone else one for one in plain.factors
    )
    return replace(plain, factors=factors)


def _power(signature: Signature) -> float:
    given = signature.attr("p", 2)
    return float(given) if isinstance(given, (int, float)) else 2.0


@expansion("norm")
def expand_norm(signature: Signature) -> Expansion:
    """(sum(|x|^p))^(1/p). Where the sum is zero no gradient passes, as torch has it: the root's would be infinite."""
    write, p, x = Writer(signature), _power(signature), signature.operands[0]
    splits = {name: name for dim in loops(x.shape) for name in dim}

    def each(kind: str, *values: str, no_grad: bool = False, **attrs: Attr) -> str:
        return write(kind, *values, attrs=attrs, splits=splits, no_grad=no_grad)

    powers = each("mul", "0", "0") if p == 2 else each("abs", "0")
    powers = powers if p in (1, 2) else each("pow", powers, scalar=p)
    total = each("sum", powers, dim=reduced_dims(signature), keepdim=True)
    if p != 1:
        empty = each("eq", total, no_grad=True, scalar=0)
        safe = each("masked_fill", total, empty, scalar=1.0)
        root = each("sqrt", safe) if p == 2 else each("pow", safe, scalar=1 / p)
        total = each("masked_fill", root, empty, scalar=0.0)
    if signature.attr("keepdim", False):
        return write.done(total)
    dims, shape = reduced(signature)
    names = [name for dim in dims for name in dim]
    back = {name: f"f{index}" for index, name in enumerate(names)}
    return write.done(write("view", total, attrs={"shape": shape}, splits=back))


@rule("any", "all")
def any_(signature: Signature) -> Rule:
    """Logic along dimensions."""
    return reduction(signature, Role.WHOLE, Law.INDEX, ("bool",))


@rule("argmax", "argmin")
def argmax(signature: Signature) -> Rule:
    """The index of the extremum."""
    return reduction(signature, Role.WHOLE, Law.INDEX, ("i64",))


@rule("max", "min")
def extremum(signature: Signature) -> Rule:
    """The extremum along one `dim`, with its index."""
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


@rule("cumprod", "logcumsumexp")
def cumprod(signature: Signature) -> Rule:
    """Running products, or logarithms of running sums of exponentials, along `dim`."""
    dtype = accumulated(signature) if signature.kind == "cumprod" else real(signature.operands[0].dtype)
    return along(signature, Law.NONLINEAR, (dtype,), (OPERAND, RESULT))


@rule("topk")
def topk(signature: Signature) -> Rule:
    """The `k` largest along `dim`, with their indices."""
    k = signature.integer("k")
    return along(signature, Law.NONLINEAR, (signature.operands[0].dtype, "i64"), (Save("result", 1),), extent=k)


@rule("sort")
def sort(signature: Signature) -> Rule:
    """The elements sorted along `dim`, with the order."""
    return along(signature, Law.NONLINEAR, (signature.operands[0].dtype, "i64"), (Save("result", 1),))


@rule("argsort")
def argsort(signature: Signature) -> Rule:
    """The order that sorts along `dim`."""
    return along(signature, Law.INDEX, ("i64",))


def count(signature: Signature) -> int:
    """The number of elements that one result element reduces."""
    return prod(signature.operands[0].shape[dim] for dim in reduced_dims(signature))
