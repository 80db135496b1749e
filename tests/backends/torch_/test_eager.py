"""What operators compute, on numbers small enough to be worked out by hand, and what they do where nothing is said."""

from __future__ import annotations

from math import e, log, pi, sqrt, tanh
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F

from meshwright.backends.torch_.verify.interpreted.eager import EAGER
from meshwright.backends.torch_.verify.interpreted.layers import position_mask, slots

ROW = [-2.0, 0.0, 0.5, 3.0]
SQUARE = [[1.0, 2.0], [3.0, 4.0]]
CUBE = [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    # one operand
    ("elu", ([-log(2), 1.0],), {}, [-0.5, 1.0]),
    ("elu", ([-log(2), 1.0],), {"alpha": 4.0}, [-2.0, 1.0]),
    ("leaky_relu", ([-2.0, 2.0],), {}, [-0.02, 2.0]),
    ("softplus", ([0.0, 30.0],), {}, [log(2), 30.0]),
    ("softplus", ([1.0],), {}, [log(1 + e)]),
    ("softplus", ([0.0, 20.0],), {"beta": 2.0}, [log(2) / 2, 20.0]),
    ("softplus", ([0.5],), {"threshold": 0.2}, [0.5]),
    ("gelu", ([0.0, 9.0],), {}, [0.0, 9.0]),
    ("gelu", ([1.0],), {"approximate": "tanh"}, [0.5 * (1 + tanh(sqrt(2 / pi) * 1.044715))]),
    ("clamp", (ROW,), {"min": -1.0}, [-1.0, 0.0, 0.5, 3.0]),
    ("clamp", (ROW,), {"max": 0.25}, [-2.0, 0.0, 0.25, 0.25]),
    ("dropout", (ROW,), {}, ROW),
    ("dropout", (ROW,), {"p": 1.0}, [0.0] * 4),
    ("tril", (SQUARE,), {}, [[1.0, 0.0], [3.0, 4.0]]),
    ("tril", (SQUARE,), {"diagonal": -1}, [[0.0, 0.0], [3.0, 0.0]]),
    ("triu", (SQUARE,), {}, [[1.0, 2.0], [0.0, 4.0]]),
    ("triu", (SQUARE,), {"diagonal": 1}, [[0.0, 2.0], [0.0, 0.0]]),
    ("cast", ([0.0, 2.0],), {"dtype": "bool"}, [False, True]),
    ("zeros_like", (ROW,), {}, [0.0] * 4),
    ("ones_like", (ROW,), {}, [1.0] * 4),
    ("full_like", (ROW,), {"value": 7.0}, [7.0] * 4),
    ("ones_like", (ROW,), {"dtype": "i64"}, [1] * 4),
    # two operands, or one and a number
    ("add", ([1.0], [2.0]), {}, [3.0]),
    ("add", ([1.0], [2.0]), {"alpha": 3}, [7.0]),
    ("add", ([1.0],), {"scalar": 2.0, "alpha": 3}, [7.0]),
    ("sub", ([1.0], [2.0]), {}, [-1.0]),
    ("sub", ([1.0], [2.0]), {"alpha": 3}, [-5.0]),
    ("sub", ([1.0],), {"scalar": 5.0}, [-4.0]),
    ("sub", ([1.0],), {"scalar": 5.0, "reverse": True}, [4.0]),
    ("mul", ([3.0], [4.0]), {}, [12.0]),
    ("div", ([7.0], [2.0]), {}, [3.5]),
    ("div", ([2.0],), {"scalar": 8.0, "reverse": True}, [4.0]),
    ("div", ([-7.0], [2.0]), {"rounding": "floor"}, [-4.0]),
    ("div", ([-7.0],), {"scalar": 2.0, "rounding": "trunc"}, [-3.0]),
    ("pow", ([3.0],), {"scalar": 2}, [9.0]),
    ("pow", ([3.0],), {"scalar": 2, "reverse": True}, [8.0]),
    ("maximum", (ROW,), {"scalar": 0.25}, [0.25, 0.25, 0.5, 3.0]),
    ("minimum", ([1.0, 5.0], [2.0, 4.0]), {}, [1.0, 4.0]),
    ("maximum", ([1.0, 5.0], [2.0, 4.0]), {}, [2.0, 5.0]),
    ("eq", ([1, 2, 3],), {"scalar": 2}, [False, True, False]),
    ("ne", ([1, 2, 3],), {"scalar": 2}, [True, False, True]),
    ("lt", ([1, 2, 3],), {"scalar": 2}, [True, False, False]),
    ("le", ([1, 2, 3],), {"scalar": 2}, [True, True, False]),
    ("gt", ([1, 2, 3],), {"scalar": 2}, [False, False, True]),
    ("ge", ([1, 2, 3],), {"scalar": 2}, [False, True, True]),
    ("bitwise_and", ([6], [3]), {}, [2]),
    ("bitwise_or", ([6], [3]), {}, [7]),
    ("bitwise_xor", ([6], [3]), {}, [5]),
    ("where", ([True, False], [1.0, 2.0], [3.0, 4.0]), {}, [1.0, 4.0]),
    ("where", ([True, False], [1.0, 2.0]), {"scalar": 9.0}, [1.0, 9.0]),
    ("where", ([True, False], [1.0, 2.0]), {"scalar": 9.0, "reverse": True}, [9.0, 2.0]),
    ("where", ([True, False],), {"scalar": 9.0, "other": 8.0}, torch.tensor([9.0, 8.0])),
    ("masked_fill", ([1.0, 2.0], [True, False]), {}, [0.0, 2.0]),
    ("masked_fill", ([1.0, 2.0], [True, False]), {"scalar": 5.0}, [5.0, 2.0]),
    ("masked_fill", ([1.0, 2.0], [True, False], 7.0), {}, [7.0, 2.0]),
    # movement
    ("slice", ([0, 1, 2, 3, 4],), {"dim": 0, "end": 3}, [0, 1, 2]),
    ("slice", ([0, 1, 2, 3, 4],), {"dim": -1, "start": 1, "end": 5, "step": 2}, [1, 3]),
    ("slice", ([[0, 1], [2, 3]],), {"dim": -1, "start": 1, "end": 2}, [[1], [3]]),
    ("pad", ([1.0],), {"pad": (1, 2)}, [0.0, 1.0, 0.0, 0.0]),
    ("pad", ([1.0],), {"pad": (0, 1), "value": 5.0}, [1.0, 5.0]),
    ("scatter", ([0.0, 0.0, 0.0], [2, 0], [5.0, 6.0]), {"dim": 0}, [6.0, 0.0, 5.0]),
    ("scatter", ([0.0, 0.0], [1]), {"dim": 0, "scalar": 4.0}, [0.0, 4.0]),
    ("scatter_add", ([1.0, 1.0], [1, 1], [5.0, 6.0]), {"dim": 0}, [1.0, 12.0]),
    ("gather", (SQUARE, [[1], [0]]), {"dim": 1}, [[2.0], [3.0]]),
    ("index_select", (SQUARE, [1]), {"dim": 1}, [[2.0], [4.0]]),
    ("index_select", (SQUARE, [-2, 1]), {"dim": -1}, SQUARE),
    # reductions
    ("sum", (SQUARE,), {}, 10.0),
    ("sum", (SQUARE,), {"dim": 0}, [4.0, 6.0]),
    ("sum", (SQUARE,), {"dim": 0, "keepdim": True}, [[4.0, 6.0]]),
    ("sum", ([True, True],), {"dim": 0, "dtype": "i32"}, torch.tensor(2, dtype=torch.int32)),
    ("mean", (SQUARE,), {"dim": (0, 1)}, 2.5),
    ("amax", (SQUARE,), {"dim": 1}, [2.0, 4.0]),
    ("amin", (SQUARE,), {"dim": 1}, [1.0, 3.0]),
    ("var", ([1.0, 3.0],), {"dim": 0}, 2.0),
    ("var", ([1.0, 3.0],), {"dim": 0, "correction": 0}, 1.0),
    ("norm", ([3.0, 4.0],), {}, 5.0),
    ("norm", (SQUARE,), {"p": 1, "dim": 0}, [4.0, 6.0]),
    ("norm", ([3.0, 4.0],), {"dim": 0, "keepdim": True}, [5.0]),
    ("prod", (SQUARE,), {}, 24.0),
    ("prod", (SQUARE,), {"dim": 1, "keepdim": True}, [[2.0], [12.0]]),
    ("argmax", (SQUARE,), {"dim": 0}, [1, 1]),
    ("max", (SQUARE,), {"dim": 1}, ([2.0, 4.0], [1, 1])),
    ("softmax", ([0.0, log(3)],), {"dim": 0}, [0.25, 0.75]),
    ("cumsum", ([1, 2, 3],), {"dim": 0, "dtype": "f64"}, [1.0, 3.0, 6.0]),
    ("topk", ([[1.0, 3.0, 2.0]],), {"k": 2}, ([[3.0, 2.0]], [[1, 2]])),
    ("topk", (SQUARE,), {"k": 1, "dim": 0}, ([[3.0, 4.0]], [[1, 1]])),
    # the last of one dimension and of three
    ("topk", ([1.0, 3.0, 2.0],), {"k": 2}, ([3.0, 2.0], [1, 2])),
    ("topk", (CUBE,), {"k": 1}, ([[[2.0], [4.0], [6.0]]], [[[1], [1], [1]]])),
    ("sort", ([3.0, 1.0],), {}, ([1.0, 3.0], [1, 0])),
    ("sort", (CUBE,), {"descending": True}, ([[[2.0, 1.0], [4.0, 3.0], [6.0, 5.0]]], [[[1, 0]] * 3])),
    ("argsort", ([3.0, 1.0],), {}, [1, 0]),
    ("argsort", (CUBE,), {"descending": True}, [[[1, 0]] * 3]),
    ("sort", ([[3.0], [1.0]],), {"dim": 0}, ([[1.0], [3.0]], [[1], [0]])),
    ("sort", ([[3.0, 1.0], [2.0, 9.0]],), {}, ([[1.0, 3.0], [2.0, 9.0]], [[1, 0], [0, 1]])),
    ("sort", ([[3.0, 1.0]],), {"descending": True}, ([[3.0, 1.0]], [[0, 1]])),
    ("argsort", ([[3.0, 1.0], [2.0, 9.0]],), {}, [[1, 0], [0, 1]]),
    ("argsort", ([[3.0], [4.0]],), {"dim": 0, "descending": True}, [[1], [0]]),
    # products
    ("linear", (CUBE, [[1.0, 10.0]]), {}, [[[21.0], [43.0], [65.0]]]),
    ("linear", (CUBE, [[1.0, 10.0]], [0.5]), {}, [[[21.5], [43.5], [65.5]]]),
    ("linear", (CUBE, [[1.0], [10.0]]), {"transposed": True}, [[[21.0], [43.0], [65.0]]]),
    ("linear", (CUBE, [[1.0], [10.0]], [0.5]), {"transposed": True}, [[[21.5], [43.5], [65.5]]]),
    ("grouped_linear", ([[[1.0, 2.0]]], [[[3.0, 4.0], [5.0, 6.0]]]), {}, [[[11.0, 17.0]]]),
    ("grouped_linear", ([[[1.0, 2.0]]], [[[3.0, 4.0], [5.0, 6.0]]]), {"transposed": True}, [[[13.0, 16.0]]]),
    ("grouped_linear", ([[[1.0], [2.0]]], [[[3.0]]], [[0.5]]), {}, [[[3.5], [6.5]]]),
    ("grouped_mm", ([[1.0], [2.0], [3.0]], [[[10.0]], [[100.0]]], [1, 3]), {}, [[10.0], [200.0], [300.0]]),
    ("conv1d", ([[[1.0, 2.0, 4.0]]], [[[1.0, 10.0]]]), {}, [[[21.0, 42.0]]]),
    ("conv1d", ([[[1.0, 2.0, 4.0]]], [[[1.0, 10.0]]]), {"padding": 1, "stride": 2}, [[[10.0, 42.0]]]),
    ("avg_pool1d", ([[[1.0, 3.0, 5.0]]],), {"kernel": 2}, [[[2.0]]]),
    ("max_pool1d", ([[[1.0, 3.0, 5.0]]],), {"kernel": 2, "stride": 1}, [[[3.0, 5.0]]]),
    ("upsample", ([[[1.0, 2.0]]],), {"size": (4,)}, [[[1.0, 1.0, 2.0, 2.0]]]),
    ("upsample", ([[[1.0, 3.0]]],), {"size": (4,), "mode": "linear"}, [[[1.0, 1.5, 2.5, 3.0]]]),
    # normalisation: variances of [0, 2] and [1, 3] are 1
    ("layer_norm", ([[0.0, 2.0]],), {"eps": 0.0}, [[-1.0, 1.0]]),
    ("layer_norm", ([[0.0, 2.0]],), {"eps": 3.0}, [[-0.5, 0.5]]),
    ("layer_norm", ([[[0.0, 2.0], [5.0, 7.0]]],), {"eps": 0.0}, [[[-1.0, 1.0], [-1.0, 1.0]]]),
    ("layer_norm", ([[0.0, 2.0]], [2.0, 3.0], [5.0, 7.0]), {"eps": 0.0}, [[3.0, 10.0]]),
    ("layer_norm", ([[0.0], [2.0]],), {"eps": 0.0, "normalized_shape": (2, 1)}, [[-1.0], [1.0]]),
    ("rms_norm", ([[1.0, 7.0]],), {"eps": 0.0}, [[0.2, 1.4]]),
    ("rms_norm", ([[1.0, 1.0]],), {"eps": 3.0}, [[0.5, 0.5]]),
    ("rms_norm", ([[[1.0, 7.0], [2.0, 14.0]]],), {"eps": 0.0}, [[[0.2, 1.4], [0.2, 1.4]]]),
    ("rms_norm", ([[1.0, 7.0]], [5.0, 10.0]), {"eps": 0.0}, [[1.0, 14.0]]),
    ("rms_norm", ([[1.0], [7.0]],), {"eps": 0.0, "normalized_shape": (2, 1)}, [[0.2], [1.4]]),
    ("group_norm", ([[[0.0], [2.0], [1.0], [3.0]]],), {"groups": 2, "eps": 0.0}, [[[-1.0], [1.0], [-1.0], [1.0]]]),
    ("group_norm", ([[[0.0], [2.0]]], [2.0, 3.0], [5.0, 7.0]), {"groups": 1, "eps": 0.0}, [[[3.0], [10.0]]]),
    (
        "batch_norm",
        ([[0.0], [2.0]], [1.0], [0.0], [5.0], [4.0]),
        {"eps": 3.0, "momentum": 0.5},
        ([[-0.5], [0.5]], [3.0], [3.0]),  # torch keeps the variance over n - 1, which is 2
    ),
    ("batch_norm", ([[0.0], [2.0]], [1.0], [0.0], [5.0], [4.0]), {"eps": 0.0, "training": False}, [[-2.5], [-1.5]]),
    ("batch_moments", ([[[0.0, 1.0]], [[2.0, 3.0]]],), {}, [[1.5], [3.5]]),
    (
        "batch_normalize",
        ([[[0.0]], [[2.0]]], [[1.0], [2.0]], [3.0], [5.0]),
        {"eps": 0.0},
        [[[2.0]], [[8.0]]],
    ),
    (
        "batch_normalize",  # of two channels: variances 1 and 13, with 3 more 4 and 16
        ([[[0.0], [10.0]], [[2.0], [14.0]]], [[1.0, 12.0], [2.0, 157.0]], [4.0, 2.0], [5.0, 0.0]),
        {"eps": 3.0},
        [[[3.0], [-1.0]], [[7.0], [1.0]]],
    ),
    # losses; three classes of equal scores cost log 3
    ("cross_entropy", ([[[0.0] * 3, [0.0, 0.0, 9.0]]], [[1, -100]]), {}, log(3)),
    ("cross_entropy", ([[[0.0] * 3] * 2], [[1, -100]]), {"reduction": "none"}, [[log(3), 0.0]]),
    ("cross_entropy", ([[0.0] * 3] * 2, [1, 2]), {"reduction": "sum"}, 2 * log(3)),
    ("cross_entropy", ([[0.0] * 3, [9.0, 0.0, 0.0]], [1, 2]), {"ignore_index": 2}, log(3)),
    ("cross_entropy", ([[0.0, log(2)]], [0]), {"label_smoothing": 1.0}, log(3) - log(2) / 2),
    ("nll_loss", ([[-1.0, -2.0], [-3.0, -4.0]], [1, -100]), {}, 2.0),
    ("nll_loss", ([[-1.0, -2.0], [-3.0, -4.0]], [1, 0]), {"reduction": "none"}, [2.0, 3.0]),
    ("nll_loss", ([[-1.0, -2.0], [-3.0, -4.0]], [1, 0]), {"ignore_index": 0}, 2.0),
    ("nll_loss", ([[[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]], [[2, 0]]), {"reduction": "none"}, [[3.0, 4.0]]),
    ("nll_loss", ([[[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]], [[2, 0]]), {"reduction": "sum"}, 7.0),
    ("mse_loss", ([1.0, 5.0], [0.0, 2.0]), {}, 5.0),
    ("mse_loss", ([1.0, 5.0], [0.0, 2.0]), {"reduction": "sum"}, 10.0),
    ("l1_loss", ([1.0, 5.0], [0.0, 2.0]), {}, 2.0),
    ("smooth_l1_loss", ([4.0], [0.0]), {"beta": 2.0}, 3.0),
    ("huber_loss", ([4.0], [0.0]), {"delta": 2.0}, 6.0),
    ("kl_div", ([log(0.5), 0.0], [1.0, 0.0]), {}, log(2) / 2),
    ("kl_div", ([log(0.5)], [log(0.25)]), {"log_target": True}, -log(2) / 4),
    # look-ups and experts
    ("embedding", (SQUARE, [1, 0]), {}, [[3.0, 4.0], [1.0, 2.0]]),
    ("one_hot", ([1],), {"num_classes": 3}, [[0, 1, 0]]),
    ("one_hot", ([1],), {"num_classes": 3, "dtype": "f64"}, [[0.0, 1.0, 0.0]]),
    ("full", (), {"shape": (2,), "value": 3.0, "dtype": "f64"}, [3.0, 3.0]),
    ("zeros", (), {"shape": (2,)}, torch.zeros(2)),
    ("ones", (), {"shape": (1,), "dtype": "i64"}, [1]),
    ("arange", (), {"end": 3}, [0, 1, 2]),
    ("arange", (), {"start": 1, "end": 6, "step": 2, "dtype": "f64"}, [1.0, 3.0, 5.0]),
    (
        "dispatch",
        ([[1.0], [2.0], [3.0]], [[1], [1], [1]]),
        {"num_experts": 2, "capacity": 2},
        [[[0.0], [0.0]], [[1.0], [2.0]]],  # the third finds no room
    ),
    ("combine", ([[[5.0]], [[7.0]]], [[0, 1]], [[0.5, 2.0]]), {}, [[16.5]]),
    # batches of two sequences of two; the first two of four go to the second expert, the last finds no room there
    (
        "dispatch",
        ([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]], [[[1], [1]], [[0], [1]]]),
        {"num_experts": 2, "capacity": 2},
        [[[5.0, 6.0], [0.0, 0.0]], [[1.0, 2.0], [3.0, 4.0]]],
    ),
    (
        "combine",
        (
            [[[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]], [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]],
            [[[1], [1]], [[0], [1]]],
            [[[1.0], [2.0]], [[0.5], [9.0]]],
        ),
        {},
        [[[3.0, 4.0, 5.0], [12.0, 14.0, 16.0]], [[0.5, 1.0, 1.5], [0.0, 0.0, 0.0]]],
    ),
]


def tensor(value: Any) -> torch.Tensor:
    """Floats in fp64; a tensor as it is."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(numpy.array(value))


def test_by_hand() -> None:
    """All in one test: each takes no time, and asks another line."""
    for kind, operands, attrs, expected in CASES:
        wanted = expected if isinstance(expected, tuple) else (expected,)
        found = EAGER[kind](tuple(map(tensor, operands)), attrs)
        assert len(found) == len(wanted), (kind, attrs)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(
                one, tensor(other), rtol=1e-9, atol=1e-12, msg=lambda said, of=(kind, attrs): f"{of}: {said}"
            )


def test_what_is_added_to_a_small_variance() -> None:
    """The variance of 0 and 1e-3 is 2.5e-7, their mean square twice that. torch adds 1e-5, models with RMS 1e-6."""
    for kind, operands in [
        ("layer_norm", ([[0.0, 1e-3]],)),
        ("rms_norm", ([[0.0, 1e-3]],)),
        ("group_norm", ([[[0.0, 1e-3]]],)),
        ("batch_norm", ([[0.0], [1e-3]], [1.0], [0.0], [0.0], [0.0])),
    ]:
        found = EAGER[kind](tuple(map(tensor, operands)), {"groups": 1} if kind == "group_norm" else {})[0]
        expected = 1e-3 / sqrt(5e-7 + 1e-6) if kind == "rms_norm" else 5e-4 / sqrt(2.5e-7 + 1e-5)
        assert found.flatten()[-1].item() == pytest.approx(expected, rel=1e-9), (kind, operands)


def test_running_statistics_move_by_a_tenth() -> None:
    """They are results, and the operands stay as they were."""
    mean, var = torch.zeros(1).double(), torch.ones(1).double()
    _, moved, spread = EAGER["batch_norm"]((tensor([[0.0], [2.0]]), *map(tensor, ([1.0], [0.0])), mean, var), {})
    assert (moved.item(), spread.item()) == pytest.approx((0.1, 0.9 + 0.2))
    assert (mean.item(), var.item()) == (0.0, 1.0)


def test_masks() -> None:
    for mask, width, shift, seen in [
        ("full", 0, 0, ["111", "111", "111"]),
        ("causal", 0, 0, ["100", "110", "111"]),
        ("causal", 0, 1, ["110", "111", "111"]),
        ("window", 2, 0, ["100", "110", "011"]),
        ("band", 2, 0, ["110", "111", "011"]),
        ("band", 1, 0, ["100", "010", "001"]),
        ("chunk", 2, 0, ["100", "110", "001"]),
    ]:
        found = position_mask(mask, width, torch.arange(3), torch.arange(3), shift)
        assert ["".join(str(int(one)) for one in row) for row in found] == seen, mask


def test_attention_is_a_softmax_of_scaled_scores() -> None:
    for biased in [False, True]:
        for mask, keys in [("full", 3), ("causal", 3), ("causal", 4), ("window", 4), ("chunk", 3)]:
            draw = torch.Generator().manual_seed(0)
            q, k, v, bias = (
                torch.randn(shape, generator=draw, dtype=torch.float64)
                for shape in ((1, 4, 3, 2), (1, 2, keys, 2), (1, 2, keys, 5), (1, 4, 3, keys))
            )
            seen = position_mask(mask, 2, torch.arange(3), torch.arange(keys), keys - 3)
            for attrs, scale in (({}, 2**-0.5), ({"scale": 0.25}, 0.25)):
                (found,) = EAGER["attention"]((q, k, v, *[bias] * biased), {"mask": mask, "width": 2, **attrs})
                for head in range(4):
                    scores = q[0, head] @ k[0, head // 2].T * scale + (bias[0, head] if biased else 0)
                    expected = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v[0, head // 2]
                    torch.testing.assert_close(found[0, head], expected)


def test_a_row_that_pads_has_no_gradient() -> None:
    table = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    for attrs, expected in (({"padding_idx": 0}, [0.0, 1.0]), ({}, [2.0, 1.0])):
        (found,) = EAGER["embedding"]((table, torch.tensor([0, 1, 0])), attrs)
        (grad,) = torch.autograd.grad(found.sum(), table)
        assert grad.flatten().tolist() == expected


def test_slots_are_counted_in_each_routing_group() -> None:
    """Two groups of two tokens own half of four slots each; a third choice of an expert finds no room."""
    idx = torch.tensor([[0, 1], [0, 0], [1, 1], [1, 0]])
    assert slots(idx, 2, 4, (2,)).tolist() == [[0, 0], [1, -1], [2, 3], [-1, 2]]
    assert slots(idx, 2, 4, (1,)).tolist() == [[0, 0], [1, 2], [1, 2], [3, 3]]
    # both halves of two sequences of four: a group holds the same half of each, and takes its turn in their order
    both = torch.tensor([[[0], [0], [0], [1]], [[1], [0], [1], [1]]])
    assert slots(both, 2, 4, (1, 2)).tolist() == [[[0], [1], [2], [2]], [[0], [-1], [3], [-1]]]


def test_tables_hold_halves_that_are_named_by_their_law() -> None:
    """The same for a name, of every dtype; a mask lets every row see its first key."""

    def table(**attrs: Any) -> torch.Tensor:
        return EAGER["constant"]((), {"shape": (8, 4), **attrs})[0]

    plain = table(law="rope")
    assert plain.dtype == torch.float32
    assert set(plain.flatten().tolist()) == {0.0, 0.5, 1.0, 1.5}
    assert torch.equal(plain, table(law="rope", dtype="f64").float())
    assert not torch.equal(plain, table(law="alibi"))
    assert torch.equal(table(law="rope", dtype="i64"), plain.floor().long())
    mask = table(law="rope", dtype="bool")
    assert mask[:, 0].all()
    assert torch.equal(mask[:, 1:], plain[:, 1:] >= 1)


def test_grouped_products_are_torchs_in_what_torch_has_a_kernel_for() -> None:
    x, w, ends = torch.ones(4, 16), torch.ones(2, 16, 16), torch.tensor([1, 4], dtype=torch.int32)
    bf16 = (x.bfloat16(), w.bfloat16(), ends)
    assert torch.equal(EAGER["grouped_mm"](bf16, {})[0], F.grouped_mm(*bf16[:2], offs=ends))
