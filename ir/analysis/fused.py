"""Fused products: those that yield several values side by side, which are separated afterwards (q|k|v, gate|up)."""

from __future__ import annotations

from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.sharding.layouts import Layout, Sections

PRODUCTS = ("linear", "grouped_linear")
GROUPED = "grouped_linear"
"""The product of stacked experts, which their module cuts itself."""


def cut_apart(graph: Graph, op: Op, layout: Layout) -> bool:
    """Whether an operator is a product of which only these sections are read, each by itself: not in the module that
    makes it, or, of experts, in halves."""
    if op.kind not in PRODUCTS or not isinstance(layout, Sections):
        return False
    readers = [graph.ops[index] for index, _ in graph.readers.get(op.results[0], ())]
    if op.results[0] in graph.outputs or any(one.kind != "split" for one in readers):
        return False
    if op.kind == GROUPED and len(set(layout.sizes)) > 1:
        return False
    apart = op.kind == GROUPED or all(one.module != op.module for one in readers)
    return apart and all(one.integers("sizes") == layout.sizes for one in readers)
