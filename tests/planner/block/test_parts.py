"""What the block problem adds up, in numbers that are easy to add up: what shows, what is stored, what moves."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from sys import getrecursionlimit
from typing import Any

import pytest

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import group_shape
from meshwright.cost_models.cost import Cost
from meshwright.cost_models.ledger.ledger import Phase, streaming, updating_bytes
from meshwright.cost_models.profile import StepConstants
from meshwright.ir.decisions.sharding import levels
from meshwright.ir.errors import BlockUnsolvable
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import path
from meshwright.ir.target.workload import STACKS
from meshwright.planner.block.build import build
from meshwright.planner.block.choice import BlockCost, cost_of_plan
from meshwright.planner.block.exposure import Exposure
from meshwright.planner.block.kernels import Kernels, Times
from meshwright.planner.block.moves import Moves
from meshwright.planner.block.plan import body_plan, chosen_of, neighbours
from meshwright.planner.block.space import Space, Terms
from meshwright.planner.block.storage import Stored, Storing
from meshwright.planner.block_solver.methods import solve
from tests.build import Builder
from tests.cost_models.programs import DENSE, MOE, fold
from tests.planner.block.settings import drawn, prices, terms

# What shows ----------------------------------------------------------------------------------------------------------

STEP = StepConstants(hidden_tensor=0.75, hidden_backward=0.5, covered=0.25, slowdown=0.125, straggling=0)
COST = Cost((1, 20, 300), values=(1000, 20000, 300000), ring_s=50)
"""Kernels of 321 s, 20 of them attention; values of 321,000 s; a ring of 50 s."""


@pytest.mark.parametrize(
    ("hides", "regathers", "backward", "tensor", "ring"),
    [
        ((), False, False, 1000, 50),
        ((), False, True, 1000, 50),
        ((), True, False, 1000, 50),
        ((), True, True, 500, 50),
        (("tensor",), True, True, 250, 50),
        (("tensor",), False, False, 250, 50),
        (("ring",), False, False, 1000, 30),
    ],
)
def test_what_shows_of_values(
    hides: tuple[str, ...], regathers: bool, backward: bool, tensor: float, ring: float
) -> None:
    stack = replace(STACKS["torch"], hides=hides, regathers=regathers)
    own = Exposure(stack=stack, step=STEP, hides=True)
    assert own.seconds(COST, backward=backward) == 321 + tensor + 320000 + ring


def test_a_ring_that_attention_covers_does_not_show() -> None:
    stack = replace(STACKS["torch"], hides=("ring",), regathers=False)
    assert Exposure(stack=stack, step=STEP, hides=True).seconds(Cost((0, 9, 0), ring_s=8)) == 9


@pytest.mark.parametrize(
    ("hides", "what", "share"),
    [(True, "gradients", 0.125), (True, "publish", 1.0), (False, "gradients", 1.0), (False, "publish", 1.0)],
)
def test_what_shows_of_parameters(hides: bool, what: str, share: float) -> None:
    stack = replace(STACKS["torch"], hides=("gradients",))
    assert Exposure(stack=stack, step=STEP, hides=hides).parameters(what) == share


# What is stored ------------------------------------------------------------------------------------------------------


def two_products() -> Graph:
    """Weights of 2^20 and of 3 x 2^20 elements, a frozen one, and a buffer."""
    g = Builder()
    x = g.input((8, 1024), labels=("b", ""), dtype="bf16", requires_grad=True)
    first = g.op("linear", x, g.param("one", (1024, 1024), dtype="bf16"))
    second = g.op("linear", first, g.param("two", (3072, 1024), dtype="bf16"))
    third = g.op("linear", second, g.param("frozen", (1024, 3072), dtype="bf16", requires_grad=False))
    g.output(g.op("add", third, g.buffer("seen", (8, 1024), dtype="bf16")))
    return g.graph()


MESH = Mesh.parse("a=4")
COPIED = State.parse("[-, -]|sum(a)")
"""Read whole on four ranks, each of which has a gradient of its own samples."""


def storing(space: Space, stack: str = "torch", microbatches: int = 1, hides: bool = True) -> Storing:
    own = replace(terms(MESH, stack=stack, microbatches=microbatches), hides=hides)
    return Storing(two_products(), MESH, own, own.exposure, space)


def taken(own: Storing, kind: Any, nbytes: float) -> float:
    cluster, ranks = own.terms.prices.cluster, own.terms.ranks
    return collective(kind, nbytes, group_shape(cluster, ranks, MESH, ("a",))).seconds


def streamed(own: Storing, nbytes: float) -> float:
    phase = Phase()
    phase.kernels[streaming(nbytes, own.terms.workload)] = 1
    return own.terms.cost(phase, MESH).device_s


ALL = 4 * 2.0**20
"""Elements of all trained weights, of which the first has a quarter."""


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("stack", ["torch", "megatron"])
@pytest.mark.parametrize("zero", range(4))
def test_a_weight_takes_its_share_of_what_all_take(zero: int, stack: str, microbatches: int) -> None:
    """By the level of ZeRO: gathers before either pass, reductions, the optimizer, gathers of what was updated."""
    own = storing(Space(zero=zero), stack, microbatches, hides=False)
    workload, states = own.terms.workload, own.terms.workload.states
    param = own.graph.params[0]
    (found,) = own.ways(param, COPIED)
    gathered = taken(own, "all_gather", ALL * states.used)
    reduced = taken(own, "reduce_scatter" if zero else "all_reduce", ALL * states.reduced)
    kept = ALL / 4 if zero > 1 else ALL
    adds = streamed(own, kept * 2 * states.gradient) if microbatches > 1 and stack == "torch" else 0.0
    forward = gathered if zero == 3 else 0.0
    backward = (gathered if zero == 3 else 0.0) + (reduced if zero > 1 else 0.0) + adds
    once = (reduced if zero < 2 else 0.0) + (gathered if zero in (1, 2) else 0.0)
    once += streamed(own, (ALL / 4 if zero else ALL) * updating_bytes(workload))
    assert found.forward_s == pytest.approx(forward / 4)
    assert found.backward_s == pytest.approx(backward / 4)
    assert found.once_s == pytest.approx(once / 4)
    each = [width * 2**20 / (4 if zero >= level else 1) for level, width in ((3, states.stored), (2, states.gradient))]
    each.append((states.master + workload.moments) * 2**20 / (4 if zero else 1))
    assert found.nbytes == sum(each)
    assert (found.storage is None) == (zero == 0)
    kept_whole = storing(Space(zero=zero, regather=False), stack, microbatches, hides=False)
    (once_gathered,) = kept_whole.ways(param, COPIED)
    assert found.backward_s - once_gathered.backward_s == pytest.approx(forward / 4)
    assert once_gathered.forward_s == found.forward_s


def test_the_cheapest_way_is_taken() -> None:
    """Of those that the target can have; what is not trained is stored as it is read."""
    own = storing(Space(), microbatches=2)
    param = own.graph.params[1]
    every = list(own.ways(param, COPIED))
    assert len(every) == 4
    assert own.best(param, COPIED).total_s(2) == min(one.forward_s + one.backward_s + one.once_s / 2 for one in every)
    none = replace(own.terms.target, storage=())
    own = Storing(own.graph, MESH, replace(own.terms, target=none), own.exposure, Space())
    assert [one.storage for one in own.ways(param, COPIED)] == [None]
    for number, elements in ((2, 3072 * 1024), (3, 8 * 1024)):
        assert list(own.ways(own.graph.params[number], COPIED)) == [
            Stored(None, nbytes=elements * own.terms.workload.states.stored)
        ]


def test_only_axes_that_may_store_do() -> None:
    """Of a weight that both axes copy, or that one of them cuts already."""
    mesh = Mesh.parse("a=2 b=2")
    setting = terms(mesh)
    states = setting.workload.states
    for text, axes, parts in (
        ("[-, -]|sum(a)|sum(b)", None, 4),
        ("[-, -]|sum(a)|sum(b)", ("b",), 2),
        ("[-, -]|sum(a)|sum(b)", (), 1),
        ("[b, -]|sum(a)", None, 4),
        ("[b, -]|sum(a)", ("b",), 2),
    ):
        own = Storing(two_products(), mesh, setting, setting.exposure, Space(zero=3, storing=axes))
        (found,) = own.ways(own.graph.params[0], State.parse(text))
        each = states.stored + states.gradient + states.master + setting.workload.moments
        assert found.nbytes == each * 2**20 / parts
        assert (found.storage is None) == ((axes in ((), ("b",)) and parts != 2) or (parts == 2 and text[1] == "b"))


def test_levels_that_a_target_can_store() -> None:
    assert levels([]) == (0,)
    assert levels(["optimizer"]) == (0, 1)
    assert levels(["grads", "params"]) == (0,)
    assert levels(["optimizer", "params"]) == (0, 1)
    assert levels(["params", "optimizer", "grads"]) == (0, 1, 2, 3)


# What moves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", ["a=2 b=2", "a=2 b=2 c=2"])
def test_what_is_let_go_runs_again_from_the_first_gather_on(mesh: str) -> None:
    """Step by step along each path, on two axes and on three; of the backward pass a share is hidden."""
    made = Mesh.parse(mesh)
    setting = terms(made, stack="megatron")
    words = ("[-, -]", "[a, -]", "[-, b]", "[a, b]", "[b, a]", "[a.b, -]", "[-, -]+sum(a)", "[b, -]+sum(a)")
    placements = [Placement.parse(word) for word in words]
    nbytes = 2.0**24
    moves = Moves(made, setting, setting.exposure)
    cluster = setting.prices.cluster
    again = moves.again(nbytes, placements, placements)
    backward, forward = (moves.seconds(nbytes, placements, placements, backward=side) for side in (True, False))
    for row, source in enumerate(placements):
        for column, target in enumerate(placements):
            held, steps = nbytes / parts_of(source), list(path(source, target, made))
            found = []
            for step, reached in steps:
                if not step.free:
                    ranks = 2 ** len(step.axes)
                    sent = held * ranks if step.kind == "all_gather" else held
                    shape = group_shape(cluster, setting.ranks, made, step.axes)
                    found.append((step.kind, collective(step.kind, sent, shape).seconds))
                held = nbytes / parts_of(reached)
            first = next((at for at, (kind, _) in enumerate(found) if kind == "all_gather"), len(found))
            left = 1 - setting.prices.profile.step.hidden_backward
            assert forward[row, column] == pytest.approx(sum(one for _, one in found), abs=1e-12)
            assert backward[row, column] == pytest.approx(left * sum(one for _, one in found), abs=1e-12)
            assert again[row, column] == pytest.approx(left * sum(one for _, one in found[first:]), abs=1e-12)


def parts_of(placement: Placement) -> int:
    return 2 ** sum(len(dim) for dim in placement.dims)


# What bytes are held -------------------------------------------------------------------------------------------------

BLOCKS: dict[str, Fold] = {"dense": fold(DENSE, 8), "experts": fold(MOE, 8)}


def block_of(model: Fold) -> str:
    return next(segment.period[0] for segment in model.segments if not segment.glue)


@pytest.mark.parametrize(
    ("mesh", "zero", "recompute"),
    [("a=4", 0, "none"), ("a=4", 0, "selective"), ("a=4", 3, "full"), ("a=2 b=2", 3, "none")],
)
def test_bytes_of_the_problem_are_those_of_the_lowered_body(mesh: str, zero: int, recompute: str) -> None:
    """Of the best plan, and of any where all is computed again: three micro-batches of what is kept, and state."""
    made, random = Mesh.parse(mesh), Random(2)
    setting = terms(made)
    block = build(BLOCKS["dense"], block_of(BLOCKS["dense"]), made, setting, Space(zero=zero, recompute=recompute))
    choices = [solve(block.problem).states, *(drawn(block, random) for _ in range(5 * (recompute == "full")))]
    for chosen in choices:
        cost = cost_of_plan(block.graph, body_plan(block, chosen), made, setting)
        (used,) = block.within(0.0, 3).used(chosen)
        assert used == pytest.approx(3 * cost.saved_bytes + cost.state_bytes, rel=1e-6)


@pytest.mark.parametrize("model", list(BLOCKS))
def test_a_plan_is_the_choice_that_means_it(model: str) -> None:
    made = Mesh.parse("a=2")
    block, random = build(BLOCKS[model], block_of(BLOCKS[model]), made, terms(made), Space(zero=1)), Random(5)
    sizes = [len(variable.costs) for variable in block.problem.variables]
    for _ in range(5):
        chosen = drawn(block, random)
        plan = body_plan(block, chosen)
        again = chosen_of(block, plan)
        assert again is not None
        assert body_plan(block, again) == plan
        near = list(neighbours(block, chosen))
        assert len(near) == len(set(near)) == sum(sizes) - len(sizes)
        assert all(sum(one != other for one, other in zip(chosen, there, strict=True)) == 1 for there in near)
    elsewhere = replace(plan, states=tuple((value, State.parse("[a, -, -]+sum(b)")) for value, _ in plan.states))
    assert chosen_of(block, elsewhere) is None
    assert body_plan(block, chosen, "named").name == "named"
    assert body_plan(block, chosen).name == block.body


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_is_taken_from_a_problem_built_before_changes_nothing(recompute: str) -> None:
    made = Mesh.parse("a=4")
    model, setting = BLOCKS["dense"], terms(made)
    before = build(model, block_of(model), made, setting, Space(zero=0))
    asked: Any = (model, block_of(model), made, setting, Space(zero=3, recompute=recompute, regather=False))
    fresh, like = build(*asked), build(*asked, None, before)
    assert like.recompute == fresh.recompute
    for one, other in zip(fresh.problem.variables, like.problem.variables, strict=True):
        assert one.costs == pytest.approx(other.costs)
    for left, right in zip(fresh.problem.pairs, like.problem.pairs, strict=True):
        assert left.costs == pytest.approx(right.costs)
    assert [row.tolist() for row in fresh.saved] == [row.tolist() for row in like.saved]
    assert [row.tolist() for row in fresh.state] == [row.tolist() for row in like.state]


# Which ends are one --------------------------------------------------------------------------------------------------


def stacked(calls: int, *, widens: bool = False, from_first: bool = False) -> Fold:
    """So many blocks of a product and a residual."""
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    wide = g.op("linear", x, g.param("up", (32 if widens else 16, 16)), name="up")
    g.output(wide if widens else g.op("add", x, wide))
    graph = g.graph()
    paths = tuple(f"layers.{at}" for at in range(calls))
    source = FromInput("x") if from_first else FromPrevious(0)
    segment = Segment(("block",), paths, (FromInput("x"),), ((source,),))
    return Fold((Body("block", graph),), (segment,), ((graph.inputs[0], graph.types["x"]),), (FromPrevious(0),))


@pytest.mark.parametrize(
    ("made", "space", "hubs"),
    [
        (stacked(2), Space(), [("x", "add")]),
        (stacked(1), Space(), [("x",), ("add",)]),  # nothing follows it
        (stacked(2), Space(closed=False), [("x",), ("add",)]),
        (stacked(2, from_first=True), Space(), [("x",), ("add",)]),  # each reads what the first one does
        (stacked(1, widens=True), Space(), [("x",), ("up",)]),
    ],
)
def test_a_block_of_a_stack_ends_as_it_begins(made: Fold, space: Space, hubs: list[tuple[str, ...]]) -> None:
    block = build(made, "block", Mesh.parse("a=2"), terms(Mesh.parse("a=2"), batch=4, seq=8), space)
    assert [hub.values for hub in block.hubs] == hubs
    assert all(not state.partial and not state.grad_partial for hub in block.hubs for state in hub.states)


@pytest.mark.parametrize(("seq", "zigzag", "legal"), [(6, (), True), (6, ("a",), False), (8, ("a",), True)])
def test_a_zigzag_takes_two_pieces_for_every_rank(seq: int, zigzag: tuple[str, ...], legal: bool) -> None:
    """Six positions are cut in two, not in four."""
    g = Builder()
    x = g.input((1, seq, 16), labels=("b", "s", ""), requires_grad=True)
    g.output(g.op("silu", g.op("silu", x)))
    graph = g.graph()
    segment = Segment(("block",), ("layers.0",), (FromInput("x"),), ((FromPrevious(0),),))
    made = Fold((Body("block", graph),), (segment,), ((graph.inputs[0], graph.types["x"]),), (FromPrevious(0),))
    mesh = Mesh.parse("a=2")
    block = build(made, "block", mesh, terms(mesh, batch=1, seq=seq), Space(zigzag=zigzag))
    found = {str(state.dims[1]) for hub in block.hubs for state in hub.states if state.dims[1]}
    assert bool(found) == legal


def test_a_group_may_have_more_operators_than_calls_may_nest() -> None:
    """A recurrence, written out step by step."""
    g = Builder()
    x = value = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    for _ in range(getrecursionlimit()):
        value = g.op("silu", value)
    g.output(g.op("add", value, g.op("linear", x, g.param("up", (16, 16)))))
    graph = g.graph()
    segment = Segment(("block",), ("layers.0",), (FromInput("x"),), ((FromPrevious(0),),))
    made = Fold((Body("block", graph),), (segment,), ((graph.inputs[0], graph.types["x"]),), (FromPrevious(0),))
    mesh = Mesh.parse("a=2")
    block = build(made, "block", mesh, terms(mesh, batch=4, seq=8))
    assert max(len(group.ops) for group in block.parts.groups) == getrecursionlimit()


def test_a_choice_that_is_nowhere_legal_is_refused() -> None:
    """Three ranks cannot share out sixteen of anything, and may not do all the same where that is not offered."""
    mesh = Mesh.parse("a=3")
    with pytest.raises(BlockUnsolvable, match="its boundary is to be"):
        build(
            stacked(2),
            "block",
            mesh,
            terms(mesh, batch=4, seq=8),
            boundary={"x": State.parse("[-, -, -]"), "add": State.parse("[a, -, -]")},
        )


# What is told --------------------------------------------------------------------------------------------------------


def cost(forward_s: float, once_s: float, saved: float, state: float) -> BlockCost:
    return BlockCost(
        forward_s=forward_s,
        inputs_s=2.0,
        weights_s=4.0,
        once_s=once_s,
        saved_bytes=saved,
        state_bytes=state,
    )


def test_what_happens_once_is_shared_out_over_micro_batches() -> None:
    assert cost(1.0, 12.0, 0.0, 0.0).total_s(4) == 1 + 2 + 4 + 3
    assert Stored(None, 1.0, 2.0, 12.0).total_s(4) == 1 + 2 + 3


def test_terms_are_those_of_a_target() -> None:
    """The slowest of the devices counts, and kernels run in the style of the stack."""
    setting = terms(MESH, stack="jax")
    own = Terms.of(prices(), setting.workload, (0, 1), microbatches=3, hides=False)
    assert (own.lowering.style, own.ranks, own.microbatches, own.hides) == ("xla", (0, 1), 3, False)
    usual = Terms.of(prices(), setting.workload, (0, 1))
    assert (usual.microbatches, usual.hides, usual.exposure.hides, own.exposure.hides) == (1, True, True, False)


def test_seconds_of_a_group_add_up() -> None:
    assert Times(1.0, 20.0, 300.0, 4000.0).total_s == 4321.0


@pytest.mark.parametrize(("again", "times"), [((), 2), (("cos",), 3), (("cos", "sin"), 4), (("up",), 2)])
def test_tables_are_made_once_and_again_if_need_be(again: tuple[str, ...], times: int) -> None:
    """A sine and a cosine of angles, each as long as the other, whatever else is computed again."""
    g = Builder()
    angles = g.input((512, 1024), name="angles", labels=("s", ""))
    x = g.input((4, 512, 1024), labels=("b", "s", ""), requires_grad=True)
    made = g.op("linear", x, g.param("up.weight", (1024, 1024)), name="up")
    g.output(g.op("mul", g.op("mul", made, g.op("cos", angles)), g.op("sin", angles)))
    graph, setting = g.graph(), terms(MESH)
    fixed = tuple(op for op in graph.ops if op.kind in ("cos", "sin"))

    def taken(own: tuple[str, ...], ops: tuple[Any, ...]) -> float:
        return Kernels(graph, setting, setting.exposure, frozenset(own), frozenset()).fixed_s(ops, MESH)

    each = taken((), fixed[:1])
    assert each > 0
    assert taken(again, fixed) == pytest.approx(times * each)
    assert taken(again, ()) == 0
