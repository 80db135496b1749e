"""Fused products: those that yield several values side by side, which are cut apart afterwards (q|k|v, gate|up)."""

from __future__ import annotations

from meshwright.ir.graph import Graph, Op
from meshwright.ir.placement import Layout, Sections

PRODUCTS = ("linear",)


def cut_apart(graph: Graph, op: Op, layout: Layout) -> bool:
    """Whether an operator is a product of which nothing is read but these sections, each by itself, and not in the
    module that makes it."""
    if op.kind not in PRODUCTS or not isinstance(layout, Sections):
        return False
    readers = [graph.ops[index] for index, _ in graph.readers.get(op.results[0], ())]
    apart = all(one.kind == "split" and one.integers("sizes") == layout.sizes for one in readers)
    return apart and op.results[0] not in graph.outputs and all(one.module != op.module for one in readers)
