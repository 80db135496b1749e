"""Attention in a ring, part by part, against torch's own on all of it; and what else the interpreter asks of torch."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.kernels import vjp
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import LocalCall

LENGTH, HEADS, KV_HEADS, WIDE = 8, 4, 2, 3
SEEN: dict[str, Any] = {
    "full": lambda q, k: True,
    "causal": lambda q, k: k <= q,
    "window": lambda q, k: q - 2 < k <= q,
}
"""Which key a query sees; a window of two."""


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def call(q: Tensor, k: Tensor, v: Tensor, queries: Any, keys: Any, **attrs: Any) -> LocalCall:
    """Attention of queries to keys that stand at these positions of all."""
    spans, sizes = {"sq": queries, "sk": keys}, {"sq": LENGTH, "sk": LENGTH}
    return LocalCall("attention", (q, k, v), attrs, (Type(tuple(q.shape), "f64"),), spans, sizes)


@pytest.mark.parametrize("scale", [None, 0.25])
@pytest.mark.parametrize("mask", SEEN)
def test_a_ring_is_attention(mask: str, scale: float | None) -> None:
    """Keys and values come in two visits, in either order; queries hold two runs, as in a zigzag. Of rows that a visit
    hides all keys of, nothing comes."""
    q, k, v = drawn(2, HEADS, 4, WIDE, seed=1), drawn(2, KV_HEADS, 8, WIDE, seed=2), drawn(2, KV_HEADS, 8, 2, seed=3)
    queries, at = ((0, 2), (6, 8)), [0, 1, 6, 7]
    leaves = [one.clone().requires_grad_() for one in (q, k, v)]
    seen = torch.tensor([[SEEN[mask](one, other) for other in range(8)] for one in at])
    expected = F.scaled_dot_product_attention(*leaves, attn_mask=seen, scale=scale, enable_gqa=True)
    grad = drawn(*expected.shape, seed=4)
    grads = torch.autograd.grad(expected, leaves, grad)
    kernels = TorchKernels()
    attrs = {"mask": mask, "width": 2, **({"scale": scale} if scale else {})}
    parts = [(0, 4), (4, 8)]
    calls = [call(q, k[:, :, a:b], v[:, :, a:b], queries, ((a, b),), **attrs) for a, b in parts]
    for order in (calls, calls[::-1]):
        merged = kernels.ring_merge(*(kernels.ring_forward(one) for one in order))
        torch.testing.assert_close(merged[0], expected.detach())
        scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * (scale or WIDE**-0.5)
        sums = scores.masked_fill(~seen, -inf).logsumexp(-1).reshape(2, KV_HEADS, 2, 4)
        torch.testing.assert_close(merged[1], sums)
    found = [kernels.ring_vjp(one, merged, grad) for one in calls]
    torch.testing.assert_close(found[0][0] + found[1][0], grads[0])
    for at_slot in (1, 2):
        torch.testing.assert_close(torch.cat([one[at_slot] for one in found], 2), grads[at_slot])


def test_visits_that_hide_everything_leave_nothing() -> None:
    """Of no visit, and of two of them put together: rows of zeros, and sums of nothing."""
    q, k, v = drawn(1, 2, 2, WIDE, seed=1), drawn(1, 2, 2, WIDE, seed=2), drawn(1, 2, 2, WIDE, seed=3)
    kernels = TorchKernels()
    hidden = kernels.ring_forward(call(q, k, v, ((0, 2),), ((4, 6),), mask="causal"))
    for out, sums in (hidden, kernels.ring_merge(hidden, hidden)):
        assert torch.equal(out, torch.zeros_like(q))
        assert bool((sums == -inf).all())
    seen = kernels.ring_forward(call(q, k, v, ((4, 6),), ((0, 2),), mask="causal"))
    for both in (kernels.ring_merge(seen, hidden), kernels.ring_merge(hidden, seen)):
        torch.testing.assert_close(both[0], seen[0])
        torch.testing.assert_close(both[1], seen[1])


def test_what_the_interpreter_asks_of_torch() -> None:
    kernels = TorchKernels()
    x = torch.arange(6.0).reshape(2, 3)
    assert kernels.narrow(x, 1, 1, 3).tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert kernels.concat([x, x], 0).shape == (4, 3)
    assert (kernels.extent(x, 0), kernels.extent(x, 1)) == (2, 3)
    assert kernels.add(x, x).tolist() == (2 * x).tolist()
    assert kernels.maximum(x, 5 - x).tolist() == [[5.0, 4.0, 3.0], [3.0, 4.0, 5.0]]
    assert kernels.scale(torch.tensor([2.0, inf]), 0.0).tolist() == [0.0, 0.0]
    assert kernels.scale(torch.tensor([2.0]), 3.0).tolist() == [6.0]
    assert [kernels.zeros((2,), name).dtype for name in ("f32", "bf16", "i64", "bool")] == [
        torch.float64,
        torch.float64,
        torch.int64,
        torch.bool,
    ]


def product(x: Tensor, y: Tensor) -> LocalCall:
    return LocalCall("mul", (x, y), {}, (Type(tuple(x.shape), "f64"),), {}, {})


def test_gradients_of_what_is_wanted() -> None:
    """Of the results that have none, nothing flows back, and what a result does not depend on has zeros."""
    x, y = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    found = vjp(product(x, y), (1,), (torch.tensor([1.0, 10.0]),))
    assert {slot: one.tolist() for slot, one in found.items()} == {1: [2.0, 30.0]}
    both = TorchKernels().vjp(product(x, y), (1, 0), (torch.tensor([1.0, 10.0]),))
    assert [one.tolist() for one in both] == [[2.0, 30.0], [5.0, 70.0]]
    nothing = vjp(product(x, y), (0, 1), (None,))
    assert {slot: one.tolist() for slot, one in nothing.items()} == {0: [0.0, 0.0], 1: [0.0, 0.0]}
    sizes = {"d0": 4}
    split = LocalCall(
        "split", (torch.ones(4),), {"sizes": (1, 3), "dim": 0}, (Type((1,), "f64"), Type((3,), "f64")), {}, sizes
    )
    part = vjp(split, (0,), (None, torch.tensor([1.0, 2.0, 3.0])))
    assert part[0].tolist() == [0.0, 1.0, 2.0, 3.0]
