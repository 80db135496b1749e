"""What a plan of a body costs by itself.

It is lowered, its ledger priced and its memory taken as the evaluator does, part by part, whether the block solver made
it or not; only what depends on the rest of the step (launches, a pipeline, what hides behind what) is left to the
evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost_models.ledger.ledger import ledger
from meshwright.cost_models.memory.body import body_memory
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.block.space import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """The cost of one body plan by itself: seconds and bytes on one rank.

    Seconds of `forward_s`, `inputs_s` (with what is computed again) and `weights_s` are per micro-batch, those of
    `once_s` per step.
    """

    forward_s: float
    inputs_s: float
    weights_s: float
    once_s: float
    saved_bytes: float
    """Between a micro-batch's forward and backward pass."""
    state_bytes: float
    """Parameters, whole ones that are kept gathered too, gradients, optimizer state."""

    def total_s(self, microbatches: int) -> float:
        """Seconds per micro-batch, with the seconds per step shared out."""
        return self.forward_s + self.inputs_s + self.weights_s + self.once_s / microbatches


def cost_of_plan(graph: Graph, plan: BodyPlan, mesh: Mesh, terms: Terms) -> BlockCost:
    """The cost of a body plan by itself."""
    body = lower_body(graph, plan, mesh, terms.lowering)
    book = ledger(body, terms.workload, accumulates=terms.microbatches > 1)
    costs = {name: terms.cost(phase, mesh) for name, phase in book.phases.items()}
    shown = terms.exposure
    seconds: dict[str, float] = {}
    for name in ("forward", "recompute", "inputs", "weights"):
        cost = costs[name]
        seconds[name] = shown.seconds(cost, backward=name != "forward")
        seconds[name] += shown.parameters("parameters") * cost.gathers_s
        seconds[name] += shown.parameters("gradients") * cost.reductions_s
    sync, publish = costs["sync"], costs["publish"]
    once_s = shown.parameters("gradients") * (sync.reductions_s + sync.starts_s) + costs["update"].device_s
    once_s += shown.parameters("publish") * publish.published_s
    memory = body_memory(body, terms.workload, True)
    passes = memory.passes
    return BlockCost(
        forward_s=seconds["forward"],
        inputs_s=seconds["recompute"] + seconds["inputs"],
        weights_s=seconds["weights"],
        once_s=once_s,
        saved_bytes=passes.kept.activations + passes.kept.logits,
        state_bytes=memory.parameters + memory.gradients + memory.optimizer + memory.unit * memory.unit_kept,
    )
