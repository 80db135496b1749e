"""Constants: tensors made from attributes alone, and one-hot vectors.

They split along every dimension for free, since a shard knows which indices it holds.
"""

from __future__ import annotations

from math import ceil

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Factor, Law, Rule, Signature
from meshwright.ir.rules.dims import Shape, declare, loops
from meshwright.ir.rules.registry import rule


def constant(shape: Shape, dtype: str) -> Rule:
    return Rule(
        factors=declare([(loops(shape), shape)]),
        operands=(),
        results=(loops(shape),),
        types=(Type(shape, dtype),),
        laws=(),
    )


@rule("full", "zeros", "ones")
def full(signature: Signature) -> Rule:
    """A `shape` filled with `value` (0 or 1 for zeros and ones) of `dtype`."""
    return constant(signature.integers("shape"), str(signature.attr("dtype", "f32")))


@rule("constant")
def table(signature: Signature) -> Rule:
    """A table that depends on no parameter and no input (RoPE angles, position buckets), of `shape` and `dtype`.

    `law` names what it holds; a shard computes its part."""
    return constant(signature.integers("shape"), str(signature.attr("dtype", "f32")))


@rule("arange")
def arange(signature: Signature) -> Rule:
    """`start`, `start` + `step`, … below `end`."""
    start, end, step = (_number(signature, key, default) for key, default in (("start", 0), ("end", 0), ("step", 1)))
    if not step:
        raise signature.error("step 0", "give a step that gets to the end")
    return constant((max(0, ceil((end - start) / step)),), str(signature.attr("dtype", "i64")))


def _number(signature: Signature, key: str, default: int) -> float:
    value = signature.attr(key, default)
    if not isinstance(value, (int, float)):
        raise signature.error(f"attribute {key} is {value!r}", "give a number")
    return value


@rule("one_hot")
def one_hot(signature: Signature) -> Rule:
    """A last dimension of `num_classes`, 1 where the index is (i64, or `dtype`)."""
    index, classes = signature.operands[0], signature.integer("num_classes")
    lead = loops(index.shape)
    return Rule(
        factors=(*declare([(lead, index.shape)]), Factor("v", classes)),
        operands=(lead,),
        results=((*lead, ("v",)),),
        types=(Type((*index.shape, classes), str(signature.attr("dtype", "i64"))),),
        laws=(Law.INDEX,),
    )
