"""Kernels on one rank, timed: what a case of one rank runs, and how often.

A sample is long enough for the clock (`LEAST_S`), and as many are taken as fit into the budget of the case, at least
`FEWEST`. The first runs, in which memory is allocated, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.backends.measuring import Case

LEAST_S, FEWEST, MOST = 1e-3, 5, 200
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
Run = Callable[[], object]


def timed(run: Run, budget_s: float) -> tuple[list[float], list[float]]:
    """Seconds of one run, sample by sample, and the share of each in which this thread had a core."""
    run()
    begin = time.perf_counter()
    run()
    once_s = max(time.perf_counter() - begin, 1e-7)
    runs = max(1, round(LEAST_S / once_s))
    seconds: list[float] = []
    cpu: list[float] = []
    until = time.perf_counter() + budget_s
    while len(seconds) < FEWEST or (time.perf_counter() < until and len(seconds) < MOST):
        wall, own = time.perf_counter(), time.thread_time()
        for _ in range(runs):
            run()
        took = time.perf_counter() - wall
        seconds.append(took / runs)
        cpu.append((time.thread_time() - own) / took)
    return seconds, cpu


def kernel(case: Case) -> Run:
    """What a case of one rank runs."""
    return _MADE[case.kind](case)


def _product(case: Case) -> Run:
    """x[m, k] times w[n, k], as a linear layer stores it; several groups as a batch."""
    groups, m, n, k = case.ints
    dtype = DTYPES[str(case.words[0])]
    if groups == 1:
        x, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
        return lambda: F.linear(x, w)
    many, each = torch.randn(groups, m, k, dtype=dtype), torch.randn(groups, k, n, dtype=dtype)
    return lambda: torch.bmm(many, each)


def _attention(case: Case) -> Run:
    dtype, work, mask = case.words[:3]
    batch, heads, kv, sq, sk, d_qk, d_v = case.ints
    sizes = ((heads, sq, d_qk), (kv, sk, d_qk), (kv, sk, d_v))
    made = DTYPES[str(dtype)]
    q, k, v = (torch.randn(batch, *size, dtype=made, requires_grad=work == "backward") for size in sizes)

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal", enable_gqa=kv < heads)

    if work == "forward":
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _stream(case: Case) -> Run:
    """One tensor read and one written: half of the bytes each."""
    (nbytes,) = case.ints
    read = torch.randn(max(1, nbytes // 8))
    return lambda: read * 0.5


def _chain(case: Case) -> Run:
    """Forward and backward through products and activations of nothing."""
    (length,) = case.ints
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(length)]
    x = torch.randn(4, 4)

    def step() -> None:
        value = x
        for weight in weights:
            value = torch.relu(F.linear(value, weight))
        torch.autograd.grad(value.sum(), weights)

    return step


_MADE = {"product": _product, "attention": _attention, "stream": _stream, "chain": _chain}
