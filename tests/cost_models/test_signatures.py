"""Forms: what is derived from one program and used for another must be what that other one would give by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.ledger.ledger import Known, ledger
from meshwright.cost_models.ledger.signatures import bucketed_bytes, group_bytes, statement_signatures
from meshwright.cost_models.memory.body import body_memory
from meshwright.cost_models.memory.liveness import pass_memory
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import BodyProgram, Move, Program
from meshwright.ir.sharding.layouts import CONTIGUOUS, Layout, Padded, Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, Shard
from meshwright.ir.sharding.reshard import Step
from tests.cost_models.programs import DENSE, SHAPES, program

PLAIN = Degrees(dp=2, microbatches=2)
GATHERED = Degrees(dp=2, tp=2, zero=3, recompute="full", microbatches=2)
DENSE_ONES = (
    PLAIN,
    Degrees(dp=2, tp=2, sequence_parallel=True, microbatches=2),
    Degrees(dp=2, tp=4, microbatches=2),
    Degrees(dp=2, cp=2, zigzag=True, microbatches=2),
    Degrees(dp=2, cp=2, tp=2, context="ring", zigzag=True, microbatches=2),
    Degrees(dp=2, tp=2, sequence_parallel=True, zero=2, microbatches=2),
    GATHERED,
)
"""Configurations that are priced one after another, with as many copies, with twice and with four times as many."""

CONFIGURATIONS = {
    "dense": DENSE_ONES,
    "moe": (
        *DENSE_ONES,
        Degrees(dp=4, tp=2, ep=2, zero=1, recompute="selective", microbatches=2),
        Degrees(dp=4, ep=4, recompute="selective", microbatches=2),
    ),
}


def blocks(made: Program) -> BodyProgram:
    return max(made.bodies, key=lambda body: len(body.backward))


def copies(degrees: Degrees) -> list[Degrees]:
    return [degrees, *(replace(degrees, dp=times * degrees.dp) for times in (2, 4))]


@pytest.mark.parametrize("stack", ["torch", "megatron", "torch-compile"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_programs_share_is_what_each_would_give_by_itself(shape: str, stack: str) -> None:
    known: Known = {}
    asked = 0
    for degrees in (each for one in CONFIGURATIONS[shape] for each in copies(one)):
        made = program(SHAPES[shape], degrees, stack=stack, imbalance=1.25 if shape == "moe" else 1.0)
        assert made.workload is not None
        workload = replace(made.workload, global_batch=64)
        for body in made.bodies:
            shared = ledger(body, workload, accumulates=True, known=known)
            alone = ledger(body, workload, accumulates=True)
            assert shared == alone
            for phase, other in zip(shared.phases.values(), alone.phases.values(), strict=True):
                assert [*phase.kernels, *phase.transmissions] == [*other.kernels, *other.transmissions], "order counts"
            assert body_memory(body, workload, True).passes == pass_memory(body, workload, True)
            asked += 6
    assert len(known) < 0.6 * asked


def test_more_copies_at_a_larger_batch_are_of_the_same_form() -> None:
    first, *others = (blocks(program(DENSE, degrees)) for degrees in copies(GATHERED))
    for body in others:
        assert body.mesh != first.mesh
        assert statement_signatures(body.forward, body) == statement_signatures(first.forward, first)
        assert statement_signatures(body.backward, body) == statement_signatures(first.backward, first)


@pytest.mark.parametrize(
    "other",
    [
        Degrees(dp=2, tp=4, cp=2, zigzag=True),
        Degrees(dp=2, tp=2, cp=4, zigzag=True),
        Degrees(dp=2, tp=2, cp=2),
        Degrees(dp=2, tp=2, cp=2, zigzag=True, context="ring"),
        Degrees(dp=2, tp=2, cp=2, zigzag=True, sequence_parallel=True),
    ],
    ids=str,
)
def test_what_differs_on_a_rank_is_of_another_form(other: Degrees) -> None:
    one = blocks(program(DENSE, Degrees(dp=2, tp=2, cp=2, zigzag=True)))
    body = blocks(program(DENSE, other))
    assert statement_signatures(body.forward, body) != statement_signatures(one.forward, one)


def test_a_larger_micro_batch_is_of_another_form() -> None:
    one, body = (blocks(program(DENSE, Degrees(dp=2), mbs=mbs)) for mbs in (1, 2))
    assert set(statement_signatures(body.forward, body)).isdisjoint(statement_signatures(one.forward, one))


def cut(*shards: Shard) -> Placement:
    return Placement((shards,))


def flat(before: Placement, after: Placement, elements: tuple[int, int], dtype: str = "f32") -> Any:
    """A body of one move from x to y, of so many elements on a rank, four bytes each."""
    locals_ = {
        name: SimpleNamespace(type=SimpleNamespace(dtype=dtype), placement=placement)
        for name, placement in (("x", before), ("y", after))
    }
    counts = dict(zip("xy", elements, strict=True))
    nbytes = {name: 4 * count for name, count in counts.items()}
    return SimpleNamespace(mesh=Mesh.parse("dp=2 tp=4"), locals=locals_, elements=counts, nbytes=nbytes)


def move(kind: str, *axes: str, layout: Layout = CONTIGUOUS, reason: str = "value") -> Move:
    return Move(Step(kind, axes, 0, layout=layout), "x", "y", reason)


def test_the_whole_tensor_of_a_group() -> None:
    """A gather yields the shards of all; others take what they are given. Shards that are to differ are padded to the
    largest, of those that move: of 3 and 5 both are 5, and 6, 8, 6 and 12 are 12 each."""
    whole, two, four = Placement.replicated(1), Uneven((3, 5)), Uneven((6, 8, 6, 12))
    nearly = Uneven((4, 5))
    table: list[tuple[Move, Placement, Placement, tuple[int, int], float]] = [
        (move("all_gather", "dp"), cut(Shard("dp")), whole, (10, 20), 80),
        (move("all_gather", "tp"), cut(Shard("tp")), whole, (10, 40), 160),
        (move("all_gather", "dp", "tp"), cut(Shard("dp"), Shard("tp")), whole, (10, 80), 320),
        (move("all_gather", "dp"), cut(Shard("dp", two)), whole, (3, 8), 4 * 10),
        (move("all_gather", "tp"), cut(Shard("tp", four)), whole, (6, 32), 4 * 48),
        # pieces of a flat buffer, cut where it must be
        (move("all_gather", "dp"), cut(Shard("dp", nearly)), whole, (4, 9), 4 * 8),
        # cut along another axis, which does not move
        (move("all_gather", "tp"), cut(Shard("dp", two), Shard("tp")), whole, (3, 12), 4 * 12),
        (move("all_reduce", "dp"), whole, whole, (10, 10), 40),
        (move("all_to_all", "dp"), cut(Shard("dp", two)), whole, (3, 3), 12),
        (move("reduce_scatter", "dp"), whole, cut(Shard("dp")), (10, 5), 40),
        (move("reduce_scatter", "dp"), whole, cut(Shard("dp", two)), (8, 3), 4 * 10),
        (move("reduce_scatter", "tp"), whole, cut(Shard("tp", four)), (32, 6), 4 * 48),
        (move("reduce_scatter", "dp"), whole, cut(Shard("dp", nearly)), (9, 4), 4 * 9),
        (move("reduce_scatter", "tp"), whole, cut(Shard("dp", two), Shard("tp")), (8, 2), 4 * 8),
        # four runs of three hold ten
        (move("reduce_scatter", "tp", layout=Padded((3,))), whole, cut(Shard("tp", Padded((3,)))), (10, 3), 4 * 12),
    ]
    for one, before, after, elements, expected in table:
        assert group_bytes(one, flat(before, after, elements)) == pytest.approx(expected), (str(one), str(before))


def test_parameters_and_their_gradients_move_together() -> None:
    body = flat(cut(Shard("dp")), Placement.replicated(1), (10, 20), "bf16")
    reasons = ("value", "parameter", "gradient", "sync", "update")
    moves = [move(kind, "dp", reason=reason) for kind in ("all_gather", "all_reduce") for reason in reasons]
    assert bucketed_bytes(moves, body) == ((80.0, "bf16"),) * 3 + ((40.0, "bf16"),) * 3
