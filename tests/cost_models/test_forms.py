"""Forms: what is derived from one program and used for another must be what that other one would give by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost_models.body_memory import body_memory
from meshwright.cost_models.forms import forms
from meshwright.cost_models.ledger import Known, ledger
from meshwright.cost_models.liveness import pass_memory
from meshwright.ir.names import Degrees
from meshwright.ir.program import BodyProgram, Program
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
        assert forms(body.forward, body) == forms(first.forward, first)
        assert forms(body.backward, body) == forms(first.backward, first)


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
    assert forms(body.forward, body) != forms(one.forward, one)


def test_a_larger_micro_batch_is_of_another_form() -> None:
    one, body = (blocks(program(DENSE, Degrees(dp=2), mbs=mbs)) for mbs in (1, 2))
    assert set(forms(body.forward, body)).isdisjoint(forms(one.forward, one))
