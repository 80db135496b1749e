"""Which views of a graph copy: strides are followed once more, after operators were replaced."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.frontends.folding.layout import contiguous, ordered, taken_strides, view_strides
from meshwright.ir.graph.graph import Graph, Op

VIEWS = ("view", "permute", "select", "slice", "expand", "split")


def relaid(graph: Graph) -> Graph:
    """The same graph, in which a view is a copy exactly where strides do not allow one."""
    strides = {value: contiguous(type_.shape) for value, type_ in graph.types.items()}
    ops: list[Op] = []
    for op in graph.ops:
        made = op
        if op.kind == "view":
            source, target = op.operands[0], graph.types[op.name].shape
            found = view_strides(graph.types[source].shape, strides[source], target)
            attrs = tuple(pair for pair in op.attrs if pair[0] != "copy")
            made = replace(op, attrs=attrs if found else (*attrs, ("copy", True)), alias=0 if found else None)
            strides[op.name] = found or contiguous(target)
        else:
            for value in op.results:
                strides[value] = _laid_out(graph, op, value, strides)
        ops.append(made)
    return replace(graph, ops=tuple(ops))


def _laid_out(graph: Graph, op: Op, value: str, strides: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Views lie where their operand does, elementwise results like their first operand of the same shape."""
    shape = graph.types[value].shape
    if op.alias is not None and op.kind in VIEWS:
        taken = op.operands[op.alias]
        return taken_strides(op, graph.types[taken].shape, strides[taken], shape)
    if op.kind in ("linear", "einsum", "grouped_linear"):
        return contiguous(shape)
    for operand in op.operands:
        if graph.types[operand].shape == shape and (like := ordered(shape, strides[operand])):
            return like
    return contiguous(shape)
