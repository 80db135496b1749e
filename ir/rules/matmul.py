"""Matrix products: linear layers, batched products, one linear per expert.

Every product is  out[batch, m, n] = sum_k x[batch, m, k] · w[n, k]  with some of the loops missing. Work is 2 per
point; the two gradients cost the same again, each booked on the operand it is for (dgrad on x, wgrad on w).
"""

from __future__ import annotations

from meshwright.ir.graph import Type
from meshwright.ir.rules.base import Dims, Engine, Factor, Law, Role, Rule, Save, Signature, Work, rule


def leading(rank: int) -> tuple[str, ...]:
    """Names for the leading loops of a tensor: they are the model's batch and sequence, but an operator cannot know."""
    return tuple(f"d{index}" for index in range(rank))


def product_work(factors: tuple[str, ...], left: int, right: int) -> tuple[Work, ...]:
    return (Work(2, factors), Work(2, factors, grad_of=left), Work(2, factors, grad_of=right))


@rule("linear")
def linear(signature: Signature) -> Rule:
    """x[…, k] · w[n, k] (+ bias[n]) -> [..., n]. With `transposed` the weight is stored as [k, n] (GPT-2's Conv1D)."""
    x, w = signature.operands[:2]
    transposed = bool(signature.attr("transposed", False))
    n, k = w.shape[::-1] if transposed else w.shape
    if x.shape[-1] != k:
        raise signature.error(f"{x.shape[-1]} features meet a weight of {k}", "make the inner dimensions equal")
    lead = leading(len(x.shape) - 1)
    biased = len(signature.operands) > 2
    weight: Dims = (("k",), ("n",)) if transposed else (("n",), ("k",))
    lead_dims = tuple((name,) for name in lead)
    return Rule(
        factors=(
            *(Factor(name, size) for name, size in zip(lead, x.shape, strict=False)),
            Factor("k", k, Role.SUM),
            Factor("n", n),
        ),
        operands=((*lead_dims, ("k",)), weight, *(((("n",),),) if biased else ())),
        results=((*lead_dims, ("n",)),),
        types=(Type((*x.shape[:-1], n), x.dtype),),
        laws=(Law.LINEAR, Law.LINEAR, *((Law.ADDITIVE,) if biased else ())),
        engine=Engine.MATMUL,
        work=product_work((*lead, "n", "k"), 0, 1),
        saves=(Save("operand", 0, needs=(1,)), Save("operand", 1, needs=(0,))),
    )
