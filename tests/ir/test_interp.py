"""How the interpreter cuts tensors and puts them together, on small arrays of numpy by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright.ir.errors import CopiesDiffer
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import Kernels, collect, shard, take, untake
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement

Array = NDArray[np.float64]


class Numpy:
    """As much of a tensor library as cutting needs."""

    def narrow(self, tensor: Array, dim: int, start: int, stop: int) -> Array:
        return np.take(tensor, range(start, stop), axis=dim)

    def concat(self, tensors: Sequence[Array], dim: int) -> Array:
        return np.concatenate(tensors, axis=dim)

    def add(self, one: Array, other: Array) -> Array:
        return one + other

    def maximum(self, one: Array, other: Array) -> Array:
        return np.maximum(one, other)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        assert dtype == "f64"
        return np.zeros(shape)

    def same(self, one: Array, other: Array) -> bool:
        return np.array_equal(one, other)

    def extent(self, tensor: Array, dim: int) -> int:
        return int(tensor.shape[dim])


KERNELS = cast(Kernels, Numpy())
MESH = Mesh.parse("dp=2 tp=2")


def lists(shards: Sequence[Any]) -> list[Any]:
    return [np.asarray(one).astype(int).tolist() for one in shards]


def test_ranges_are_taken_in_order_and_put_back() -> None:
    row, both = np.arange(6.0), np.arange(6.0).reshape(2, 3)
    assert lists([take(KERNELS, row, 0, [(4, 6), (0, 1)]), take(KERNELS, both, 1, [(1, 3)])]) == [
        [4, 5, 0], [[1, 2], [4, 5]],
    ]  # fmt: skip
    assert take(KERNELS, row, 0, []).shape == (0,)
    parts = [np.array([4.0, 5, 0]), np.array([1.0, 2, 3])]
    assert lists([untake(KERNELS, parts, 0, [[(4, 6), (0, 1)], [(1, 4)]])]) == [[0, 1, 2, 3, 4, 5]]
    assert lists([untake(KERNELS, parts[:1], 0, [[(1, 3), (0, 1)]])]) == [[0, 4, 5]]


CUT: dict[str, list[list[int]]] = {
    "[dp.tp]": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "[tp.dp]": [[0, 1], [4, 5], [2, 3], [6, 7]],
    "[tp]": [[0, 1, 2, 3], [4, 5, 6, 7]] * 2,
    "[dp:zigzag]": [[0, 1, 6, 7]] * 2 + [[2, 3, 4, 5]] * 2,
    "[dp:uneven(5,3)]": [[0, 1, 2, 3, 4]] * 2 + [[5, 6, 7]] * 2,
    "[dp]+sum(tp)": [[0, 1, 2, 3], [0, 0, 0, 0], [4, 5, 6, 7], [0, 0, 0, 0]],
    "[-]+sum(dp)": [[0, 1, 2, 3, 4, 5, 6, 7]] * 2 + [[0] * 8] * 2,
    "[dp]+max(tp)": [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2,
}
"""What the four ranks, dp-major, have of eight numbers. Of a sum the first rank of its axis has all; of a maximum
everybody."""


def test_shards_by_hand_and_back() -> None:
    whole = np.arange(8.0)
    for text, expected in CUT.items():
        placement = Placement.parse(text)
        shards = shard(KERNELS, whole, Type((8,), "f64"), placement, MESH)
        assert lists(shards) == expected, text
        assert lists([collect(KERNELS, shards, placement, MESH, "here")]) == [[0, 1, 2, 3, 4, 5, 6, 7]], text


def test_partial_values_are_reduced_and_copies_compared() -> None:
    def collected(text: str, *shards: float) -> list[int]:
        held = [np.array([one]) for one in shards]
        (found,) = lists([collect(KERNELS, held, Placement.parse(text), MESH, "here")])
        return cast(list[int], found)

    assert collected("[-]+sum(dp)", 1, 1, 10, 10) == [11]
    assert collected("[-]+sum(tp)", 1, 10, 1, 10) == [11]
    assert collected("[-]+max(dp)", 10, 10, 1, 1) == [10]
    assert collected("[tp]+sum(dp)", 1, 2, 10, 20) == [11, 22]
    for text, shards, rank in (("[-]", (1, 1, 1, 2), 3), ("[dp]", (1, 2, 3, 3), 1), ("[-]+sum(dp)", (1, 2, 1, 1), 1)):
        with pytest.raises(CopiesDiffer) as refusal:
            collected(text, *shards)
        assert refusal.value.place == "here"
        assert refusal.value.cause == f"ranks 0 and {rank} hold different copies under {text}"
