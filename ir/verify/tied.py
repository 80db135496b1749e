"""Verification of parameters that several body programs hold: their gradients meet, and what is lent is lent in
time."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.errors import TieMissing
from meshwright.ir.graph.fold import Call, joined
from meshwright.ir.program.program import BodyProgram, ParamSlot, Program
from meshwright.ir.program.ties import lies
from meshwright.ir.sharding.placement import Placement


def verify_ties(program: Program, calls: Sequence[Call]) -> None:
    stage_of = {number: index for index, stage in enumerate(program.stages) for number, _ in stage.calls()}
    holders: dict[str, list[tuple[int, int]]] = {}
    for number, call in enumerate(calls):
        for param in call.body.graph.params:
            if param.requires_grad and not param.buffer:
                holders.setdefault(joined(call.path, param.path), []).append((stage_of[number], number))
    expected = {path: tuple(held) for path, held in holders.items() if len(held) > 1}
    found = {tie.path: tie.holders for tie in program.ties}
    for path in dict.fromkeys((*expected, *found)):
        if found.get(path) != expected.get(path):
            raise TieMissing(
                place=path,
                cause=f"gradients are added over {found.get(path)}",
                fix=f"add them over {expected.get(path)}",
            )
    _verify_left(program, calls)
    _verify_lent(program, calls)


def _verify_left(program: Program, calls: Sequence[Call]) -> None:
    """Check that a gradient is left to the first call on the same ranks, which holds the parameter in the same way, and
    reduces."""
    first: dict[tuple[tuple[int, ...], str], tuple[BodyProgram, ParamSlot]] = {}
    programs = {number: (stage.ranks, program.body(name)) for stage in program.stages for number, name in stage.calls()}
    for number, (ranks, body) in sorted(programs.items()):
        for slot in (slot for slot in body.params if slot.grad is not None and slot.borrowed is None):
            path = joined(calls[number].path, slot.path)
            before, owner = first.setdefault((ranks, path), (body, slot))
            if slot.synced is None and (owner.synced is None or lies(before, owner) != lies(body, slot)):
                raise TieMissing(
                    place=path,
                    cause=f"call {number} leaves its gradient to none that holds it in the same way and reduces it",
                    fix="leave it to the first call on the same ranks, or reduce it",
                )


def _verify_lent(program: Program, calls: Sequence[Call]) -> None:
    """Check that what a call borrows is lent by the latest call of that body before it in its stage, of the same
    parameter, in the placement in which it is read, and that its gradient comes back as it is expected; what is lent is
    borrowed."""
    for stage in program.stages:
        lent: dict[tuple[str, str], tuple[BodyProgram, ParamSlot]] = {}
        waiting: dict[tuple[str, str], int] = {}
        for number, name in stage.calls():
            body = program.body(name)
            for slot in body.params:
                path = joined(calls[number].path, slot.path)
                if slot.borrowed is not None:
                    lender = lent.get((slot.borrowed, path))
                    if lender is None or _ends_of(*lender) != _ends_of(body, slot):
                        raise TieMissing(
                            place=path,
                            cause=f"call {number} borrows it from {slot.borrowed}, which does not lend it so",
                            fix="lend it before in the same stage, in one placement, or gather it",
                        )
                    waiting.pop((slot.borrowed, path), None)
                if slot.lent is not None:
                    lent[body.body, path], waiting[body.body, path] = (body, slot), number
        for (_, path), number in waiting.items():
            raise TieMissing(place=path, cause=f"call {number} lends it to none", fix="borrow it, or keep it")


def _ends_of(body: BodyProgram, slot: ParamSlot) -> tuple[Placement, Placement | None]:
    """The placement of a shared parameter, and of its gradient where it goes back or is awaited."""
    grad = slot.lent or slot.grad
    return body.locals[slot.value].placement, body.locals[grad].placement if grad is not None else None
