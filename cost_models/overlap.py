"""What runs beside what: kernels, values that operators wait for, gathers and reductions of one phase together; and the
last bucket of gradients, which is full when the backward pass has ended, so that nothing is left to hide it."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.cost_models.cost import NOTHING, Cost, Taken
from meshwright.cost_models.ledger.ledger import Phase
from meshwright.cost_models.profile import StepConstants
from meshwright.ir.target.workload import Stack

FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
"""Of `DistributedDataParallel` (torch 2.13: dist._DEFAULT_FIRST_BUCKET_BYTES and bucket_cap_mb)."""

_DEVICE = ("matmul", "attention", "memory-bound")
_VALUES = ("tensor", "context", "expert")
"""Shares of the step: parts of the device, and what operators wait for."""


def together(
    step: StepConstants,
    stack: Stack,
    cost: Cost,
    host_s: float,
    *,
    beside: Cost | None = None,
    again: Cost = NOTHING,
    alone: bool = False,
) -> Taken:
    """The time of kernels and collectives that run together; `beside` is compute of the same backward pass that is
    counted elsewhere (None: this is none), `again` the part that runs a second time; `alone`: there is no other
    micro-batch."""
    hides, device_s = stack.hides, cost.device_s
    awaited_s = cost.awaited * host_s
    launch_s = awaited_s + max(0.0, cost.launches * host_s - awaited_s - device_s) + cost.host_s
    ring_hidden_s = min(cost.ring_s, cost.engines[1] + launch_s) if "ring" in hides else 0.0
    beside_s = 0.0 if beside is None else max(beside.device_s, beside.launches * host_s)
    busy_s = device_s + launch_s + beside_s - ring_hidden_s
    behind_s = step.covered * busy_s
    values = list(cost.values)
    if "tensor" in hides:
        values[0] *= 1 - step.hidden_tensor
    elif beside is not None and stack.regathers:
        values[0] *= 1 - step.hidden_backward
    values[1] += cost.ring_s - ring_hidden_s
    ran_s = cost.gathers_s * ("parameters" in hides) + cost.reductions_s * ("gradients" in hides)
    first_s = cost.first_gather_s if "parameters" in hides else 0.0  # nothing runs ahead of it
    waited_s = max(first_s, ran_s - behind_s)
    shown_s = cost.gathers_s + cost.reductions_s - ran_s + waited_s
    slowed_s = step.slowdown * (ran_s - waited_s)
    if "expert" in hides and not alone:  # behind the compute of another micro-batch
        left_s = max(0.0, busy_s - ran_s)
        ran_s += values[2]
        values[2] += (step.slowdown - 1) * min(values[2], left_s)
    shares = [(name, part - redone) for name, part, redone in zip(_DEVICE, cost.engines, again.engines, strict=True)]
    shares += [("recompute", again.device_s), ("launch", launch_s), ("parameters", shown_s + slowed_s)]
    shares += list(zip(_VALUES, values, strict=True))
    return Taken(sum(seconds for _, seconds in shares), tuple(shares), ran_s)


def last_bucket(synced: Iterable[tuple[Phase, int]]) -> float:
    """The share of the last bucket in gradients that copies sum; 0 where they are not summed in buckets, since each
    rank keeps a shard. `synced`: what bodies reduce, and how many there are of each."""
    moved = [(one, count * times) for phase, times in synced for one, count in phase.transmissions.items()]
    if any(one.kind != "all_reduce" for one, _ in moved):
        return 0.0
    whole = sum(one.nbytes * count for one, count in moved)
    rest = max(0.0, whole - FIRST_BUCKET_BYTES)
    return (rest % BUCKET_BYTES or min(rest, BUCKET_BYTES)) / whole if whole else 0.0
