"""What the block solver finds in regimes that are set on purpose; never worse than what a person would write."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import ZIGZAG
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.block import Space, Terms, cost_of_plan
from meshwright.planner.block.space import ALL
from tests.cost_models.programs import DENSE, MOE, fold
from tests.planner.block.settings import Solved, solved, terms

WIDE = replace(DENSE, hidden=4096, ffn_hidden=14336, heads=32, kv_heads=8, tied_embeddings=False)
ROUNDING = 1e-9
SLACK = 0.01
"""Of a plan's price: parameters' traffic is shared out among them, so plans that differ in it by less may change place
when they are lowered."""


def block_of(model: Fold) -> str:
    return next(segment.period[0] for segment in model.segments if not segment.glue)


def found(solved: Solved | None) -> Solved:
    assert solved is not None
    return solved


def best(model: Fold, mesh: Mesh, setting: Terms, space: Space = ALL, memory_bytes: float | None = None) -> Solved:
    """The fastest plan of a block."""
    return found(solved(model, block_of(model), mesh, setting, space, memory_bytes=memory_bytes))


def moves(model: Fold, choice: Solved, mesh: Mesh, setting: Terms) -> Counter[str]:
    body = lower_body(model.body[block_of(model)].graph, choice.plan, mesh, setting.lowering)
    return Counter(move.step.kind for move in body.moves() if move.reason in ("value", "gradient"))


def cut(plan: BodyPlan, axis: str) -> set[str]:
    """The factors that an axis cuts, over all operators."""
    made = [strategy.of(axis) for _, strategy in plan.strategies]
    return {name for choice in made if isinstance(choice, Split) for name in choice.factors}


@pytest.mark.parametrize("mesh", ["a=8", "a=2 b=4"])
def test_an_ample_batch_is_all_that_is_cut(mesh: str) -> None:
    made, model = Mesh.parse(mesh), fold(WIDE, 16)
    setting = terms(made, batch=16, microbatches=16)
    choice = best(model, made, setting)
    assert not moves(model, choice, made, setting)
    assert all(cut(choice.plan, axis) <= {"b", "d0", "f0"} for axis in made.names)


def test_short_of_memory_for_weights_it_finds_megatron() -> None:
    """One sequence or two on eight ranks cannot be cut by batch. Copies of weights do not fit: column- and row-parallel
    products, heads, and the residual cut over the sequence, with four gathers and four reductions to shards."""
    made, model = Mesh.parse("a=8"), fold(WIDE, 2, 8192)
    setting = terms(made, batch=2, seq=8192)
    free = best(model, made, setting, Space(zero=0))
    choice = best(model, made, setting, Space(zero=0), memory_bytes=0.96 * 2**30)
    assert choice.cost.state_bytes < free.cost.state_bytes
    assert choice.objective_s > free.objective_s
    assert moves(model, choice, made, setting) == {"all_gather": 4, "reduce_scatter": 4}
    assert {"n", "k", "hk"} <= cut(choice.plan, "a")


def test_where_gradients_are_shared_out_it_finds_ulysses() -> None:
    """With many micro-batches copies of weights cost little: tokens stay cut over the sequence, heads only inside
    attention, behind all-to-alls."""
    made, model = Mesh.parse("a=8"), fold(WIDE, 2, 8192)
    setting = terms(made, batch=2, seq=8192, microbatches=8)
    choice = best(model, made, setting, Space(zero=0))
    assert set(moves(model, choice, made, setting)) == {"all_to_all"}
    assert not {"n", "k"} & cut(choice.plan, "a")


DEGREES = (
    {"dp": 8},
    {"tp": 8},
    {"tp": 8, "sequence_parallel": True},
    {"cp": 8, "zigzag": True},
    {"cp": 4, "dp": 2, "zigzag": True, "context": "ring"},
    {"cp": 4, "dp": 2, "context": "ulysses"},
    {"cp": 2, "tp": 2, "context": "ulysses", "sequence_parallel": True},
    {"dp": 4, "tp": 2, "zero": 3, "recompute": "selective"},
    {"dp": 2, "tp": 4, "zero": 1, "recompute": "full", "sequence_parallel": True},
)
EXPERT_DEGREES = (
    {"dp": 8, "ep": 4},
    {"dp": 4, "tp": 2, "ep": 4, "sequence_parallel": True},
)


def compared(model: Fold, degrees: Degrees, stack: str) -> tuple[float, float, float]:
    """Seconds per micro-batch of a plan by names, of ours, and of ours with the same states at the ends."""
    mesh, body = degrees.mesh(), block_of(model)
    setting = terms(mesh, microbatches=degrees.microbatches, stack=stack)
    graph = model.body[body].graph
    plan = next(plan for plan in template(model, degrees).plans if plan.body == body)
    ends = {value: dict(plan.states)[value] for value in (graph.inputs[0].value, graph.outputs[0])}
    space = Space(
        zero=degrees.zero,
        storing=tuple(axis for axis in mesh.names if not axis.startswith("tp")),
        zigzag=tuple(axis for axis in mesh.names if degrees.layout(axis) == ZIGZAG),
        recompute=degrees.recompute,
    )
    ours = [found(solved(model, body, mesh, setting, space, boundary=at)).cost for at in (None, ends)]
    costs = (cost_of_plan(graph, plan, mesh, setting), *ours)
    theirs, free, same = (cost.total_s(degrees.microbatches) for cost in costs)
    return theirs, free, same


@pytest.mark.parametrize("stack", ["torch", "megatron"])
@pytest.mark.parametrize("named", DEGREES, ids=str)
def test_no_plan_by_names_is_better(named: dict[str, int], stack: str) -> None:
    theirs, free, same = compared(fold(DENSE, 8), Degrees(microbatches=4, **named), stack)  # type: ignore[arg-type]
    assert max(free, same) <= theirs * (1 + SLACK)


def test_nor_one_on_three_axes() -> None:
    theirs, free, same = compared(fold(DENSE, 8), Degrees(dp=2, cp=2, tp=2, zero=2), "torch")
    assert max(free, same) <= theirs * (1 + SLACK)


@pytest.mark.parametrize("named", EXPERT_DEGREES, ids=str)
def test_nor_one_with_experts(named: dict[str, int]) -> None:
    theirs, free, same = compared(fold(MOE, 8), Degrees(microbatches=4, **named), "torch")  # type: ignore[arg-type]
    assert max(free, same) <= theirs * (1 + SLACK)


def test_a_limit_holds_or_nothing_fits() -> None:
    """In an eager stack the bytes of the problem are those that the evaluator counts."""
    made, model = Mesh.parse("a=2 b=2"), fold(DENSE, 8)
    setting = terms(made)
    free, whole = (best(model, made, setting, Space(zero=zero)) for zero in (0, None))
    assert whole.objective_s <= free.objective_s * (1 + ROUNDING)
    capacity = 0.6 * (free.cost.saved_bytes + free.cost.state_bytes)
    tight = best(model, made, setting, Space(zero=3), memory_bytes=capacity)
    assert tight.objective_s >= whole.objective_s * (1 - ROUNDING)
    assert tight.cost.saved_bytes + tight.cost.state_bytes <= capacity
    assert solved(model, block_of(model), made, setting, memory_bytes=1.0) is None


def test_a_target_gets_what_it_can_express() -> None:
    made, model = Mesh.parse("a=4"), fold(DENSE, 2, 8192)
    setting = terms(made, batch=2, seq=8192)
    for target in TARGETS.values():
        less = replace(target, layouts=target.layouts[:1], attention=target.attention[:1])
        asked = Terms.of(setting.prices, setting.workload, setting.ranks, less)
        plan = best(model, made, asked, Space(zigzag=("a",))).plan
        cuts = [choice for _, strategy in plan.strategies for _, choice in strategy.choices]
        assert not any(isinstance(choice, Split) and (len(choice.factors) > 1 or str(choice.layout)) for choice in cuts)


def test_where_nothing_hides_parameters_cost_more() -> None:
    """The same best plan, with the traffic of its gradients in full."""
    made, model = Mesh.parse("a=4"), fold(DENSE, 8)
    setting = terms(made)
    shown = replace(setting, hides=False)
    both = [best(model, made, one, Space(zero=1)) for one in (setting, shown)]
    assert both[0].cost.once_s < both[1].cost.once_s
    assert both[0].objective_s < both[1].objective_s
