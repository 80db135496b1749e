"""Waiting times of a plan's ranks, for each other and for their hosts: where these are long, it may be faster if all
ranks do the same work."""

from __future__ import annotations

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import Decisions

WAITED = ("tensor", "context", "expert", "parameters", "gradients", "publish", "launch")
KERNELS = ("matmul", "attention", "memory-bound")
MOST_WORK = 4
"""Times what collectives take, and hosts that launch kernels one by one: more than that is not done again for want of
them."""


def parts_badly(decisions: Decisions, prediction: Prediction) -> bool:
    """Whether exposed collectives take so long that it may be faster if all ranks work on the same data: each does all
    the work then, and they exchange nothing. While a device waits for its host, more work takes no longer."""
    shown, ranks = dict(prediction.shares), max(stage.mesh.size for stage in decisions.stages)
    waited, worked = (sum(shown.get(name, 0.0) for name in names) for names in (WAITED, KERNELS))
    return MOST_WORK * waited > (ranks - 1) * worked
