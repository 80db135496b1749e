"""What tests of the block builder share: small folds, prices, random choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.ledger.ledger import ledger
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.ir.target.workload import STACKS, Workload
from meshwright.planner.block.build import build
from meshwright.planner.block.choice import BlockCost, cost_of_plan
from meshwright.planner.block.plan import Block, body_plan
from meshwright.planner.block.space import ALL, Space, Terms
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The best plan of a body by itself: what the block problem says it costs per micro-batch, and what it costs."""

    plan: BodyPlan
    objective_s: float
    cost: BlockCost


def solved(
    model: Fold,
    body: str,
    mesh: Mesh,
    terms: Terms,
    space: Space = ALL,
    *,
    boundary: Mapping[str, State] | None = None,
    memory_bytes: float | None = None,
) -> Solved | None:
    """The fastest plan, within `memory_bytes` of one micro-batch; None where there is none."""
    block = build(model, body, mesh, terms, space, boundary)
    answer = elimination.solve(block.problem if memory_bytes is None else block.within(memory_bytes, 1))
    if answer.objective is None:
        return None
    assert answer.status is Status.OPTIMAL
    plan = body_plan(block, answer.states)
    return Solved(plan=plan, objective_s=answer.objective, cost=cost_of_plan(block.graph, plan, mesh, terms))


PHASES = ("forward", "recompute", "inputs", "weights")


@lru_cache
def prices(cluster: str = "1x8xH100") -> Prices:
    return Prices(read_cluster(cluster), published())


def terms(
    mesh: Mesh,
    *,
    stack: str = "torch",
    batch: int = 8,
    seq: int = 1024,
    microbatches: int = 1,
    cluster: str = "1x8xH100",
) -> Terms:
    workload = Workload(global_batch=batch * microbatches, seq=seq, stack=STACKS[stack])
    return Terms.of(prices(cluster), workload, tuple(range(mesh.size)), microbatches=microbatches)


def drawn(block: Block, random: Random) -> tuple[int, ...]:
    """A random choice of the block problem; every pair of states is allowed."""
    return tuple(random.randrange(len(variable.costs)) for variable in block.problem.variables)


def shares(block: Block, chosen: tuple[int, ...]) -> bool:
    """Whether two readers of a hub want its value, or leave its gradient, in one placement that is not the hub's."""
    for hub in block.hubs:
        for value in hub.values:
            at = block.hub_state(value, chosen)
            states = [block.options[n].state(value, chosen[n]) for n in block.parts.readers.get(value, ())]
            values = [state.value for state in states if state.value != at.value]
            grads = [state.grad for state in states if state.grad != at.grad]
            if len(set(values)) < len(values):
                return True
            if value in block.graph.differentiable and len(set(grads)) < len(grads):
                return True
    return False


def lowered_s(block: Block, plan: BodyPlan, terms: Terms) -> float:
    """What the evaluator's prices add up to for the lowered body, without its parameters' traffic."""
    body = lower_body(block.graph, plan, block.mesh, terms.lowering)
    book = ledger(body, terms.workload, accumulates=False)
    shown = terms.exposure
    return sum(shown.seconds(terms.cost(book.phases[name], block.mesh), backward=name != "forward") for name in PHASES)


def stored_s(block: Block, chosen: tuple[int, ...], terms: Terms) -> float:
    """What parameters take of the objective."""
    return sum(way.total_s(terms.microbatches) for _, way in block.stored(chosen))


def adding_s(block: Block, chosen: tuple[int, ...]) -> float:
    """What adding gradients at hubs takes of the objective."""
    first = len(block.options)
    hubs = zip(block.problem.variables[first:], chosen[first:], strict=True)
    return sum(float(variable.costs[state]) for variable, state in hubs)
