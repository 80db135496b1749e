"""Exposure: the share of communication that is not hidden, as a sum over the parts of a plan.

The block problem adds: every kernel and every collective counts by itself. What the evaluator makes of the same parts
depends on all of them together (`cost_models.step`); where that is a share of each, it is that share here:

    values      as `Step.together` hides tensor-parallel collectives: a fixed share of each
    rings       what is longer than the attention kernel beside it
    gathers,    parameters' and gradients' traffic, where the stack runs it beside compute: the slow-down of the compute
    reductions  that covers it. without `hides` all of it, as where there is too little compute to run beside
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost_models.cost import Cost
from meshwright.cost_models.profile import StepConstants
from meshwright.ir.target.workload import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The share of its communication that a stack leaves exposed; `hides` as of `Terms`."""

    stack: Stack
    step: StepConstants
    hides: bool

    def seconds(self, cost: Cost, *, backward: bool = False) -> float:
        """Exposed seconds of one part of a body, per micro-batch."""
        tensor, context, expert = cost.values
        ring_s = cost.ring_s
        if "ring" in self.stack.hides:
            ring_s = max(0.0, ring_s - cost.engines[1])
        return cost.device_s + self.tensor(backward=backward) * tensor + context + expert + ring_s

    def tensor(self, *, backward: bool) -> float:
        """The exposed share of a tensor-parallel collective."""
        if "tensor" in self.stack.hides:
            return 1 - self.step.hidden_tensor
        return 1 - self.step.hidden_backward if backward and self.stack.regathers else 1.0

    def parameters(self, what: str) -> float:
        """The exposed share of gathers of parameters ("parameters"), reductions of gradients ("gradients") and gathers
        of updated parameters ("publish")."""
        return self.step.slowdown if self.hides and what in self.stack.hides else 1.0
