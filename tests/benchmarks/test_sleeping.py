"""Compute that is slept: what is owed, what is returned, and when a rank waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.testbed import sleeping
from benchmarks.testbed.sleeping import AHEAD_S, VARIABLE, Slept

ROOT = Path(sleeping.__file__).parents[2]
RATE = 1e6


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def now(self) -> float:
        return self.now_s


@pytest.fixture
def mode() -> Iterator[Slept]:
    clock = Clock()
    with Slept(RATE, clock.sleep, clock.now) as made:
        yield made


def owed(mode: Slept) -> float:
    """FLOPs that the device was given until now, since nothing but sleeping takes time."""
    return mode.free_at * RATE


def test_a_product_owes_its_flops_forward_and_backward(mode: Slept) -> None:
    layer, x = torch.nn.Linear(6, 5, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert (y.shape, y.dtype, owed(mode)) == ((2, 4, 5), torch.float64, pytest.approx(2 * 8 * 5 * 6))
    y.sum().backward()
    assert owed(mode) == pytest.approx(3 * 2 * 8 * 5 * 6)
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert (x.grad.shape, layer.weight.grad.shape) == (x.shape, layer.weight.shape)
    assert torch.bmm(torch.ones(3, 2, 4), torch.ones(3, 4, 7)).shape == (3, 2, 7)
    assert owed(mode) == pytest.approx(3 * 2 * 8 * 5 * 6 + 2 * 3 * 2 * 7 * 4)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_owes_what_is_seen(mode: Slept, causal: bool) -> None:
    q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    once = 2 * 2 * 4 * 16 * 16 * (8 + 8) / (2 if causal else 1)
    assert (out.shape, owed(mode)) == (q.shape, pytest.approx(once))
    out.sum().backward()
    assert owed(mode) == pytest.approx(3.5 * once)
    assert q.grad is not None
    assert (q.grad.shape, q.grad.abs().max().item()) == (q.shape, 0.0)


def test_a_rank_waits_for_its_device_when_it_reads_and_when_it_is_far_ahead(mode: Slept) -> None:
    x = torch.ones(4, 4)
    y = torch.mm(x, x)
    assert mode.slept_s == 0.0
    assert y.sum().item() == 0.0
    assert mode.slept_s == pytest.approx(128 / RATE)
    for _ in range(100):
        torch.mm(x, x)
    assert mode.free_at - mode.now() == pytest.approx(AHEAD_S)


def test_all_else_is_computed_and_meta_tensors_are_left_alone(mode: Slept) -> None:
    assert (torch.ones(3) + 1).sum().item() == 6.0
    assert torch.mm(torch.ones(4, 4, device="meta"), torch.ones(4, 4, device="meta")).is_meta
    assert owed(mode) == 0.0


RANK = """\
import time
import torch
begin = time.perf_counter(), time.thread_time()
for _ in range(20):
    x = torch.mm(torch.ones(100, 100), torch.ones(100, 100))
assert x.sum().item() == 0.0
print(time.perf_counter() - begin[0], time.thread_time() - begin[1])
"""


@pytest.mark.e2e
def test_ranks_sleep_from_their_start() -> None:
    """20 products of 2 MFLOP at 200 MFLOP/s; slept time is time on a core."""
    paths = os.pathsep.join([str(ROOT / "benchmarks" / "testbed" / "site"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, VARIABLE: "2e8", "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", RANK], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    wall_s, cpu_s = map(float, done.stdout.split())
    assert wall_s >= 0.2
    assert cpu_s >= 0.2 - 20 * AHEAD_S
