"""Compute that is slept: products and attention take the time of a declared rate, and none of this machine's cores.

    free at = max(now, free at) + FLOPs / rate

Ranks of several hosts share the few cores of a testbed, so that real products would measure the sharing. Here they
return zeros of the right shape, forward and backward, and are owed to a device of the declared rate; everything else
runs as ever. The device works behind its rank, which sleeps until it is free before anything is sent, received or read
(`item`), and whenever it is `AHEAD_S` behind; not at all, where kernels are measured one by one. So what a rank does
itself, many of them on few cores, hides behind what is slept, if that is more. Slept time counts as time on a core
(`time.thread_time`), for calibrations leave out samples that had none. FLOPs:

    mm, addmm, bmm, baddbmm    2 g m n k
    attention                  2 b h sq sk (d_qk + d_v), half of that under a causal mask; backward 5/2 of it
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

VARIABLE = "TESTBED_FLOPS_PER_S"
"""The environment variable with the rate of a rank: where it is set, `site/sitecustomize.py` begins to sleep."""
AHEAD = "TESTBED_AHEAD_S"
"""The variable with how far a rank may be ahead of its device, where that is not `AHEAD_S`."""
AHEAD_S = 4e-3
"""Seconds. Far below a step, and far above what one sleep is late."""
COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
BACKWARD = 2.5
"""Products of a backward pass of fused attention over those of its forward pass: five over two."""
aten = torch.ops.aten


class Slept(TorchDispatchMode):  # type: ignore[misc] # torch does not type it
    """A mode in which products and attention are slept."""

    def __init__(
        self,
        flops_per_s: float,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.perf_counter,
        ahead_s: float = AHEAD_S,
    ) -> None:
        super().__init__()
        self.flops_per_s, self.sleep, self.now, self.ahead_s = flops_per_s, sleep, now, ahead_s
        self.free_at = now()
        self.slept_s = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kinds = {kind for kind in types if kind not in (Tensor, torch.nn.Parameter)}
        if any(kind.__module__.startswith("torch.distributed") for kind in kinds):
            return NotImplemented  # it says which operators of plain tensors it is made of
        if func.namespace in COMMUNICATION or func is aten._local_scalar_dense.default:
            self.wait()
        law = _LAWS.get(func.overloadpacket)
        if law is None or kinds or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        flops, made = law(*args, **(kwargs or {}))
        self.free_at = max(self.now(), self.free_at) + flops / self.flops_per_s
        self.wait(self.ahead_s)
        return made

    def wait(self, ahead_s: float = 0.0) -> None:
        """Sleep until the device is free, or so far behind."""
        begin = self.now()
        owed_s = self.free_at - ahead_s - begin
        if owed_s > 0:
            self.sleep(owed_s)
            self.slept_s += self.now() - begin


def begin() -> Slept:
    """Sleep from now on in this process, as its environment has it."""
    ahead_s = float(os.environ.get(AHEAD, AHEAD_S))
    mode, own = Slept(float(os.environ[VARIABLE]), ahead_s=ahead_s), time.thread_time
    mode.__enter__()
    time.thread_time = lambda: own() + mode.slept_s
    return mode


Made = tuple[float, Any]
"""FLOPs, and what is returned."""


def _product(one: Tensor, other: Tensor) -> Made:
    *groups, m, k = one.shape
    made = one.new_zeros((*groups, m, other.shape[-1]))
    return 2.0 * made.numel() * k, made


def _added(_: Tensor, one: Tensor, other: Tensor, **__: float) -> Made:
    return _product(one, other)


def _attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, **_: Any) -> Made:
    made = q.new_zeros((*q.shape[:-1], v.shape[-1])), q.new_zeros(q.shape[:-1], dtype=torch.float32)
    return _attention_flops(q, k, v, causal=is_causal), made


def _attention_backward(
    _: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dropout_p: float, is_causal: bool, **__: Any
) -> Made:
    made = tuple(torch.zeros_like(one) for one in (q, k, v))
    return BACKWARD * _attention_flops(q, k, v, causal=is_causal), made


def _attention_flops(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> float:
    batch, heads, length, width = q.shape
    whole: float = 2.0 * batch * heads * length * k.shape[-2] * (width + v.shape[-1])
    return whole / 2 if causal else whole


_LAWS: dict[Any, Callable[..., Made]] = {
    aten.mm: _product,
    aten.bmm: _product,
    aten.addmm: _added,
    aten.baddbmm: _added,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Of each operator that is slept, its FLOPs and what it returns."""
