"""Parameters that several calls on the same ranks hold: a rank has one tensor of each, so gradients are added before
they are reduced, and the optimizer steps once.

The first call on those ranks reduces for all that hold the parameter as it does; body programs of the others leave
their gradients as they are. A call that holds it otherwise (whole, beside shards of the vocabulary) has a tensor of its
own, and reduces for itself. So does each unit of torch's `fully_shard`: of its shards a rank has as many as units, and
of what units are there to cast, though nothing is sharded, every stage has its own.

Over stages, gradients are summed once these have reduced them: by an all-reduce between ranks that stand alike, or, in
a pipeline of different meshes, by messages, of which every rank gets of the other stage's gradient what it has of its
own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from meshwright.ir.errors import PlanRepeated
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.crossing import End, messages
from meshwright.ir.program.program import BodyProgram, ParamSlot, Program, Tie
from meshwright.ir.program.units import ALONE, UNITS, Part, apart, shared, slot_of
from meshwright.ir.target.workload import Workload

Ranks = tuple[int, ...]
NONE = frozenset[str]()


def casts_in_units(workload: Workload | None) -> bool:
    """Whether units of `fully_shard` cast parameters."""
    return workload is not None and workload.stack.style in UNITS and workload.states.casts


def with_added(
    fold: Fold,
    bodies: Mapping[str, BodyProgram],
    named: Sequence[Sequence[str]],
    on: Sequence[tuple[int, Ranks]],
    *,
    casts: bool = False,
) -> tuple[dict[str, BodyProgram], list[list[str]]]:
    """The body program of every call of every stage, given those that reduce all gradients for themselves; `on` gives
    each stage's first call, and its ranks, `casts` whether units of stages cast parameters. Where only some calls of a
    program differ, theirs is named `.tied`."""
    if not fold.tied:
        return dict(bodies), [list(names) for names in named]
    left: dict[Ranks, dict[int, frozenset[str]]] = {}
    for ranks in dict.fromkeys(ranks for _, ranks in on):
        own = [(names, first) for names, (first, where) in zip(named, on, strict=True) if where == ranks]
        held = {first + at: (casts and first, name) for names, first in own for at, name in enumerate(names)}
        left[ranks] = added(fold, bodies, held)
    calls: list[list[tuple[str, Part]]] = []
    for names, (first, ranks) in zip(named, on, strict=True):
        parts = shared(fold, bodies, dict(enumerate(names, first)))
        numbered = ((name, number) for number, name in enumerate(names, first))
        calls.append([(n, replace(parts.get(at, ALONE), left=left[ranks].get(at, NONE))) for n, at in numbered])
    kinds: dict[str, list[Part]] = {}
    for name, part in dict.fromkeys(call for own in calls for call in own):
        kinds.setdefault(name, []).append(part)
    made: dict[str, BodyProgram] = {}
    called: dict[tuple[str, Part], str] = {}
    for name, several in kinds.items():
        for at, part in enumerate(several):
            alone = len(several) == 1 or part == ALONE
            called[name, part] = new = name if alone else f"{name}.tied{at if at > 1 else ''}"
            if new != name and new in bodies:
                fix = "name the plan otherwise"
                raise PlanRepeated(place=f"plan {new}", cause="a program for tied parameters is named so", fix=fix)
            made[new] = part.of(bodies[name], new)
    return made, [[called[call] for call in own] for own in calls]


def added(
    fold: Fold, bodies: Mapping[str, BodyProgram], held: Mapping[int, tuple[Hashable, str]]
) -> dict[int, frozenset[str]]:
    """Parameters whose gradients are added to an earlier call's, by call. `held` gives the calls that may share one
    tensor of a parameter, those of the same place, and their programs."""
    found: dict[int, frozenset[str]] = {}
    for _, holders in fold.tied:
        first: dict[Hashable, tuple[Any, ...]] = {}
        for number, path in holders:
            if number not in held:
                continue
            place, name = held[number]
            slot = slot_of(bodies[name], path)
            own = lies(bodies[name], slot)
            if apart(bodies[name], slot):
                continue
            if place not in first:
                first[place] = own
            elif first[place] == own:
                found[number] = found.get(number, frozenset()) | {path}
    return found


def ends_of(program: Program, tie: Tie) -> dict[int, tuple[tuple[int, ...], End]]:
    """The placements of a parameter on the groups of ranks that hold it: by the first stage of each its shape, and the
    placement of its gradient as these ranks have reduced it."""
    found: dict[Ranks, tuple[int, tuple[tuple[int, ...], End]]] = {}
    for stage, call in tie.holders:
        body = program.body(dict(program.stages[stage].calls())[call])
        held = [slot for slot in body.params if slot.grad and f".{tie.path}".endswith(f".{slot.path}")]
        slot = max(held, key=lambda slot: len(slot.path))
        local = body.locals[slot.synced or slot.grad or ""]
        end = local.type.shape, End(body.mesh, local.placement)
        found.setdefault(program.stages[stage].ranks, (stage, end))
    return dict(found.values())


def exchanged(program: Program, tie: Tie) -> Iterator[tuple[tuple[int, int], tuple[int, int], int]]:
    """Messages between stages of different meshes with the gradient of a parameter, so that each has the sum: from a
    stage to another, from a rank of it to one of the other, so many elements."""
    for (one, (shape, left)), (other, (_, arrives)) in permutations(ends_of(program, tie).items(), 2):
        for sender, receiver, elements in messages(shape, left, arrives):
            yield (one, other), (sender, receiver), elements


def lies(body: BodyProgram, slot: ParamSlot) -> tuple[Any, ...]:
    """The placement of a parameter in a call, as a key: calls that agree in it share one tensor."""
    grad = slot.grad and body.locals[slot.grad].placement
    return body.mesh, body.locals[slot.stored].placement, grad, slot.grads, slot.optimizer
