"""The use of every mesh axis: it cuts the batch, or something else (as `printed.axes` says).

Where all axes cut the batch alone, and nothing but scalars, statistics of the batch and gradients of parameters is
exchanged, the model's own code runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.read.statistics import moments_in
from meshwright.ir.analysis.weights import shows_sums
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.words import uses_of
from meshwright.ir.program.program import BodyProgram, Move
from meshwright.ir.same import Same


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a mesh by use."""

    batch: tuple[str, ...]
    """All that cut the batch, major to minor."""
    tensor: str | None
    """The one along which parameters are cut, or their gradients whole, if there is one."""
    context: tuple[str, ...] = ()
    """Those that cut anything else, of parameters most of which are copies."""
    order: tuple[str, ...] = field(default=(), compare=False)
    """All axes of the mesh, where batch and context do not follow one another in it."""

    @property
    def data(self) -> str | None:
        """The script's name for the axes that cut the batch: several are joined (`Parts.flattened`)."""
        return joined(self.batch) or None

    @property
    def copies(self) -> tuple[str, ...]:
        """All axes along which ranks compute with the same parameters, major to minor."""
        copies = (*self.batch, *self.context)
        return tuple(axis for axis in self.order if axis in copies) or copies

    @property
    def copied(self) -> str | None:
        """The script's name for the axes in `copies`."""
        return joined(self.copies) or None


def joined(axes: Sequence[str]) -> str:
    """The name of several axes joined to one."""
    return "_".join(axes)


def cuts_more(subject: Subject) -> bool:
    """Whether an axis cuts more than the batch, or stages the model."""
    if len(subject.decisions.stages) > 1:
        return True
    plans, loops = [piece.plan for piece in subject.pieces], loops_of(Same(subject.fold))
    used = {name for axis in subject.mesh.names for name in uses_of(plans, subject.fold, loops, axis).values()}
    return bool(used - {"dp"}) or _exchanges_values(subject)


def _exchanges_values(subject: Subject) -> bool:
    """Whether a value of more than one element is exchanged, other than statistics of the batch; or of one, where the
    model's own code shows samples sums over the batch."""
    sent = {
        plan.name: moments_in(piece.graph) for piece in subject.pieces for plan in (piece.plan, piece.ahead) if plan
    }
    return any(
        _exchanges(statement, body, sent[plan], 0 if shows_sums(Same(subject.fold)) else 1)
        for plan, body in subject.bodies.items()
        for statement in (*body.forward, *body.backward)
    )


def _exchanges(statement: object, body: BodyProgram, sent: set[str], least: int) -> bool:
    return (
        isinstance(statement, Move)
        and _value(statement) not in sent
        and statement.reason in ("value", "gradient")
        and body.elements[statement.operand] > least
    )


def _value(move: Move) -> str:
    """The value that a move moves, or whose gradient it moves."""
    value = move.operand.partition("@")[0]
    return value.removeprefix("d") if move.reason == "gradient" else value
