"""What every mesh axis is for: it cuts the batch (data), or it cuts inside of operators (tensor).

data     all operators take their own sequences; nothing but scalars and gradients of parameters is exchanged
tensor   modules are cut; `styles` says how
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.backends.torch_.emit.subject import Subject
from meshwright.ir.errors import EmissionAxis
from meshwright.ir.names import name_of
from meshwright.ir.names.cache import loops_of
from meshwright.ir.program import BodyProgram, Move
from meshwright.ir.same import Same

TENSOR = {"tp", "tp+sp"}
BESIDE = {"cp", "-"}
"""What a tensor axis may be called in bodies that have nothing but tokens to cut, an embedding for instance."""
ONE_WAY = "make the plan again with --target torch-gloo or torch-cuda: an axis has one use there"


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a mesh by use; None where there is none."""

    data: str | None
    tensor: str | None


def axes_of(subject: Subject) -> Axes:
    """What the axes of a plan are for."""
    data, tensor = [], []
    for axis in subject.mesh.names:
        names = _names(subject, axis)
        if names == {"dp"}:
            _only_scalars(subject, axis)
            data.append(axis)
        elif names <= TENSOR | BESIDE and names & TENSOR:
            tensor.append(axis)
        else:
            shown = " and ".join(sorted(names))
            raise EmissionAxis(
                place=f"axis {axis}", cause=f"it is used as {shown}, which is not emitted yet", fix=_instead(names)
            )
    for what, axes in (("data", data), ("tensor", tensor)):
        if len(axes) > 1:
            raise EmissionAxis(
                place=f"axes {' and '.join(axes)}",
                cause=f"they are all {what} parallel, and one such axis is emitted so far",
                fix="plan with --fix shard=0, which shards storage over all copies",
            )
    return Axes(*(axes[0] if axes else None for axes in (data, tensor)))


def _names(subject: Subject, axis: str) -> set[str]:
    found = loops_of(Same(subject.fold))
    return {name_of(piece.plan, piece.graph, found[piece.plan.body], axis) for piece in subject.pieces}


def _only_scalars(subject: Subject, axis: str) -> None:
    """Must: over a data axis no value of more than one element is exchanged."""
    for body in subject.program.bodies:
        for statement in (*body.forward, *body.backward):
            if _exchanges(statement, body, axis):
                raise EmissionAxis(
                    place=f"body {body.name}, {statement}",
                    cause=f"axis {axis} is data parallel, and this body exchanges values over it",
                    fix=ONE_WAY,
                )


def _exchanges(statement: object, body: BodyProgram, axis: str) -> bool:
    return (
        isinstance(statement, Move)
        and statement.reason in ("value", "gradient")
        and axis in statement.step.axes
        and body.elements[statement.operand] > 1
    )


def _instead(names: set[str]) -> str:
    pins = {"cp": "cp=1", "ep": "ep=1"}
    wanted = [pin for word, pin in pins.items() if any(word in name for name in names)]
    return f"plan with --fix {','.join(wanted)}" if wanted else ONE_WAY
