"""Strides are torch's own, for tensors in order, transposed, with gaps, spread, empty and with extents of 1."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.ir.frontends.folding.layout import broadcast, contiguous, ordered, taken_strides, view_strides
from meshwright.ir.graph.graph import Op


def strided() -> list[Tensor]:
    whole = [
        torch.empty(shape, device="meta") for shape in ((), (6,), (4, 6), (2, 3, 4), (1, 3, 1, 4), (2, 1, 3), (0, 3))
    ]
    turned = [one.permute(order) for one in whole for order in permutations(range(one.ndim))]
    wide = torch.empty(2, 6, 8, device="meta")
    parts = [wide[:, ::2], wide[:, 1:4], wide[..., ::2], wide[:, :, 3], wide[0, 2:], wide[:, :1], wide[1:, :, ::3]]
    spread = [
        wide[:, :1].expand(2, 6, 8),
        torch.empty(3, device="meta").expand(4, 3),
        torch.empty(2, 1, 3, device="meta").expand(2, 5, 3),
    ]
    return [*turned, *parts, *(part.transpose(0, 1) for part in parts), *spread, *(one.mT for one in spread)]


def shapes_of(count: int) -> list[tuple[int, ...]]:
    """Shapes of so many elements: flat, and of two or three dimensions, also of extents of 1."""
    if count == 0:
        return [(0,), (0, 4), (5, 0), (2, 0, 3)]
    pairs = [(one, count // one) for one in range(1, count + 1) if count % one == 0]
    triples = [(a, b, c // b) for a, c in pairs for b in range(1, c + 1) if c % b == 0]
    return [(count,), *pairs, *triples, (1, count, 1), *((a, 1, b, 1) for a, b in pairs)]


@pytest.mark.parametrize("tensor", strided(), ids=lambda one: f"{tuple(one.shape)} {one.stride()}")
def test_a_view_has_the_strides_of_torch_or_needs_a_copy(tensor: Tensor) -> None:
    for shape in shapes_of(tensor.numel()):
        try:
            wanted: tuple[int, ...] | None = tensor.view(shape).stride()
        except (RuntimeError, ValueError):
            wanted = None
        found = view_strides(tensor.shape, tensor.stride(), shape)
        assert (found is None) == (wanted is None), shape
        if found is not None and wanted is not None:
            told = [(one, other) for one, other, extent in zip(found, wanted, shape, strict=True) if extent > 1]
            assert all(one == other for one, other in told), shape


@pytest.mark.parametrize("tensor", strided(), ids=lambda one: f"{tuple(one.shape)} {one.stride()}")
def test_a_result_lies_in_the_order_of_its_operand(tensor: Tensor) -> None:
    """Without its gaps; and row by row where the operand is spread over a dimension."""
    found = ordered(tensor.shape, tensor.stride())
    spread = any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True))
    assert (found is None) == spread
    if found is not None:
        wanted = torch.empty_like(tensor).stride() if tensor.numel() else found
        told = zip(found, wanted, tensor.shape, strict=True)
        assert all(one == other for one, other, extent in told if extent > 1)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (2, 1, 4), (0, 3), (3, 0, 2), (2, 3, 0)])
def test_row_major_strides(shape: tuple[int, ...]) -> None:
    assert contiguous(shape) == torch.empty(shape, device="meta").stride()


WIDE = torch.empty(4, 1, 6, device="meta").transpose(0, 2)
TAKEN: list[tuple[str, dict[str, Any], Tensor]] = [
    ("permute", {"perm": (2, 0, 1)}, WIDE.permute(2, 0, 1)),
    *(("select", {"dim": dim, "index": 0}, WIDE.select(dim, 0)) for dim in range(3)),
    ("slice", {"dim": 0, "start": 1, "end": 6, "step": 2}, WIDE[1:6:2]),
    ("slice", {"dim": 2, "start": 0, "end": 3, "step": 3}, WIDE[..., 0:3:3]),
    ("expand", {"shape": (6, 5, 4)}, WIDE.expand(6, 5, 4)),
    ("expand", {"shape": (2, 3, 6, 1, 4)}, WIDE.expand(2, 3, 6, 1, 4)),
    ("split", {"dim": 0, "sizes": (2, 4)}, WIDE.split((2, 4))[0]),
]


@pytest.mark.parametrize(("kind", "attrs", "result"), TAKEN, ids=lambda one: str(one)[:40])
def test_what_a_view_operator_takes_has_the_strides_of_torch(kind: str, attrs: dict[str, Any], result: Tensor) -> None:
    op = Op(kind, ("x",), ("y",), tuple(attrs.items()))
    assert taken_strides(op, tuple(WIDE.shape), WIDE.stride(), tuple(result.shape)) == result.stride()


@pytest.mark.parametrize(
    ("left", "right"), [((), ()), ((3,), ()), ((), (2, 3)), ((2, 1), (3,)), ((1, 4), (5, 1, 1)), ((2, 3), (2, 3))]
)
def test_operands_are_broadcast_from_the_right(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert broadcast(left, right) == broadcast(right, left) == tuple(torch.broadcast_shapes(left, right))
