"""Units of torch's `fully_shard`: a parameter that several calls of a stage read through one module is gathered once.

Outside of blocks a unit is what a module holds, and the model as a whole gathers what several calls read through one of
its modules. So the first such call *lends* what it gathered: later ones *borrow* the value, and return their gradients,
which are added to the first one's before they are scattered. A rank has one shard of such a parameter, gathers it once,
and scatters one gradient. The model keeps what it gathered until its backward pass ends: where anything is shared so,
nothing outside of blocks is gathered again, whatever plans say.

Calls share a parameter only where they compute with it in one placement, and leave its gradient in one. What two calls
read through different modules belongs to two units, of which each has a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeGuard

from meshwright.ir.graph.fold import Call, Fold
from meshwright.ir.graph.graph import owners_in
from meshwright.ir.program.kept import local_bytes
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Kept,
    Move,
    ParamSlot,
    Program,
    Statement,
    operands_of,
    results_of,
)
from meshwright.ir.same import Same

UNITS = ("eager", "compiled")
"""The styles of torch, which shards unit by unit."""


@dataclass(frozen=True, slots=True)
class Part:
    """The relations of a call to others on its ranks: paths of parameters that it lends, of those that it borrows, with
    the body that lends them, and of those whose gradients it leaves for another call to reduce; `keeps`: it gathers
    nothing again."""

    left: frozenset[str] = frozenset()
    lent: frozenset[str] = frozenset()
    borrowed: frozenset[tuple[str, str]] = frozenset()
    keeps: bool = False

    def of(self, body: BodyProgram, name: str) -> BodyProgram:
        """A body program with these relations, under a name; the same object every time."""
        return body if self == ALONE else _with_part(Same(body), name, self)


ALONE = Part()


@lru_cache(maxsize=64)
def _around(fold: Same[Fold]) -> tuple[tuple[str, tuple[tuple[int, str], ...]], ...]:
    """Trained parameters that several calls outside of blocks hold, with these calls and the module through which each
    reads it. A block is a unit itself, however often it runs."""
    calls = tuple(fold.of.calls())
    held = ((path, [number for number, _ in holders if not calls[number].path]) for path, holders in fold.of.tied)
    return tuple((path, tuple((at, _module(calls[at], path)) for at in own)) for path, own in held if len(own) > 1)


def _module(call: Call, path: str) -> str:
    graph = call.body.graph
    return owners_in(graph, next(param for param in graph.params if param.path == path))[0]


@lru_cache(maxsize=64)
def sharing(fold: Same[Fold]) -> frozenset[str]:
    """Bodies for which a stage gathers nothing again: those outside of blocks, if any of them may share."""
    read = (Counter(module for _, module in holders) for _, holders in _around(fold))
    some = any(most > 1 for counted in read for most in counted.values())
    return frozenset(call.body.name for call in fold.of.calls() if some and not call.path)


def shared(fold: Fold, bodies: Mapping[str, BodyProgram], held: Mapping[int, str]) -> dict[int, Part]:
    """Lending and borrowing among calls of one stage, by their numbers; `held` gives their programs."""
    calls, found = tuple(fold.calls()), dict[int, Part]()
    for path, holders in _around(Same(fold)):
        first: dict[tuple[Any, ...], int] = {}
        for number, module in (holder for holder in holders if holder[0] in held):
            body = bodies[held[number]]
            slot = slot_of(body, path)
            if not apart(body, slot):
                continue
            lender = first.setdefault((module, *computed(body, slot)), number)
            if lender != number:
                one, other = found.get(number, ALONE), found.get(lender, ALONE)
                found[number] = replace(one, borrowed=one.borrowed | {(path, calls[lender].body.name)})
                found[lender] = replace(other, lent=other.lent | {path})
    around = [number for number in held if not calls[number].path]
    return {number: replace(found.get(number, ALONE), keeps=True) for number in around} if found else {}


def unshared(program: Program, fold: Fold) -> str:
    """A parameter that several calls of a stage read through one module, and of which more than one has shards: they
    compute with it otherwise. Empty if there is none."""
    for path, holders in _around(Same(fold)):
        for stage in program.stages:
            bodies = {number: program.body(name) for number, name in stage.calls()}
            slots = ((module, bodies[at], slot_of(bodies[at], path)) for at, module in holders if at in bodies)
            units = Counter(module for module, body, slot in slots if apart(body, slot))
            if any(number > 1 for number in units.values()):
                return path
    return ""


def slot_of(body: BodyProgram, path: str) -> ParamSlot:
    return next(slot for slot in body.params if slot.path == path)


def apart(body: BodyProgram, slot: ParamSlot) -> bool:
    """Whether a unit of `fully_shard` holds shards of a parameter."""
    return body.kernels.style in UNITS and slot.optimizer != body.locals[slot.value].placement


def computed(body: BodyProgram, slot: ParamSlot) -> tuple[Any, ...]:
    """The form in which operators read a parameter and leave its gradient."""
    return body.mesh, body.locals[slot.value].placement, body.locals[_made(body, slot)].placement


@lru_cache(maxsize=1024)
def _with_part(of: Same[BodyProgram], name: str, part: Part) -> BodyProgram:
    body = replace(of.of, name=name)
    body = _gathered_once(body) if part.keeps else body
    for path in sorted(part.lent):
        body = _lending(body, slot_of(body, path))
    for path, lender in sorted(part.borrowed):
        body = _borrowing(body, slot_of(body, path), lender)
    return _leaving(body, part.left.union(path for path, _ in part.borrowed))


def _gathered_once(body: BodyProgram) -> BodyProgram:
    """A body program that keeps what it gathers."""
    again = {s.result for s in body.backward if isinstance(s, Move) and s.reason == "parameter"}
    backward = tuple(s for s in body.backward if again.isdisjoint(results_of(s)))
    read = again.intersection(name for s in backward for name in operands_of(s))
    kept = (Kept(name, local_bytes(body.locals[name], body.mesh)) for name in sorted(read))
    return replace(body, backward=backward, kept=(*body.kept, *kept)) if again else body


def _lending(body: BodyProgram, slot: ParamSlot) -> BodyProgram:
    """A body program to which others return gradients of a parameter, before its own sets out to where it is stored."""
    own, lent, total = _made(body, slot), f"d{slot.value}!lent", f"d{slot.value}!all"
    ahead = sum(not _sets_out(s) for s in body.backward)  # what sets out comes last
    backward = (*body.backward[:ahead], Add((own, lent), total), *body.backward[ahead:])
    grad, synced = (total if name == own else name for name in (slot.grad, slot.synced))
    return replace(
        body,
        locals={**body.locals, lent: body.locals[own], total: body.locals[own]},
        params=_with_slot(body, replace(slot, lent=lent, grad=grad, synced=synced)),
        backward=tuple(_read_from(s, own, total) for s in backward),
        sync=tuple(_read_from(s, own, total) for s in body.sync),
    )


def _borrowing(body: BodyProgram, slot: ParamSlot, lender: str) -> BodyProgram:
    """A body program that neither gathers a parameter nor scatters its gradient."""
    compute, grad = body.locals[slot.value].placement, _made(body, slot)
    gone = {*_chain(body.forward, slot.value), *_chain(body.backward, slot.grad or grad)} - {grad}
    held = replace(slot, stored=slot.value, grads=compute, optimizer=compute, grad=grad, borrowed=lender)
    names = (gone | {slot.stored}) - {slot.value}
    return replace(
        body,
        locals={name: local for name, local in body.locals.items() if name not in names},
        params=_with_slot(body, held),
        forward=tuple(s for s in body.forward if gone.isdisjoint(results_of(s))),
        backward=tuple(s for s in body.backward if gone.isdisjoint(results_of(s))),
        kept=tuple(one for one in body.kept if one.name != slot.value),
    )


def _leaving(body: BodyProgram, paths: frozenset[str]) -> BodyProgram:
    """A body program that leaves the gradients of some parameters for another call to reduce."""
    if not paths:
        return body
    others = [slot for slot in body.params if slot.path not in paths]
    sync = _leading(body.sync, [slot.synced for slot in others])
    publish = _leading(body.publish, [slot.published for slot in others])
    gone = {one for s in {*body.sync, *body.publish} - {*sync, *publish} for one in results_of(s)}
    gone |= {str(slot.updated) for slot in body.params if slot.path in paths}
    return replace(
        body,
        locals={own: local for own, local in body.locals.items() if own not in gone},
        params=tuple(
            replace(slot, synced=None, updated=None, published=None) if slot.path in paths else slot
            for slot in body.params
        ),
        sync=sync,
        publish=publish,
    )


def _with_slot(body: BodyProgram, slot: ParamSlot) -> tuple[ParamSlot, ...]:
    return tuple(slot if one.path == slot.path else one for one in body.params)


def _made(body: BodyProgram, slot: ParamSlot) -> str:
    """The gradient of a trained parameter as its operators leave it."""
    return _chain((s for s in body.backward if _sets_out(s)), slot.grad or "")[0]


def _chain(statements: Iterable[Statement], end: str) -> list[str]:
    """Names that lead to `end` through moves of parameters and their gradients."""
    before = {s.result: s.operand for s in statements if isinstance(s, Move) and s.reason in ("parameter", "sync")}
    names = [end]
    while names[0] in before:
        names.insert(0, before[names[0]])
    return names


def _sets_out(statement: Statement) -> TypeGuard[Move]:
    """Whether a gradient is being moved to where it is stored."""
    return isinstance(statement, Move) and statement.reason == "sync"


def _read_from(statement: Statement, own: str, total: str) -> Statement:
    """The route of a gradient, from its first form."""
    return replace(statement, operand=total) if _sets_out(statement) and statement.operand == own else statement


def _leading(statements: Sequence[Statement], ends: Sequence[str | None]) -> tuple[Statement, ...]:
    """Statements that lead to some names."""
    wanted, found = set(ends), list[Statement]()
    for statement in reversed(statements):
        if not wanted.isdisjoint(results_of(statement)):
            wanted.update(operands_of(statement))
            found.append(statement)
    return tuple(reversed(found))
