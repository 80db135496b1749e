"""Matrix products: linear layers, batched products, one linear per expert.

Every product is  out[batch, m, n] = sum_k x[batch, m, k] · w[n, k]  with some of the loops missing. Work is 2 per
point; the two gradients cost the same again, each booked on the operand it is for (dgrad on x, wgrad on w).
"""

from __future__ import annotations

from math import prod

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Dims, Engine, Factor, Law, Role, Rule, Save, Signature, Work
from meshwright.ir.rules.dims import declare
from meshwright.ir.rules.registry import rule

OTHER = (Save("operand", 0, needs=(1,)), Save("operand", 1, needs=(0,)))
"""A product keeps each of its two operands for the gradient of the other one."""


def leading(rank: int) -> tuple[str, ...]:
    """Names for the leading loops of a tensor: in the model they are batch and sequence, which an operator cannot
    know."""
    return tuple(f"d{index}" for index in range(rank))


def product_work(factors: tuple[str, ...], left: int, right: int) -> tuple[Work, ...]:
    return (Work(2, factors), Work(2, factors, grad_of=left), Work(2, factors, grad_of=right))


def agree(signature: Signature, left: int, right: int) -> None:
    """Check that the two summed extents are equal."""
    if left != right:
        raise signature.error(f"{left} features meet a weight of {right}", "make the inner dimensions equal")


def product(signature: Signature, x: Dims, w: Dims, out: Dims, bias: Dims = ()) -> Rule:
    """out = x · w (+ bias): the loops that `out` lacks are summed."""
    types = signature.operands
    kept = {name for dim in out for name in dim}
    named = tuple(dict.fromkeys(name for dim in (*out, *x, *w) for name in dim))
    roles = {name: Role.SUM for name in named if name not in kept}
    factors = declare(((x, types[0].shape), (w, types[1].shape)), roles)
    size = {factor.name: factor.size for factor in factors}
    biased = len(types) > 2
    return Rule(
        factors=tuple(Factor(name, size[name], roles.get(name, Role.PARALLEL)) for name in named),
        operands=(x, w, *((bias,) if biased else ())),
        results=(out,),
        types=(Type(tuple(prod(size[name] for name in dim) for dim in out), types[0].dtype),),
        laws=(Law.LINEAR, Law.LINEAR, *((Law.ADDITIVE,) if biased else ())),
        engine=Engine.MATMUL,
        work=product_work(named, 0, 1),
        saves=OTHER,
    )


@rule("linear")
def linear(signature: Signature) -> Rule:
    """x[…, k] · w[n, k] (+ bias[n]) -> [..., n]. With `transposed` the weight is stored as [k, n] (GPT-2's Conv1D)."""
    x, w = signature.operands[:2]
    transposed = bool(signature.attr("transposed", False))
    agree(signature, x.shape[-1], w.shape[0 if transposed else 1])
    lead = tuple((name,) for name in leading(len(x.shape) - 1))
    weight: Dims = (("k",), ("n",)) if transposed else (("n",), ("k",))
    return product(signature, (*lead, ("k",)), weight, (*lead, ("n",)), (("n",),))


@rule("grouped_linear")
def grouped_linear(signature: Signature) -> Rule:
    """rows[e, c, k] · w[e, n, k] (+ bias[e, n]) -> [e, c, n]: one linear per expert; `transposed`: w is [e, k, n]."""
    rows, w = signature.operands[:2]
    transposed = bool(signature.attr("transposed", False))
    agree(signature, rows.shape[2], w.shape[1 if transposed else 2])
    agree(signature, rows.shape[0], w.shape[0])
    weight: Dims = (("e",), ("k",), ("n",)) if transposed else (("e",), ("n",), ("k",))
    return product(signature, (("e",), ("c",), ("k",)), weight, (("e",), ("c",), ("n",)), (("e",), ("n",)))


@rule("matmul", "bmm")
def matmul(signature: Signature) -> Rule:
    """a[…, m, k] · b[…, k, n] -> [..., m, n]; leading dims are broadcast from the right, vectors lack m or n."""
    a, b = signature.operands
    agree(signature, a.shape[-1], b.shape[max(len(b.shape) - 2, 0)])
    batch = max(len(a.shape), len(b.shape), 2) - 2
    extents: dict[int, int] = {}
    for shape in (a.shape[:-2], b.shape[:-2]):
        for index, extent in enumerate(shape, batch - len(shape)):
            if extent != 1 and extents.setdefault(index, extent) != extent:
                raise signature.error(f"batch dims {a.shape[:-2]} meet {b.shape[:-2]}", "give dims that broadcast")

    def lead(shape: tuple[int, ...]) -> Dims:
        offset = batch - len(shape)
        return tuple((f"d{offset + index}",) if extent != 1 else () for index, extent in enumerate(shape))

    out: Dims = tuple((f"d{index}",) if index in extents else () for index in range(batch))
    rows: Dims = (("m",),) if len(a.shape) > 1 else ()
    columns: Dims = (("n",),) if len(b.shape) > 1 else ()
    return product(
        signature,
        (*lead(a.shape[:-2]), *rows, ("k",)),
        (*lead(b.shape[:-2]), ("k",), *columns),
        (*out, *rows, *columns),
    )


@rule("einsum")
def einsum(signature: Signature) -> Rule:
    """A product of two tensors by `equation`, such as "bsk,nk->bsn": letters are the loops."""
    equation = str(signature.attr("equation", "")).replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    ranks = [len(type_.shape) for type_ in signature.operands]
    if not arrow or [len(term) for term in terms] != ranks or len(terms) != 2 or not equation.isascii():
        raise signature.error(f"equation {equation!r}", "write two operands and a result, one letter per dimension")
    left, right, out = (tuple((letter,) for letter in term) for term in (*terms, output))
    return product(signature, left, right, out)


@rule("grouped_mm")
def grouped_mm(signature: Signature) -> Rule:
    """x[t, k] · w[e, k, n] -> [t, n], rows sorted by expert; ends[e] says where each expert's rows end.

    The boundaries count all rows, so rows and experts stay in one place; the features split."""
    x, w, ends = signature.operands
    agree(signature, x.shape[1], w.shape[1])
    agree(signature, ends.shape[0], w.shape[0])
    return Rule(
        factors=(
            Factor("t", x.shape[0], Role.WHOLE),
            Factor("e", w.shape[0], Role.WHOLE),
            Factor("k", w.shape[1], Role.SUM),
            Factor("n", w.shape[2]),
        ),
        operands=((("t",), ("k",)), (("e",), ("k",), ("n",)), (("e",),)),
        results=((("t",), ("n",)),),
        types=(Type((x.shape[0], w.shape[2]), x.dtype),),
        laws=(Law.LINEAR, Law.LINEAR, Law.INDEX),
        engine=Engine.MATMUL,
        work=product_work(("t", "k", "n"), 0, 1),
        saves=(*OTHER, Save("operand", 2)),
    )
