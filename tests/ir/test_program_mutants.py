"""Every statement of a program matters: a lowering that forgets or exchanges any one thing is caught.

The corruptions here are systematic. Each mutant of a body program is either refused by the verifiers, or computes the
same as before; the second half is shown by executing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.backends.torch_.verify.interpreted.compare import program_differences, random_values
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.text import graph_text
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Move,
    Ring,
    Statement,
    operands_of,
    results_of,
)
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.verify.meaning import verify_body_meaning, verify_meaning
from meshwright.ir.verify.programs import verify_body
from tests.llama_block import model
from tests.random_graphs import MESHES, random_graph, random_plan

FOLD = model(tied=True)
LISTS = ("forward", "backward", "sync", "publish")
PROGRAMS = {
    "tp sp pp zero-3": lower(
        FOLD,
        template(FOLD, Degrees(dp=2, tp=2, pp=2, sequence_parallel=True, zero=3, schedule="1f1b", microbatches=2)),
    ),
    "cp ring zigzag": lower(FOLD, template(FOLD, Degrees(cp=2, context="ring", zigzag=True, zero=1))),
    "tied, zero-3": lower(FOLD, template(FOLD, Degrees(dp=2, tp=2, zero=3))),
    "recompute": lower(FOLD, template(FOLD, Degrees(dp=2, tp=2, recompute="full"))),
}


def mutants(body: BodyProgram) -> Iterator[tuple[str, BodyProgram]]:
    """The body program with one thing changed: a statement dropped; a move skipped; a term or a wanted gradient left
    out; two operands exchanged; a name that lies elsewhere."""
    for title in LISTS:
        statements: tuple[Statement, ...] = getattr(body, title)
        for at, statement in enumerate(statements):

            def put(*new: Statement, title: str = title, at: int = at, old: Any = statements) -> BodyProgram:
                return replace(body, **{title: (*old[:at], *new, *old[at + 1 :])})

            if title != "backward" or not superfluous(body, statement):
                yield f"{title}: drop {statement}", put()
            if isinstance(statement, Move):
                yield f"{title}: skip {statement}", skipping(body, statement)
            if isinstance(statement, Add):
                for name in statement.operands:
                    rest = tuple(other for other in statement.operands if other != name)
                    yield f"{title}: leave %{name} out of {statement}", put(replace(statement, operands=rest))
            if isinstance(statement, Gradient):
                for slot in statement.wanted:
                    kept = [(w, r) for w, r in zip(statement.wanted, statement.results, strict=True) if w != slot]
                    changed = replace(statement, wanted=tuple(w for w, _ in kept), results=tuple(r for _, r in kept))
                    yield f"{title}: no gradient of operand {slot} in {statement}", put(changed)
            if isinstance(statement, Compute) and len(set(statement.operands)) > 1:
                yield f"{title}: exchange in {statement}", put(replace(statement, operands=statement.operands[::-1]))
    for name, local in body.locals.items():
        for axis in local.placement.axes[:1]:
            moved = Placement(
                tuple(tuple(shard for shard in dim if shard.axis != axis) for dim in local.placement.dims),
                tuple(partial for partial in local.placement.partial if partial.axis != axis),
            )
            yield f"%{name} as {moved}", replace(body, locals={**body.locals, name: replace(local, placement=moved)})


def superfluous(body: BodyProgram, statement: Statement) -> bool:
    """Whether a value is computed again although no gradient needs it: plans may ask for that, and some do."""
    results = set(results_of(statement))
    if not results <= {name for one in body.forward for name in results_of(one)}:
        return False
    needed: set[str] = set()
    for one in body.backward:
        if isinstance(one, (Gradient, Ring)) and one.wanted:
            for device in ("cpu", "cuda"):
                for save in infer(one.signature).saved(device, one.wanted):
                    if save.what in ("operand", "result"):
                        needed.add((one.operands if save.what == "operand" else one.outputs)[save.index])
        else:
            needed |= set(operands_of(one))
    return not results & needed


def skipping(body: BodyProgram, move: Move) -> BodyProgram:
    """The body program in which a move never happened: its operand stands for its result everywhere."""

    def name(old: Any) -> Any:
        return move.operand if old == move.result else old

    def statement(old: Any) -> Any:
        changes: dict[str, Any] = {
            key: tuple(map(name, getattr(old, key))) for key in ("operands", "outputs", "grads") if hasattr(old, key)
        }
        return replace(old, operand=name(old.operand)) if isinstance(old, Move) else replace(old, **changes)

    lists = {title: tuple(statement(s) for s in getattr(body, title) if s != move) for title in LISTS}
    slots = tuple(
        replace(slot, **{key: name(getattr(slot, key)) for key in ("value", "grad", "synced", "published")})
        for slot in body.params
    )
    ports = {key: tuple(map(name, getattr(body, key))) for key in ("outputs", "input_grads")}
    return replace(body, **lists, **ports, params=slots)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_statement_and_placement_matters(name: str) -> None:
    program, missed = PROGRAMS[name], []
    for body in program.bodies:
        graph = FOLD.body[body.body].graph
        for what, mutant in mutants(body):
            bodies = tuple(mutant if one is body else one for one in program.bodies)
            try:
                verify_body(mutant)
                verify_body_meaning(mutant, graph)
                verify_meaning(replace(program, bodies=bodies), FOLD)
            except MeshwrightError:
                continue
            missed.append(f"{body.name}: {what}")
    assert missed == []


@given(seed=st.integers(0, 2**32), mesh=st.sampled_from(MESHES))
@settings(max_examples=settings().max_examples // 5)
def test_what_is_let_pass_computes_the_same(seed: int, mesh: str) -> None:
    """Random bodies under random plans: a change that the verifiers do not object to changes no result."""
    random = Random(seed)
    graph = random_graph(random)
    body = lower_body(graph, random_plan(random, graph, Mesh.parse(mesh)), Mesh.parse(mesh), Lowering(device="cpu"))
    values = random_values(graph, seed % 1000)
    for what, mutant in mutants(body):
        try:
            verify_body(mutant)
            verify_body_meaning(mutant, graph)
        except MeshwrightError:
            continue
        if random.random() < 0.3:
            wrong = program_differences(graph, mutant, values)
            assert not wrong, "\n".join([what, str(wrong), graph_text(graph)])
