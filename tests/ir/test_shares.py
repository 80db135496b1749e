"""Unequal shares: exact, whatever copies take of a batch and hold of states; and told from plans that have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan, Storage
from meshwright.ir.decisions.project import projected, sizes_of
from meshwright.ir.decisions.text import decisions_text, parse_decisions
from meshwright.ir.errors import SharesImpossible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Program, Stage
from meshwright.ir.program.text import program_text
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.rank_classes import rank_classes, seen_by
from meshwright.ir.sharding.shares import (
    apportioned,
    axis_of,
    batch_shares,
    equally,
    shares_along,
    shares_of,
    state_shares,
    weights_of,
)
from meshwright.ir.verify.meaning import verify_meaning
from meshwright.ir.verify.programs import verify_program
from tests.llama_block import Sizes, model

CASES = {
    "dp": (Degrees(dp=2), (3, 1)),
    "dp zero-1": (Degrees(dp=4, zero=1), (3, 3, 1, 1)),
    "dp zero-3, micro-batches": (Degrees(dp=2, zero=3, microbatches=2), (1, 3)),
    "dp tp sp zero-2": (Degrees(dp=2, tp=2, sequence_parallel=True, zero=2, microbatches=2), (3, 1)),
    "hsdp": (Degrees(dp=4, shard=2, zero=3, microbatches=2), (6, 2)),
    "dp cp ring": (Degrees(dp=2, cp=2, context="ring"), (1, 3)),
    "dp cp ulysses": (Degrees(dp=2, cp=2, context="ulysses"), (3, 1)),
    "dp tp pp": (
        Degrees(dp=2, pp=2, tp=2, zero=1, schedule="1f1b", microbatches=2, recompute="full"),
        (3, 1),
    ),
}


def shared(name: str, *, tied: bool = False) -> tuple[Fold, Decisions, tuple[int, ...]]:
    degrees, sizes = CASES[name]
    fold = model(Sizes(batch=sum(sizes)), tied=tied)
    return fold, batch_shares(template(fold, degrees), fold, sizes), sizes


@pytest.mark.parametrize("name", CASES)
def test_a_step_with_unequal_shares_is_exact(name: str) -> None:
    fold, plan, sizes = shared(name, tied=name == "dp")
    assert not step_differences(fold, plan)
    smallest = min(sizes)
    assert shares_of(plan) == tuple(size // smallest for size in sizes)
    assert parse_decisions(decisions_text(plan)) == plan


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_in_unequal_shards_are_exact(zero: int) -> None:
    """Beside unequal shares of the batch, which go the other way."""
    fold = model()
    even = template(fold, Degrees(dp=2, zero=zero, microbatches=2))
    plan = state_shares(batch_shares(even, fold, (3, 1)), fold, (1, 4))
    assert not step_differences(fold, plan)
    first, second = weights_of(plan)
    assert 3 * first < second
    assert weights_of(even) == ()
    assert shares_of(even) == ()


def test_shares_that_cannot_be_are_refused() -> None:
    fold = model()
    plan = template(fold, Degrees(dp=2))
    for sizes in ((4,), (2, 1), (4, 0), (2, 1, 1)):
        with pytest.raises(SharesImpossible):
            batch_shares(plan, fold, sizes)
    with pytest.raises(SharesImpossible, match="no axis of copies"):
        batch_shares(template(fold, Degrees(tp=2)), fold, (3, 1))
    assert axis_of(template(fold, Degrees(tp=2))) == ""


def test_units_are_apportioned_to_weights() -> None:
    assert apportioned(10, (1, 1)) == (5, 5)
    assert apportioned(9, (1, 2, 3)) == (2, 3, 4)
    assert apportioned(3, (0, 0, 5)) == (1, 1, 1)


def test_a_twin_takes_shares_as_unequal_as_it_can() -> None:
    fold, twin = model(Sizes(batch=64)), model(Sizes(batch=8, layers=2))
    plan = batch_shares(template(fold, Degrees(dp=16, zero=1)), fold, (6,) * 8 + (2,) * 8)
    sizes = sizes_of(plan, 8, 4)
    small = projected(plan, fold, twin, sizes, "torch-gloo")
    assert shares_of(small) == (3, 3, 1, 1)
    assert not step_differences(twin, small)
    assert equally(small) == projected(template(fold, Degrees(dp=16, zero=1)), fold, twin, sizes, "torch-gloo")


# As other ranks see it -----------------------------------------------------------------------------------------------


def on_device(rank: int) -> str:
    return "fast" if rank < 2 else "slow"


def programs(name: str) -> tuple[Fold, Program, Stage]:
    fold, plan, _ = shared(name)
    program = lower(fold, plan)
    return fold, program, program.stages[0]


@pytest.mark.parametrize("name", CASES)
def test_a_program_renumbered_is_right_and_shows_other_ranks_first(name: str) -> None:
    """Its statements and meaning hold, and what it holds on its first rank is what that rank holds."""
    fold, program, stage = programs(name)
    bodies = {body.name: body for body in program.bodies}
    found = rank_classes([stage], bodies, on_device)
    assert {rank for own in found for rank in own.ranks} <= set(stage.ranks)
    for own in found:
        seen = seen_by(program, own.at)
        verify_program(seen)
        verify_meaning(seen, fold)
        rank = stage.ranks.index(own.ranks[0])
        for before, after in zip(program.bodies, seen.bodies, strict=True):
            for value, local in before.locals.items():
                shape = local.placement.local_shape(local.type.shape, before.mesh, rank)
                assert after.elements[value] == _product(shape), (value, rank)


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for extent in shape:
        found *= extent
    return found


@pytest.mark.parametrize("name", ["dp", "dp cp ring", "dp tp pp"])
def test_a_program_renumbered_is_the_one_of_the_shares_in_that_order(name: str) -> None:
    """What is kept from forward to backward included."""
    degrees, sizes = CASES[name]
    fold = model(Sizes(batch=sum(sizes)))
    even = template(fold, degrees)
    program, other = (lower(fold, batch_shares(even, fold, order)) for order in (sizes, sizes[::-1]))
    assert program_text(seen_by(program, ((axis_of(even), 1),))) == program_text(other)


def test_ranks_with_less_of_everything_on_the_same_device_are_left_out() -> None:
    _, program, stage = programs("dp zero-1")
    bodies = {body.name: body for body in program.bodies}
    assert [own.ranks for own in rank_classes([stage], bodies, None)] == [stage.ranks]
    assert [own.ranks for own in rank_classes([stage], bodies, on_device)] == [(0, 1), (2, 3)]
    assert [own.ranks for own in rank_classes([stage], bodies, lambda rank: rank % 2)] == [(0,), (1,)]
    _, last, _ = shared("dp zero-3, micro-batches")
    fold = model()
    turned = lower(fold, last)
    (own,) = rank_classes([turned.stages[0]], {body.name: body for body in turned.bodies}, None)
    assert own.ranks == (1,)


# By hand -------------------------------------------------------------------------------------------------------------

FOLD = model()


def by_hand(*meshes: str, storage: dict[str, str] | None = None, **strategies: Strategy) -> Decisions:
    """One plan of a block, on a stage for every mesh."""
    placed = (Storage(path, *(Placement.parse(text),) * 3) for path, text in (storage or {}).items())
    state = (("x", State.parse("[dp:uneven(3,1), tp, -]")),) if "norm1" in strategies else ()
    plan = BodyPlan("block", "block", tuple(strategies.items()), state, tuple(placed))
    spare = replace(plan, name="spare")
    stages, rank = list[StagePlan](), 0
    for at, text in enumerate(meshes):
        mesh = Mesh.parse(text)
        stages.append(StagePlan(at, at + 1, mesh, tuple(range(rank, rank + mesh.size)), ("block",)))
        rank += mesh.size
    return Decisions((plan, spare), tuple(stages))


def uneven(axis: str, *sizes: int, factor: str = "d0") -> Strategy:
    return Strategy(((axis, Split((factor,), Uneven(sizes))), ("tp", Split(("n",)))))


@pytest.mark.parametrize(
    ("meshes", "axis"),
    [
        (("dp=2 tp=2",), "dp"),
        (("tp=2 dp=2",), "dp"),
        (("dp_ep=2 dp=2",), "dp_ep"),
        (("dp=2 tp=2", "dp=2"), "dp"),
        (("dp=2", "dp=4"), ""),
        (("dp=2", "tp=2"), ""),
        (("tp=2", "tp=2"), ""),
        (("cp=2 tp=2",), ""),
    ],
)
def test_copies_are_on_the_outermost_axis_that_all_stages_have(meshes: tuple[str, ...], axis: str) -> None:
    assert axis_of(by_hand(*meshes)) == axis


def test_shares_are_told_in_smallest_terms() -> None:
    plan = by_hand("dp=2 ep=3 tp=2", norm1=uneven("dp", 6, 2))
    assert shares_of(plan) == (3, 1)
    assert shares_along(plan, ("dp",)) == (3, 1)
    assert shares_along(plan, ("dp", "ep")) == (3, 3, 3, 1, 1, 1)
    assert shares_along(plan, ("ep", "dp", "tp")) == (3,) * 6 + (1,) * 6
    even = by_hand("dp=2 tp=2", norm1=Strategy.parse("dp=d0"))
    assert (shares_of(even), shares_along(even, ("dp",))) == ((), ())
    assert shares_of(by_hand("tp=2 dp=2", norm1=Strategy((("tp", Split(("d0",), Uneven((3, 1)))),)))) == ()


def test_equal_shares_leave_what_other_axes_do() -> None:
    plan = equally(by_hand("dp=2 tp=2", norm1=uneven("dp", 3, 1), q=uneven("tp2", 3, 1)))
    first = plan.plan["block"]
    assert str(first.strategy("norm1")) == "dp=d0 tp=n"
    assert str(first.strategy("q")) == "tp2=d0:uneven(3,1) tp=n"
    assert [str(state) for _, state in first.states] == ["[dp, tp, -]"]
    even = by_hand("dp=2 tp=2", norm1=Strategy.parse("dp=d0:zigzag"))
    assert equally(even) is even


@pytest.mark.parametrize(
    ("placements", "weights"),
    [
        ({"q.weight": "[dp:uneven(8,24), -]"}, (8, 24)),
        ({"q.weight": "[dp:uneven(8,24), -]", "k.weight": "[dp:uneven(1,15), -]"}, (8, 24)),
        ({"k.weight": "[dp:uneven(1,15), -]", "q.weight": "[dp:uneven(8,24), -]"}, (8, 24)),
        ({"q.weight": "[dp:uneven(15,17), -]"}, (15, 17)),
        ({"q.weight": "[-, dp:uneven(15,17)]"}, (15, 17)),
        ({"k.weight": "[dp:uneven(7,8), -]"}, ()),  # what rounding makes of equal shares
        ({"q.weight": "[tp:uneven(8,24), -]"}, ()),
        ({"q.weight": "[dp, -]"}, ()),
    ],
)
def test_weights_are_those_of_the_largest_shards(placements: dict[str, str], weights: tuple[int, ...]) -> None:
    assert weights_of(by_hand("dp=2 tp=2", storage=placements)) == weights
    assert weights_of(by_hand("cp=2 tp=2", storage=placements)) == ()


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        # 32 rows: one each, of the 30 left 7.5 and 22.5; what is missing goes to the first.
        ("q.weight", "[dp, -]", "[dp:uneven(9,23), -]"),
        ("q.weight", "[-, dp]", "[-, dp:uneven(9,23)]"),
        # 16 behind two ranks: 3.5 and 10.5 of 14.
        ("q.weight", "[tp.dp, -]", "[tp.dp:uneven(5,11), -]"),
        ("q.weight", "[dp.tp, -]", "[dp:uneven(10,22).tp, -]"),
        ("q.weight", "[tp, -]", "[tp, -]"),
        ("q.weight", "[-, -]", "[-, -]"),
        ("q.weight", "[dp:padded(16), -]", "[dp:padded(16), -]"),
        ("q.weight", "[dp.tp:zigzag, -]", "[dp.tp:zigzag, -]"),
    ],
)
def test_states_are_stored_in_parts_of_these_weights(path: str, before: str, after: str) -> None:
    plan = state_shares(by_hand("dp=2 tp=2", storage={path: before}), FOLD, (1, 3))
    assert [str(one) for one in (plan.plans[0].storage[0].params, plan.plans[0].storage[0].optimizer)] == [after] * 2
    assert str(plan.plans[1].storage[0].grads) == before, "no stage runs it"


def test_what_is_smaller_than_a_part_for_each_stays() -> None:
    plan = by_hand("dp=32 tp=2", storage={"q.weight": "[tp.dp, -]", "o.weight": "[dp, -]"})
    found = state_shares(plan, FOLD, (1,) * 31 + (2,))
    small, large = (str(one.optimizer) for one in found.plans[0].storage)
    assert small == "[tp.dp, -]"
    assert large == f"[dp:uneven({','.join(['1'] * 32)}), -]"


@pytest.mark.parametrize(
    ("strategy", "cause"),
    [
        ("dp=d1", "what copies cut there, 16 over s, is not 4 whole sequences"),
        ("dp=d0:zigzag", "what copies cut there, 4 over b, is not 4 whole sequences"),
        ("dp=d2", "what copies cut there, 32 over hidden, is not 4 whole sequences"),
    ],
)
def test_shares_are_of_whole_sequences(strategy: str, cause: str) -> None:
    with pytest.raises(SharesImpossible) as refusal:
        batch_shares(by_hand("dp=2", res1=Strategy.parse(strategy)), FOLD, (3, 1))
    assert (refusal.value.place, refusal.value.cause) == ("%res1", cause)


def test_what_else_copies_do_stays_as_it_is() -> None:
    plan = batch_shares(
        by_hand("dp=2 tp=2", act=Strategy.parse("tp=d2 dp=d0"), q=Strategy.parse("dp=-|P tp=n")), FOLD, (1, 3)
    )
    assert [str(strategy) for _, strategy in plan.plans[0].strategies] == ["tp=d2 dp=d0:uneven(1,3)", "dp=-|P tp=n"]
