"""What the block solver answers: a plan of a body, what it costs, and how good it is.

The objective is a sum over parts (`build`). What is told of the plan comes from the plan itself: it is lowered, its
ledger priced and its memory taken as the evaluator does, part by part; only what depends on the rest of the step
(launches, a pipeline, what hides behind what) is left to the evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.cost_models.collectives.topology import group_shape
from meshwright.cost_models.ledger.ledger import Ledger, ledger
from meshwright.cost_models.memory.body import body_memory
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.planner.block.space import Terms
from meshwright.planner.block_solver.problem import Status


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
    peak_bytes: float
    """The fullest instant of a forward or a backward pass, beside states."""
    traffic: tuple[tuple[str, float], ...]
    """Bytes that a rank receives per micro-batch, by the widest tier of the group."""

    def total_s(self, microbatches: int) -> float:
        """Seconds per micro-batch, with the seconds per step shared out."""
        return self.forward_s + self.inputs_s + self.weights_s + self.once_s / microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """A plan that the block solver found.

    - `objective_s` is what the block problem says it costs per micro-batch, `bound_s` what no plan of the space goes
      below, bound_s <= objective_s; `cost` is what the lowered plan asks for.
    """

    plan: BodyPlan
    status: Status
    objective_s: float
    bound_s: float
    boundary: tuple[tuple[str, State], ...]
    """The states of inputs and outputs."""
    cost: BlockCost


def cost_of_plan(graph: Graph, plan: BodyPlan, mesh: Mesh, terms: Terms) -> BlockCost:
    """The cost of a body plan by itself, whether the block solver made it or not."""
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
        peak_bytes=max(passes.forward.held.total, passes.backward.held.total),
        traffic=tuple(sorted(_traffic(book, mesh, terms).items())),
    )


def _traffic(book: Ledger, mesh: Mesh, terms: Terms) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name, phase in book.phases.items():
        times = 1 / terms.microbatches if name in ("sync", "update", "publish") else 1.0
        for one, count in phase.transmissions.items():
            shape = group_shape(terms.prices.cluster, terms.ranks, mesh, one.axes)
            if shape.levels:
                tier = shape.levels[-1].tier
                found[tier] = found.get(tier, 0.0) + times * count * one.received_bytes(shape.ranks)
    return found
