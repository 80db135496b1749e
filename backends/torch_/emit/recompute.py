"""What is computed again in the backward pass, by `torch.utils.checkpoint`: whole blocks, or modules inside of them.

A module runs again if all that is made in it is computed again. Together such modules must make all that is: what is
chosen operator by operator, across modules, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.program import Move


@dataclass(frozen=True, slots=True)
class Again:
    """Modules of a body that run again."""

    piece: Piece
    paths: tuple[str, ...]
    """Relative to the instance; empty for the instance itself."""
    start: int = 0
    stop: int | None = None
    """Which of the instances in a stage."""

    @property
    def which(self) -> str:
        """The part of a stage's instances, as Python says it."""
        return f"[{self.start or ''}:{self.stop or ''}]" if self.start or self.stop else ""


def recomputed(subject: Subject) -> tuple[Again, ...]:
    """The modules that run again, by body."""
    stacks = [piece.instances().before for piece in subject.pieces if piece.repeated]
    blocks = f"{stacks[0]}*" if stacks else "*"
    found = []
    for piece in subject.pieces:
        first = piece.ahead.first if piece.ahead is not None else 0
        for plan, start, stop in ((piece.ahead, 0, first), (piece.plan, first, None)):
            again = Again(piece, tuple(_modules(piece, plan, blocks)), start, stop) if plan is not None else None
            if plan is not None and again is not None and again.paths:
                _check_exchanges(subject, again, plan, blocks)
                found.append(again)
    return tuple(found)


def _check_exchanges(subject: Subject, again: Again, plan: BodyPlan, blocks: str) -> None:
    """Must: nothing is exchanged again between two modules that run again: that lies outside of both."""
    graph, body = again.piece.graph, subject.program.body(plan.name)
    made = {value: op.module for op in graph.ops for value in op.results}
    for one in body.backward:
        if again.paths == ("",) or not isinstance(one, Move) or one.reason != "value" or one.step.free:
            continue
        value = one.operand.partition("@")[0]
        users = [made.get(value, ""), *(graph.ops[index].module for index, _ in graph.readers.get(value, ()))]
        if not any(all(inside(module, path) for module in users) for path in again.paths):
            raise _refuse(body.name, blocks, f"exchanging %{value} again between {' and '.join(dict.fromkeys(users))}")


def _modules(piece: Piece, plan: BodyPlan, blocks: str) -> Iterator[str]:
    made = {value: op.module for op in piece.graph.ops for value in op.results}
    chosen = made.keys() & set(plan.recompute)
    if not plan.recompute:
        return
    if piece.repeated and len(chosen) == len(made):
        yield ""
        return
    left = {made[value] for value in made.keys() - chosen}
    parts = {module for value in chosen for module in _around(made[value])}
    whole = {path for path in parts if not any(inside(module, path) for module in left)}
    outermost = sorted(path for path in whole if not any(inside(path, other) for other in whole - {path}))
    covered = sum(any(inside(made[value], path) for path in outermost) for value in chosen)
    if not piece.repeated and not outermost:
        raise _refuse(plan.name, blocks, "computing again what stands outside of blocks")
    if covered < len(chosen):
        shown = f"{len(chosen) - covered} of {len(chosen)} values are made in modules that do more"
        raise _refuse(plan.name, blocks, f"computing a part of a module again ({shown})")
    yield from outermost


def _around(module: str) -> Iterator[str]:
    """A module and all that it is in, but for the instance itself."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def inside(module: str, path: str) -> bool:
    """Whether a module is this one, or in it."""
    return module == path or module.startswith(f"{path}.")


def _refuse(name: str, blocks: str, what: str) -> EmissionRecompute:
    return EmissionRecompute(
        place=f"plan {name}",
        cause=f"{what} is not emitted yet",
        fix=f"plan with --fix recompute=none, or pin whole blocks or modules, as in --fix '{blocks}:recompute=on'",
    )
