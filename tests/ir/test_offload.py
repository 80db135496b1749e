"""What may wait on the host: the words, where they lead in a program, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import OffloadImpossible, PlanRepeated
from meshwright.ir.names import Degrees, check, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Program
from meshwright.ir.program.reading import parse_program
from meshwright.ir.program.text import program_text
from meshwright.ir.verify.meaning import verify_meaning
from meshwright.ir.verify.programs import verify_body, verify_program
from tests.llama_block import model


@given(st.booleans(), st.booleans(), st.integers(1, 10**9 - 1) | st.just(0))
def test_words_read_back(optimizer: bool, activations: bool, blocks: int) -> None:
    offload = Offload(optimizer, activations, blocks if activations else 0)
    assert Offload.parse(str(offload)) == Offload.of(offload.words) == offload


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("optimiser", "did you mean 'optimizer'?"),
        ("weights", "activations:N"),
        ("", "''"),
        ("optimizer:2", "optimizer:2"),
        ("activations:", "activations:N"),
        ("activations:0", "activations:0"),
        ("activations:-1", "activations:N"),
        ("activations:some", "activations:N"),
        ("optimizer+optimizer", "give it once"),
        ("activations+activations:2", "give it once"),
        ("none+optimizer", "'none'"),
    ],
)
def test_nonsense_is_refused(text: str, told: str) -> None:
    with pytest.raises(OffloadImpossible) as refusal:
        Offload.parse(text)
    assert told in str(refusal.value)


def test_blocks_without_activations_are_refused() -> None:
    for blocks, activations in ((2, False), (-1, True)):
        with pytest.raises(OffloadImpossible):
            Offload(activations=activations, blocks=blocks)


def lowered(degrees: Degrees) -> Program:
    fold = model()
    made = lower(fold, template(fold, degrees))
    verify_program(made)
    verify_meaning(made, fold)
    assert parse_program(program_text(made)) == made
    return made


@pytest.mark.parametrize("blocks", [1, 2, 3, 9])
def test_the_first_blocks_of_every_stage_wait(blocks: int) -> None:
    made = lowered(Degrees(pp=2, microbatches=2, split="spread", offload=f"activations:{blocks}"))
    segments = [call.segment for call in model().calls()]
    for stage in made.stages:
        waits = [any(kept.host for kept in made.body(name).kept) for _, name in stage.calls()]
        layers = [not model().segments[at].glue for at in segments[stage.first : stage.last]]
        expected = [layer and sum(layers[: index + 1]) <= blocks for index, layer in enumerate(layers)]
        assert waits == expected


def test_parameters_and_tables_stay() -> None:
    """Of what a block keeps: gathered parameters do not travel, nor what all blocks share."""
    made = lowered(Degrees(dp=2, zero=3, regather=False, offload="activations"))
    body = next(body for body in made.bodies if body.offloads)
    weights = {slot.value for slot in body.params}
    tables = {name for name, grad in zip(body.inputs, body.input_grads, strict=True) if grad is None}
    stays = {kept.name for kept in body.kept if not kept.host}
    assert weights & stays
    assert tables & {kept.name for kept in body.kept} <= stays
    assert stays <= weights | tables


def test_every_trained_parameter_may_step_on_the_host() -> None:
    made = lowered(Degrees(dp=2, zero=1, offload="optimizer"))
    assert all(slot.host == (slot.grad is not None) for body in made.bodies for slot in body.params)
    assert not any(kept.host for body in made.bodies for kept in body.kept)


def test_offload_is_all_that_differs() -> None:
    plain, there = (lowered(Degrees(dp=2, offload=offload)) for offload in ("none", "optimizer+activations"))
    back = tuple(
        replace(
            body,
            kept=tuple(replace(kept, host=False) for kept in body.kept),
            params=tuple(replace(slot, host=False) for slot in body.params),
        )
        for body in there.bodies
    )
    assert replace(there, bodies=back) == plain


def test_a_parameter_that_is_not_trained_cannot_step_on_the_host() -> None:
    body = next(body for body in lowered(Degrees()).bodies if body.params)
    frozen = replace(body.params[0], grad=None, synced=None, updated=None, published=None, host=True)
    with pytest.raises(OffloadImpossible, match="not trained"):
        verify_body(replace(body, params=(frozen, *body.params[1:])))


def test_a_plan_of_the_name_that_offload_gives_is_refused() -> None:
    fold = model()
    decisions = template(fold, Degrees(offload="activations:1"))
    twin = replace(decisions.plan["block"], name="block.host")
    stages = tuple(replace(stage, plans=(*stage.plans, twin.name)) for stage in decisions.stages)
    with pytest.raises(PlanRepeated, match="offload"):
        lower(fold, replace(decisions, plans=(*decisions.plans, twin), stages=stages))


def test_more_blocks_than_a_stage_has_are_refused() -> None:
    fold = model()
    layers = sum(segment.calls for segment in fold.segments if not segment.glue)
    batch = fold.body[fold.bodies[0].name].graph.types[fold.bodies[0].graph.inputs[0].value].shape[0]
    check(Degrees(offload=f"activations:{layers}"), fold, 1, batch)
    with pytest.raises(OffloadImpossible, match=f"activations:{layers}"):
        check(Degrees(offload=f"activations:{layers + 1}"), fold, 1, batch)
