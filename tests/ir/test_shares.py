"""Unequal shares: exact, whatever copies take of a batch and hold of states; and told from plans that have none."""

from __future__ import annotations

import pytest

from meshwright.backends.torch_.verify.step import step_differences
from meshwright.ir.decisions import Decisions
from meshwright.ir.errors import SharesImpossible
from meshwright.ir.fold import Fold
from meshwright.ir.lower import lower
from meshwright.ir.names import Degrees, template
from meshwright.ir.peers import peers_of, seen_by
from meshwright.ir.plan_text import decisions_text, parse_decisions
from meshwright.ir.program import Program, Stage
from meshwright.ir.program_text import program_text
from meshwright.ir.project import projected, sizes_of
from meshwright.ir.shares import apportioned, axis_of, batch_shares, equally, shares_of, state_shares, weights_of
from meshwright.ir.verify_meaning import verify_meaning
from meshwright.ir.verify_program import verify_program
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
    found = peers_of([stage], bodies, on_device)
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
    assert [own.ranks for own in peers_of([stage], bodies, None)] == [stage.ranks]
    assert [own.ranks for own in peers_of([stage], bodies, on_device)] == [(0, 1), (2, 3)]
    assert [own.ranks for own in peers_of([stage], bodies, lambda rank: rank % 2)] == [(0,), (1,)]
    _, last, _ = shared("dp zero-3, micro-batches")
    fold = model()
    turned = lower(fold, last)
    (own,) = peers_of([turned.stages[0]], {body.name: body for body in turned.bodies}, None)
    assert own.ranks == (1,)
