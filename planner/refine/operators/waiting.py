"""What ranks of a plan wait for each other, and for their hosts: where that takes long, ranks which all do the same may
be faster."""

from __future__ import annotations

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import Decisions

WAITED = ("tensor", "context", "expert", "parameters", "gradients", "publish", "launch")
KERNELS = ("matmul", "attention", "memory-bound")
MOST_WORK = 4
"""Times what collectives take, and hosts that launch kernels one by one: more than that is not done again for want of
them."""


def parts_badly(decisions: Decisions, prediction: Prediction) -> bool:
    """Whether collectives that nothing hides take so long that ranks which all work on the same data may be faster:
    each does the work of all then, and has nothing to tell the others. While a device waits for its host, more work
    takes no longer."""
    shown, ranks = dict(prediction.shares), max(stage.mesh.size for stage in decisions.stages)
    waited, worked = (sum(shown.get(name, 0.0) for name in names) for names in (WAITED, KERNELS))
    return MOST_WORK * waited > (ranks - 1) * worked


def silent_s(prediction: Prediction) -> float:
    """The step without what ranks wait for each other, and their hosts."""
    shown = dict(prediction.shares)
    return prediction.step_time_s - sum(shown.get(name, 0.0) for name in WAITED)
