"""What people recompute in the backward pass, by name.

none           nothing: every operator keeps what its derivative reads
full           the whole body, from its inputs (Chen et al. 2016)
selective      the core of attention: fused attention, or where it is written out all that handles scores, which are
               quadratic in the sequence (Korthikanti et al. 2022, section 5)
selective_op   everything but attention and every other matrix product, the first kept (torchtitan's selective
               per-operator policy; its products with a bias are another operator, and are computed again)
"""

from __future__ import annotations

from meshwright.ir.factors import Loops, stem
from meshwright.ir.graph import Graph, Op
from meshwright.ir.names.degrees import SEQUENCE

_FUSED = ("attention",)


def recomputed(graph: Graph, found: Loops, kind: str) -> tuple[str, ...]:
    """The values of a body that are computed again."""
    if kind == "none":
        return ()
    if kind == "selective":
        return tuple(value for op in graph.ops if _in_core(op, found) for value in op.results)
    kept = _kept(graph) if kind == "selective_op" else frozenset[str]()
    inputs = tuple(item.value for item in graph.inputs)
    return (*inputs, *(value for op in graph.ops if op.name not in kept for value in op.results))


def _in_core(op: Op, found: Loops) -> bool:
    """Whether an operator is attention, or reads or makes scores: values with the sequence in two dimensions."""
    return op.kind in _FUSED or any(
        sum(stem(name) == SEQUENCE for names in found.dims[value] for name in names) > 1
        for value in (*op.operands, *op.results)
    )


def _kept(graph: Graph) -> frozenset[str]:
    """Attention, and the first, third, fifth … product without a bias."""
    products = [op.name for op in graph.ops if op.kind == "linear" and len(op.operands) == 2]
    return frozenset((*products[::2], *(op.name for op in graph.ops if op.kind in _FUSED)))
