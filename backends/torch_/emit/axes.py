"""What every mesh axis is for: it cuts the batch (data), the sequence (context), or the insides of operators (tensor).

data      all operators take their own sequences; nothing but scalars, statistics of the batch and gradients of
          parameters is exchanged
context   all operators take their own tokens, and attention exchanges; `context` says how
tensor    modules are cut; `styles` says how

An axis that cuts the batch, or sequences, may cut experts apart as well: their tokens are exchanged then (`experts`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.backends.torch_.emit.experts import exchanged
from meshwright.backends.torch_.emit.statistics import moments_in
from meshwright.backends.torch_.emit.subject import Subject
from meshwright.ir.errors import EmissionAxis
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.words import uses_of
from meshwright.ir.program import BodyProgram, Move
from meshwright.ir.same import Same

TENSOR = {"tp", "tp+sp"}
EXPERTS = "+ep"
"""What the name of an axis ends with that cuts experts apart, too."""
CONTEXT = {"cp", "cp (ulysses)", "cp (ring)"}
BESIDE = {"cp", "-"}
"""What a tensor axis may be called in bodies that have nothing but tokens to cut, an embedding for instance."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a mesh by use."""

    batch: tuple[str, ...]
    """All that cut the batch, major to minor."""
    tensor: str | None
    """The one that cuts modules, if there is one."""
    context: str | None = None
    """The one that cuts sequences."""
    experts: tuple[str, ...] = ()
    """Those of these that cut experts apart, in the order of the mesh."""

    @property
    def data(self) -> str | None:
        """What the script calls the axes that cut the batch: several are made one (`Parts.flattened`)."""
        return joined(self.batch) or None

    @property
    def copies(self) -> tuple[str, ...]:
        """All along which ranks compute with the same parameters, major to minor."""
        return (*self.batch, *([self.context] if self.context is not None else []))

    @property
    def copied(self) -> str | None:
        """What the script calls those."""
        return joined(self.copies) or None


def joined(axes: Sequence[str]) -> str:
    """What several axes that are made one are called."""
    return "_".join(axes)


def axes_of(subject: Subject) -> Axes:
    """What the axes of a plan are for."""
    data, tensor, context, experts = [], [], [], []
    for axis in subject.mesh.names:
        names = _names(subject, axis)
        if names <= {"dp", "ep"}:
            _only_scalars(subject, axis)
            data.append(axis)
            experts += [axis] * ("ep" in names)
        elif (outside := {name.removesuffix(EXPERTS) for name in names}) <= CONTEXT | {"-"} and outside & CONTEXT:
            context.append(axis)
            experts += [axis] * any(name.endswith(EXPERTS) for name in names)
        elif names <= (cutting := TENSOR | set(filter(_inner, names))) | BESIDE and names & cutting:
            tensor.append(axis)
        else:
            shown = " and ".join(sorted(names))
            raise EmissionAxis(
                place=f"axis {axis}", cause=f"it is used as {shown}, which is not emitted yet", ways=_without(names)
            )
    if len(tensor) > 1:
        raise EmissionAxis(
            place=f"axes {' and '.join(tensor)}",
            cause="they are all tensor parallel, and one such axis is emitted so far",
            ways=("--fix tp=1",),
        )
    if len(context) > 1:
        raise EmissionAxis(
            place=f"axes {' and '.join(context)}",
            cause="they all cut sequences, and one such axis is emitted so far",
            ways=("--forbid shard",),
        )
    return Axes(
        tuple(data),
        tensor=tensor[0] if tensor else None,
        context=context[0] if context else None,
        experts=tuple(experts),
    )


def _inner(name: str) -> bool:
    """Whether an axis cuts something that has no name of its own: the channels of convolutions."""
    return name.removesuffix(EXPERTS) not in {"dp", "ep"} | TENSOR | CONTEXT | BESIDE


def _names(subject: Subject, axis: str) -> set[str]:
    plans = (piece.plan for piece in subject.pieces)
    return set(uses_of(plans, subject.fold, loops_of(Same(subject.fold)), axis).values())


def _only_scalars(subject: Subject, axis: str) -> None:
    """Must: over a data axis no value of more than one element is exchanged, but statistics of the batch."""
    sent = {
        plan.name: exchanged(piece) | moments_in(piece.graph)
        for piece in subject.pieces
        for plan in (piece.plan, piece.ahead)
        if plan
    }
    for plan, body in subject.bodies.items():
        for statement in (*body.forward, *body.backward):
            if _exchanges(statement, body, axis, sent[plan]):
                raise EmissionAxis(
                    place=f"plan {plan}, {statement}",
                    cause=f"axis {axis} is data parallel, and this body exchanges values over it",
                )


def _exchanges(statement: object, body: BodyProgram, axis: str, sent: set[str]) -> bool:
    return (
        isinstance(statement, Move)
        and _value(statement) not in sent
        and statement.reason in ("value", "gradient")
        and axis in statement.step.axes
        and body.elements[statement.operand] > 1
    )


def _value(move: Move) -> str:
    """The value that is moved, or whose gradient is."""
    value = move.operand.partition("@")[0]
    return value.removeprefix("d") if move.reason == "gradient" else value


def _without(names: set[str]) -> tuple[str, ...]:
    """The degrees that an axis is used for, each switched off."""
    used = {part for name in names for part in re.split(r"\W+", name)}
    return tuple(f"--fix {degree}=1" for degree in ("tp", "cp", "ep") if degree in used)
