"""Splits that are traced as slices: slices that tile the result of a product.

Models cut a fused projection (q|k|v) by `chunk`, by `split`, or by one slice after another; these say the same. A slice
needs its dimension whole, a split lets it be sharded section by section, as tensor parallelism does. In and out: the
operators of a graph in order. Slices of other values stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.ir.graph.graph import Op, Type

_PRODUCTS = ("linear", "grouped_linear")


def joined(ops: Sequence[Op], types: Mapping[str, Type]) -> tuple[Op, ...]:
    """The operators with every set of slices that tiles a product replaced by one split, where the first one stood."""
    products = {value for op in ops if op.kind in _PRODUCTS for value in op.results}
    found: dict[tuple[str, object, bool], list[Op]] = {}
    for op in ops:
        if op.kind == "slice" and op.operands[0] in products and op.attr("step", 1) == 1:
            found.setdefault((op.operands[0], op.attr("dim"), op.no_grad), []).append(op)
    splits: dict[str, Op] = {}
    gone: set[str] = set()
    for (value, dim, _), slices in found.items():
        assert isinstance(dim, int)
        ordered = sorted(slices, key=lambda op: _bounds(op)[0])
        if len(ordered) > 1 and _tile(ordered, types[value].shape[dim]):
            sizes = tuple(types[op.name].shape[dim] for op in ordered)
            results = tuple(op.name for op in ordered)
            attrs = (("dim", dim), ("sizes", sizes))
            splits[slices[0].name] = replace(slices[0], kind="split", results=results, attrs=attrs)
            gone.update(op.name for op in slices[1:])
    return tuple(splits.get(op.name, op) for op in ops if op.name not in gone)


def _bounds(op: Op) -> tuple[int, int]:
    start, end = op.attr("start", 0), op.attr("end")
    assert isinstance(start, int)
    assert isinstance(end, int)
    return start, end


def _tile(ordered: Sequence[Op], extent: int) -> bool:
    """Whether each slice begins where the one before it ends, from 0 to the extent."""
    starts, ends = zip(*map(_bounds, ordered), strict=True)
    return starts == (0, *ends[:-1]) and ends[-1] == extent
