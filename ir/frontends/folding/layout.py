"""Strides: the location of a tensor's elements.

The planner has no memory to look at, but whether a reshape copies, and with it how many bytes are kept for the backward
pass, depends on strides. They are followed through the graph by the rules that torch has for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.graph.graph import Op


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def view_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of the tensor seen as `target`, or None if that needs a copy. (Torch's rule: group source dims that are
    contiguous.)"""
    if 0 in shape:
        return contiguous(target)
    chunks: list[tuple[int, int]] = []  # (elements, innermost stride), outermost first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if chunks and chunks[-1][1] == stride * extent:
            chunks[-1] = (chunks[-1][0] * extent, stride)
        else:
            chunks.append((extent, stride))
    result: list[int] = []
    left, inner = chunks.pop() if chunks else (1, 1)
    step = inner
    for extent in reversed(target):
        if extent != 1 and left == 1 and chunks:
            left, step = chunks.pop()
        if left % extent:
            return None
        result.append(step)
        step, left = step * extent, left // extent
    return tuple(reversed(result))


def taken_strides(op: Op, shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Strides of the part or rearrangement of a tensor that a view operator takes."""
    if op.kind == "permute":
        return tuple(strides[dim] for dim in op.integers("perm"))
    if op.kind == "select":
        return tuple(stride for dim, stride in enumerate(strides) if dim != op.integer("dim"))
    if op.kind == "slice":
        step = op.integer("step")
        return tuple(stride * step if dim == op.integer("dim") else stride for dim, stride in enumerate(strides))
    if op.kind == "expand":
        extra = len(target) - len(shape)
        grown = zip(shape, target[extra:], strides, strict=True)
        return (*(0 for _ in range(extra)), *(0 if before != after else stride for before, after, stride in grown))
    return tuple(strides)


def broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    """The shape of two operands that are broadcast, aligned from the right."""
    rank = max(len(left), len(right))
    a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (left, right))
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def ordered(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Gap-free strides in the order of given ones, which is how torch lays out results; None if dims are broadcast."""
    if any(stride == 0 and extent > 1 for stride, extent in zip(strides, shape, strict=True)):
        return None
    result, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        result[dim] = step
        step *= max(shape[dim], 1)
    return tuple(result)
