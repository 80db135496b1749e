"""Operators that move elements and change none: views, joins, cuts, gathers.

A reshape is read by writing both shapes over common factors, so that a split of heads passes from [b, s, h·d] to
[b, s, h, d] and back. Joins and cuts along a dimension are *sectioned*: splitting q|k|v splits each of the three, so
every rank holds a piece of each and the cut stays local.
"""

from __future__ import annotations

from math import gcd, prod

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Dims, Engine, Factor, Law, Role, Rule, Save, Signature
from meshwright.ir.rules.dims import Shape, declare, law, loops, promoted, refine, replaced, whole
from meshwright.ir.rules.registry import rule


def moved(signature: Signature, source: Dims, target: Dims, shape: Shape, factors: tuple[Factor, ...]) -> Rule:
    """One operand, one result with the same elements; a view unless `copy` is set."""
    x = signature.operands[0]
    return Rule(
        factors=factors,
        operands=(source,),
        results=(target,),
        types=(Type(shape, x.dtype),),
        laws=(law(x, Law.LINEAR),),
        engine=Engine.MEMORY if signature.attr("copy", False) else Engine.VIEW,
    )


@rule("view")
def view(signature: Signature) -> Rule:
    """The same elements in row-major order, in another `shape` (reshape, flatten, unsqueeze, squeeze …)."""
    x, shape = signature.operands[0], signature.integers("shape")
    if prod(shape) != x.elements:
        raise signature.error(f"{shape} has {prod(shape)} elements, not {x.elements}", "give a shape of the same size")
    both = refine(x.shape, shape)
    return moved(signature, both.source, both.target, shape, both.factors)


@rule("permute")
def permute(signature: Signature) -> Rule:
    """Dimension i of the result is dimension `perm[i]` of the operand."""
    x, perm = signature.operands[0], signature.integers("perm")
    if sorted(perm) != list(range(len(x.shape))):
        raise signature.error(f"perm {perm} for {len(x.shape)} dims", "list every dimension once, counted from 0")
    dims = loops(x.shape)
    factors = declare([(dims, x.shape)])
    return moved(signature, dims, tuple(dims[i] for i in perm), tuple(x.shape[i] for i in perm), factors)


@rule("expand")
def expand(signature: Signature) -> Rule:
    """Extents of 1 repeated to `shape`; new dimensions come in front."""
    x, shape = signature.operands[0], signature.integers("shape")
    padded = (1,) * (len(shape) - len(x.shape)) + x.shape
    if len(shape) < len(x.shape) or any(old not in (1, new) for old, new in zip(padded, shape, strict=True)):
        raise signature.error(f"{x.shape} does not expand to {shape}", "change only extents of 1")
    target = loops(shape)
    own = tuple(() if old == 1 else dim for old, dim in zip(padded, target, strict=True))
    return moved(signature, own[len(shape) - len(x.shape) :], target, shape, declare([(target, shape)]))


@rule("slice")
def slice_(signature: Signature) -> Rule:
    """Indices start, start + step, … below `end` of one dimension, which stays whole unless all of it is taken."""
    x, dim = signature.operands[0], signature.axis()
    start, stop, step = slice(
        signature.integer("start", 0), signature.integer("end"), signature.integer("step", 1)
    ).indices(x.shape[dim])
    length = len(range(start, stop, step))
    dims = loops(x.shape)
    if length == x.shape[dim]:
        return moved(signature, dims, dims, x.shape, declare([(dims, x.shape)]))
    return _cut(signature, dim, replaced(dims, {dim: ("r",)}), (*x.shape[:dim], length, *x.shape[dim + 1 :]))


@rule("select")
def select(signature: Signature) -> Rule:
    """One `index` of a dimension, which disappears."""
    x, dim = signature.operands[0], signature.axis()
    dims = loops(x.shape)
    return _cut(signature, dim, dims[:dim] + dims[dim + 1 :], x.shape[:dim] + x.shape[dim + 1 :])


def _cut(signature: Signature, dim: int, target: Dims, shape: Shape) -> Rule:
    """A part of one dimension, taken where all of it is."""
    source = replaced(loops(signature.operands[0].shape), {dim: ("w",)})
    factors = declare([(source, signature.operands[0].shape), (target, shape)], {"w": Role.WHOLE, "r": Role.WHOLE})
    return moved(signature, source, target, shape, factors)


@rule("split")
def split(signature: Signature) -> Rule:
    """Consecutive runs of `sizes` along a dimension. Splitting it cuts each run, so that the operand lies in
    sections (fused q|k|v)."""
    x, dim, sizes = signature.operands[0], signature.axis(), signature.integers("sizes")
    if sum(sizes) != x.shape[dim] or not all(sizes):
        raise signature.error(f"sizes {sizes} of extent {x.shape[dim]}", "give positive sizes that add up")
    dims = replaced(loops(x.shape), {dim: ("p",)})
    others = tuple(factor for factor in declare([(dims, x.shape)]) if factor.name != "p")
    return Rule(
        factors=(*others, Factor("p", gcd(*sizes))),
        operands=(dims,),
        results=(dims,) * len(sizes),
        types=tuple(Type((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype) for size in sizes),
        laws=(law(x, Law.LINEAR),),
        engine=Engine.VIEW,
        sections=(("operand", 0, dim, sizes),),
    )


@rule("cat")
def cat(signature: Signature) -> Rule:
    """Operands one after another along `dim`; splitting it cuts each of them, so that the result lies in sections."""
    types, dim = signature.operands, signature.axis()
    first = types[0].shape
    sizes = tuple(type_.shape[dim] for type_ in types)
    for type_ in types:
        if (*type_.shape[:dim], 1, *type_.shape[dim + 1 :]) != (*first[:dim], 1, *first[dim + 1 :]):
            raise signature.error(f"{type_.shape} beside {first}", f"make all dims but {dim} equal")
    dims = replaced(loops(first), {dim: ("p",)})
    others = tuple(factor for factor in declare([(dims, first)]) if factor.name != "p")
    return Rule(
        factors=(*others, Factor("p", gcd(*sizes), Role.PARALLEL if all(sizes) else Role.WHOLE)),
        operands=(dims,) * len(types),
        results=(dims,),
        types=(Type((*first[:dim], sum(sizes), *first[dim + 1 :]), promoted(types)),),
        laws=tuple(law(type_, Law.ADDITIVE) for type_ in types),
        sections=(("result", 0, dim, sizes),) if all(sizes) else (),
    )


@rule("stack")
def stack(signature: Signature) -> Rule:
    """Operands side by side in a new dimension `dim`, which stays whole."""
    types = signature.operands
    dim, shape = signature.axis(rank=len(types[0].shape) + 1), types[0].shape
    dims = loops(shape)
    return Rule(
        factors=(*declare([(dims, shape)]), Factor("i", len(types), Role.WHOLE)),
        operands=(dims,) * len(types),
        results=((*dims[:dim], ("i",), *dims[dim:]),),
        types=(Type((*shape[:dim], len(types), *shape[dim:]), promoted(types)),),
        laws=tuple(law(type_, Law.ADDITIVE) for type_ in types),
    )


@rule("flip", "roll")
def rearranged(signature: Signature) -> Rule:
    """Elements of the dims `dims` in another order (reversed, or rotated by `shifts`)."""
    x = signature.operands[0]
    dims = loops(x.shape)
    factors = declare([(dims, x.shape)], whole(dims, (dim % len(dims) for dim in signature.integers("dims"))))
    return _copied(signature, dims, dims, x.shape, factors)


@rule("pad")
def pad(signature: Signature) -> Rule:
    """Extents grown by `pad` (before, after; last dimension first) and filled with `value`; padded dims stay whole."""
    x, amounts = signature.operands[0], signature.integers("pad")
    pairs = dict(zip(range(len(x.shape) - 1, -1, -1), zip(amounts[::2], amounts[1::2], strict=True), strict=False))
    padded = [dim for dim, (before, after) in pairs.items() if before or after]
    shape = tuple(extent + sum(pairs.get(dim, (0, 0))) for dim, extent in enumerate(x.shape))
    source = replaced(loops(x.shape), {dim: (f"i{dim}",) for dim in padded})
    target = replaced(loops(x.shape), {dim: (f"o{dim}",) for dim in padded})
    roles = whole(source, padded) | whole(target, padded)
    linear = Law.NONLINEAR if signature.attr("value") else Law.LINEAR
    return _copied(signature, source, target, shape, declare([(source, x.shape), (target, shape)], roles), linear)


def _copied(
    signature: Signature, source: Dims, target: Dims, shape: Shape, factors: tuple[Factor, ...], own: Law = Law.LINEAR
) -> Rule:
    x = signature.operands[0]
    return Rule(
        factors=factors,
        operands=(source,),
        results=(target,),
        types=(Type(shape, x.dtype),),
        laws=(law(x, own),),
    )


@rule("gather")
def gather(signature: Signature) -> Rule:
    """result[…, k, …] = x[…, index[…, k, …], …] along `dim`.

    A rank that holds only some of the v rows writes zeros for the others: the results add up."""
    x, index = signature.operands
    dim = signature.axis()
    source, target, roles = _indexed(signature, x.shape, index.shape, dim)
    return Rule(
        factors=declare([(target, index.shape), (source, x.shape)], roles | {"v": Role.SUM}),
        operands=(source, target),
        results=(target,),
        types=(Type(index.shape, x.dtype),),
        laws=(law(x, Law.LINEAR), Law.INDEX),
        saves=(Save("operand", 0), Save("operand", 1)),
        gathered=(0,),
    )


def _indexed(signature: Signature, shape: Shape, index: Shape, dim: int) -> tuple[Dims, Dims, dict[str, Role]]:
    """The dims of a tensor and of an index into its dimension `dim`; other dims are shared where they are equal."""
    if len(shape) != len(index):
        raise signature.error(f"an index of {len(index)} dims into {len(shape)}", "give both the same rank")
    apart = [at for at in range(len(shape)) if at != dim and shape[at] != index[at]]
    source = replaced(loops(shape), {at: (f"x{at}",) for at in apart} | {dim: ("v",)})
    target = replaced(loops(index), {at: (f"i{at}",) for at in apart} | {dim: ("k",)})
    return source, target, whole(source, apart) | whole(target, apart)


@rule("index_select")
def index_select(signature: Signature) -> Rule:
    """Rows `index` of dimension `dim`, from its end where negative. As in `gather`, shards of that dimension add up."""
    x, index = signature.operands
    dim = signature.axis()
    source = replaced(loops(x.shape), {dim: ("v",)})
    target = replaced(source, {dim: ("k",)})
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    return Rule(
        factors=declare([(target, shape), (source, x.shape)], {"v": Role.SUM}),
        operands=(source, (("k",),)),
        results=(target,),
        types=(Type(shape, x.dtype),),
        laws=(law(x, Law.LINEAR), Law.INDEX),
        saves=(Save("operand", 1),),
        gathered=(0,),
    )


@rule("scatter", "scatter_add")
def scatter(signature: Signature) -> Rule:
    """x with the elements index[…, k, …] of dimension `dim` replaced by (or increased by) `scalar` or a third operand.

    A rank that holds some of the v rows writes those only. Additions from shards of k add up; replacements do not."""
    x, index, *sources = signature.operands
    dim = signature.axis()
    source, target, roles = _indexed(signature, x.shape, index.shape, dim)
    adds = signature.kind == "scatter_add"
    scalar = signature.attr("scalar", 0)
    own = Law.ADDITIVE if sources else (Law.NONLINEAR if scalar else Law.LINEAR)
    roles |= {"k": Role.SUM if adds and sources else Role.WHOLE}
    written = Law.LINEAR if adds else Law.ADDITIVE
    return Rule(
        factors=declare([(source, x.shape), (target, index.shape)], roles),
        operands=(source, target, *(target for _ in sources)),
        results=(source,),
        types=(x,),
        laws=(law(x, own), Law.INDEX, *(law(type_, written) for type_ in sources)),
        saves=(Save("operand", 1, needs=(2,) if adds else ()),),
    )
