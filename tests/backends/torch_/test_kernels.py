"""What one device computes on its shards: on small numbers, by hand, and in parts that together are the whole."""

from __future__ import annotations

from math import log
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import EAGER
from meshwright.backends.torch_.verify.interpreted.kernels import KERNELS
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import LocalCall

SQUARE = [[1.0, 2.0], [3.0, 4.0]]
FOUR = [[[1.0], [2.0], [3.0], [4.0]]]

Spans = dict[str, tuple[tuple[int, int], ...]]


def tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(numpy.array(value))


def ran(kind: str, operands: Any, attrs: dict[str, Any], made: Type, spans: Spans, sizes: dict[str, int]) -> Tensor:
    call = LocalCall(kind, tuple(map(tensor, operands)), attrs, (made,), spans, sizes)
    (found,) = TorchKernels().run(call)
    return found


CASES: list[tuple[str, Any, dict[str, Any], Type, Spans, dict[str, int], Any]] = [
    # rows 2 and 3 of four are here; what others hold counts for nothing
    ("gather", ([[5.0, 6.0]], [[3, 0, 2]]), {"dim": 1}, Type((1, 3), "f64"), {"v": ((2, 4),)}, {"v": 4}, [[6.0, 0, 5]]),
    ("index_select", ([[[5.0], [6.0]]], [3, 0, 2]), {"dim": 1}, Type((1, 3, 1), "f64"), {"v": ((2, 4),)}, {"v": 4},
     [[[6.0], [0.0], [5.0]]]),
    ("index_select", ([[[5.0, 6.0]]], [0, 3]), {"dim": -1}, Type((1, 1, 2), "f64"), {"v": ((2, 4),)}, {"v": 4},
     [[[0.0, 6.0]]]),
    # two runs, as in a zigzag: positions 0 and 3
    ("gather", ([[5.0, 6.0]], [[3, 0, 2]]), {"dim": 1}, Type((1, 3), "f64"), {"v": ((0, 1), (3, 4))}, {"v": 4},
     [[6.0, 5.0, 0.0]]),
    ("scatter", ([5.0, 6.0], [3, 0], [7.0, 8.0]), {"dim": 0}, Type((2,), "f64"), {"v": ((2, 4),)}, {"v": 4},
     [5.0, 7.0]),
    ("scatter", ([5.0, 6.0], [3, 0]), {"dim": 0, "scalar": 9.0}, Type((2,), "f64"), {"v": ((2, 4),)}, {"v": 4},
     [5.0, 9.0]),
    ("scatter_add", ([5.0, 6.0], [3, 0, 3], [7.0, 8.0, 1.0]), {"dim": 0}, Type((2,), "f64"), {"v": ((2, 4),)}, {"v": 4},
     [5.0, 14.0]),
    ("embedding", (SQUARE, [3, 0, 2]), {}, Type((3, 2), "f64"), {"v": ((2, 4),)}, {"v": 4},
     [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]),
    ("one_hot", ([3, 0],), {"num_classes": 4}, Type((2, 2), "i64"), {"v": ((2, 4),)}, {"v": 4}, [[0, 1], [0, 0]]),
    ("one_hot", ([3, 0],), {"num_classes": 4}, Type((2, 2), "bf16"), {"v": ((2, 4),)}, {"v": 4}, [[0.0, 1.0], [0, 0]]),
    # columns 1 to 2 of rows 2 to 3
    ("tril", (SQUARE,), {}, Type((2, 2), "f64"), {"d0": ((1, 3),), "d1": ((2, 4),)}, {}, [[0.0, 0.0], [3.0, 0.0]]),
    ("tril", (SQUARE,), {"diagonal": 1}, Type((2, 2), "f64"), {"d0": ((1, 3),), "d1": ((2, 4),)}, {},
     [[1.0, 0.0], [3.0, 4.0]]),
    ("triu", ([SQUARE],), {}, Type((1, 2, 2), "f64"), {"d1": ((2, 4),), "d2": ((1, 3),)}, {}, [[[0.0, 2.0], [0, 0]]]),
    ("triu", (SQUARE,), {"diagonal": -1}, Type((2, 2), "f64"), {"d0": ((2, 4),), "d1": ((1, 3),)}, {},
     [[1.0, 2.0], [0.0, 4.0]]),
    ("tril", ([[5.0]],), {}, Type((1, 1), "f64"), {}, {}, [[5.0]]),
    # a part of the sum, by the count of all: 3 * 4
    ("mean", (SQUARE,), {}, Type((), "f64"), {}, {"d0": 3, "d1": 4}, 10 / 12),
    ("mean", (SQUARE,), {"dim": -1}, Type((2,), "f64"), {}, {"d0": 3, "d1": 4}, [3 / 4, 7 / 4]),
    ("mean", (SQUARE,), {"dim": (0,), "keepdim": True}, Type((1, 2), "f64"), {}, {"d0": 3, "d1": 4}, [[4 / 3, 2.0]]),
    ("mean", ([[1.0], [2.0]],), {"dim": 1}, Type((2,), "f64"), {}, {"d0": 3}, [1.0, 2.0]),
    ("batch_moments", ([[[1.0, 2.0]], [[3.0, 4.0]]],), {}, Type((2, 1), "f64"), {}, {"b": 4, "c": 1, "m": 2, "d2": 2},
     [[10 / 8], [30 / 8]]),
    # losses: of what is here, by the count of all
    ("mse_loss", ([1.0, 5.0], [0.0, 2.0]), {}, Type((), "f64"), {}, {"d0": 2, "d1": 4}, 10 / 8),
    ("mse_loss", ([1.0, 5.0], [0.0, 2.0]), {"reduction": "sum"}, Type((), "f64"), {}, {"d0": 4}, 10.0),
    ("l1_loss", ([1.0, 5.0], [0.0, 2.0]), {"reduction": "none"}, Type((2,), "f64"), {}, {"d0": 4}, [1.0, 3.0]),
    *(
        ("nll_loss", ([[-1.0, -2.0]] * 4, [3, 0, 2, ignored]), {**attrs, **more}, Type((), "f64"), {"v": ((2, 4),)},
         {"v": 4}, expected)
        for ignored, more in ((-100, {}), (3, {"ignore_index": 3}))
        for attrs, expected in (
            ({}, (3 / 3, 1 / 2)), ({"reduction": "sum"}, (3.0, 1.0)),
            ({"reduction": "none"}, ([2.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0])),
        )
        for expected in [expected[ignored == 3]]
    ),
    # made out of nothing, of floats in fp64
    ("arange", (), {"end": 8}, Type((2,), "i64"), {"d0": ((2, 4),)}, {"d0": 8}, [2, 3]),
    ("arange", (), {"start": 5, "step": 3, "end": 17}, Type((2,), "f32"), {"d0": ((2, 4),)}, {"d0": 4}, [11.0, 14.0]),
    ("arange", (), {"end": 3}, Type((3,), "i64"), {}, {}, [0, 1, 2]),
    ("full", (), {"value": 7, "shape": (8,)}, Type((2,), "f32"), {}, {}, [7.0, 7.0]),
    ("zeros", (), {"shape": (8,)}, Type((1,), "i64"), {}, {}, [0]),
    ("ones", (), {"shape": (8,)}, Type((1,), "bool"), {}, {}, [True]),
    ("full_like", ([1, 2],), {"value": 7}, Type((2,), "f32"), {}, {}, [7.0, 7.0]),
    ("zeros_like", ([1.0],), {}, Type((1,), "i64"), {}, {}, [0]),
    ("ones_like", ([5.0],), {}, Type((1,), "f32"), {}, {}, [1.0]),
    ("cast", ([2.5],), {"dtype": "i64"}, Type((1,), "i64"), {}, {}, [2]),
    ("cast", ([0.1],), {"dtype": "bf16"}, Type((1,), "bf16"), {}, {}, [0.1]),
    ("sum", ([True, True],), {"dim": 0, "dtype": "f32"}, Type((), "f32"), {}, {}, 2.0),
    # shapes are those of shards
    ("view", (SQUARE,), {"shape": (8,)}, Type((4,), "f64"), {}, {}, [1.0, 2.0, 3.0, 4.0]),
    ("expand", ([[1.0]],), {"shape": (4, 4)}, Type((2, 1), "f64"), {}, {}, [[1.0], [1.0]]),
    ("slice", (FOUR,), {"dim": 1, "end": 2}, Type((1, 2, 1), "f64"), {}, {}, [[[1.0], [2.0]]]),
    ("slice", (SQUARE,), {"dim": 1, "start": 6, "end": 8}, Type((2, 2), "f64"), {}, {}, SQUARE),
    # one group of two, of as many values as are here
    ("group_norm", ([[[0.0], [2.0]]],), {"groups": 2, "eps": 0.0}, Type((1, 2, 1), "f64"), {"g": ((1, 2),)}, {"g": 2},
     [[[-1.0], [1.0]]]),
    ("conv1d", ([[[1.0, 2.0], [3.0, 4.0]]], [[[1.0]], [[10.0]]]), {"groups": 4}, Type((1, 2, 2), "f64"),
     {"g": ((2, 4),)}, {"g": 4}, [[[1.0, 2.0], [30.0, 40.0]]]),
    ("conv1d", ([[[1.0, 2.0], [3.0, 4.0]]], [[[1.0]], [[10.0]]]), {"groups": 2}, Type((1, 2, 2), "f64"), {}, {},
     [[[1.0, 2.0], [30.0, 40.0]]]),
    # equal scores of the keys 1, 2 and 4 of six: queries stand two before keys, so that the third of four sees all
    ("attention", ([[[[0.0]]] ], [[[[0.0], [0.0], [0.0]]]], [[[[1.0], [2.0], [6.0]]]]), {"mask": "causal"},
     Type((1, 1, 1, 1), "f64"), {"sq": ((2, 3),), "sk": ((1, 3), (4, 5))}, {"sq": 4, "sk": 6}, [[[[3.0]]]]),
    ("attention", ([[[[0.0]]]], [[[[0.0], [0.0], [0.0]]]], [[[[1.0], [2.0], [6.0]]]]), {"mask": "causal"},
     Type((1, 1, 1, 1), "f64"), {"sq": ((1, 2),), "sk": ((1, 3), (4, 5))}, {"sq": 4, "sk": 6}, [[[[1.5]]]]),
    # scores 0 and log 3: by a scale of 2, and with a bias of half of it
    ("attention", ([[[[1.0]]]], [[[[0.0], [log(3) / 2]]]], [[[[0.0], [4.0]]]]), {"scale": 2.0},
     Type((1, 1, 1, 1), "f64"), {"sq": ((0, 1),), "sk": ((0, 2),)}, {"sq": 1, "sk": 2}, [[[[3.0]]]]),
    ("attention", ([[[[1.0]]]], [[[[0.0], [log(3) / 2]]]], [[[[0.0], [4.0]]]], [[[[0.0, log(3) / 2]]]]), {},
     Type((1, 1, 1, 1), "f64"), {"sq": ((0, 1),), "sk": ((0, 2),)}, {"sq": 1, "sk": 2}, [[[[3.0]]]]),
]  # fmt: skip


def test_parts_by_hand() -> None:
    """All in one test: each takes no time, and asks another line."""
    for kind, operands, attrs, made, spans, sizes, expected in CASES:
        found = ran(kind, operands, attrs, made, spans, sizes)
        torch.testing.assert_close(
            found, tensor(expected), rtol=1e-9, atol=1e-12, msg=lambda said, of=(kind, attrs, spans): f"{of}: {said}"
        )


def test_a_table_is_cut_where_it_stands() -> None:
    """Of eight rows of four, rows 2 to 3 and 6, and the last two columns; floats in fp64."""
    attrs = {"law": "rope", "shape": (8, 4), "dtype": "f32"}
    (whole,) = EAGER["constant"]((), attrs)
    spans: Spans = {"d0": ((2, 4), (6, 7)), "d1": ((2, 4),)}
    found = ran("constant", (), attrs, Type((3, 2), "f32"), spans, {"d0": 8, "d1": 4})
    assert found.tolist() == whole[[2, 3, 6]][:, 2:].tolist()
    assert found.dtype is torch.float64


def test_a_row_that_pads_has_no_gradient_wherever_it_is() -> None:
    """Rows are counted among all: 3 is the second of two that are here."""
    table = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    for padding, expected in ((3, [1.0, 0.0]), (1, [1.0, 2.0]), (None, [1.0, 2.0])):
        attrs = {} if padding is None else {"padding_idx": padding}
        found = ran("embedding", (table, [3, 2, 3, 1]), attrs, Type((4, 1), "f64"), {"v": ((2, 4),)}, {"v": 4})
        (grad,) = torch.autograd.grad(found.sum(), table)
        assert grad.flatten().tolist() == expected, padding


@pytest.mark.parametrize("experts", [(0, 2), (2, 4)])
def test_rows_of_experts_that_are_here(experts: tuple[int, int]) -> None:
    """Four experts, of which two are here, with room for two rows each."""
    x = torch.arange(1.0, 9.0, dtype=torch.float64).reshape(4, 2)
    idx, weights = torch.tensor([[0, 2], [0, 3], [0, 1], [2, 1]]), torch.full((4, 2), 0.5, dtype=torch.float64)
    attrs = {"num_experts": 4, "capacity": 2}
    whole = EAGER["dispatch"]((x, idx), attrs)[0]
    spans, sizes = {"e": (experts,)}, {"t": 4, "e": 4}
    rows = ran("dispatch", (x, idx), attrs, Type((2, 2, 2), "f64"), spans, sizes)
    assert rows.tolist() == whole[slice(*experts)].tolist()
    here = [[experts[0] <= one < experts[1] for one in choices] for choices in idx.tolist()]
    assert whole[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]  # the third token finds no room at the first expert
    found = ran("combine", (rows, idx, weights), attrs, Type((4, 2), "f64"), spans, sizes)
    expected = [
        [0.5 * number * sum(kept and at_home for kept, at_home in zip(room, home, strict=True)) for number in token]
        for token, home, room in zip(x.tolist(), here, [(1, 1), (1, 1), (0, 1), (1, 1)], strict=True)
    ]
    assert found.tolist() == expected


def test_every_kind_has_a_kernel() -> None:
    assert KERNELS.keys() == EAGER.keys()
