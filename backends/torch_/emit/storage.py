"""How the copies of parameters along the data axis are kept: all of them everywhere (DDP), or sharded (`fully_shard`).

`fully_shard` cuts dimension 0 of what a module holds, gathers the module's parameters in one message before it runs,
and scatters their gradients likewise. So every body is one unit: the block itself, or, outside of blocks, the modules
that own its parameters.

ZeRO-1 and ZeRO-2 shard the optimizer's state, and gradients, and keep parameters whole. With one micro-batch that is
what `fully_shard` does when parameters stay gathered from the forward to the backward pass: per step one gather, before
the forward pass instead of after the optimizer's step, and one scatter. Between steps it holds less than was planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.backends.torch_.emit.axes import Axes
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.decisions import Storage
from meshwright.ir.errors import EmissionStorage
from meshwright.ir.placement import Placement
from meshwright.ir.program import Move


@dataclass(frozen=True, slots=True)
class Unit:
    """What is gathered together."""

    piece: Piece
    reshard: bool
    """Whether parameters are given back after the forward pass, and gathered again for the backward pass."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How parameters are kept along the data axis: `units` are empty where every rank holds all."""

    units: tuple[Unit, ...]


def kept_of(subject: Subject, axes: Axes) -> Kept:
    """The storage of a plan."""
    sharded = {piece.plan.name: _sharded(piece, axes) for piece in subject.pieces}
    if not any(sharded.values()):
        if axes.data is not None and axes.tensor is not None:
            raise EmissionStorage(
                place=f"axes {axes.data} and {axes.tensor}",
                cause="parameters that are cut along one and copied along the other are not emitted yet",
                fix="plan with --fix zero=3, which shards the copies",
            )
        return Kept(())
    some = [piece.plan.name for piece in subject.pieces if piece.graph.params and not sharded[piece.plan.name]]
    if some:
        raise _refuse(f"plan {some[0]}", "it keeps copies of its parameters while other plans shard theirs")
    return Kept(
        tuple(Unit(piece, _gathers_again(subject, piece)) for piece in subject.pieces if sharded[piece.plan.name])
    )


def _gathers_again(subject: Subject, piece: Piece) -> bool:
    body = subject.program.body(piece.plan.name)
    return any(isinstance(one, Move) and one.reason == "parameter" for one in body.backward)


def _sharded(piece: Piece, axes: Axes) -> bool:
    """Whether a plan shards its parameters along the data axis; all of them, or none."""
    stored = {item.path: item for item in piece.plan.storage}
    found = {param.path: _along(piece, param.path, stored.get(param.path), axes) for param in piece.graph.params}
    if len(set(found.values())) > 1:
        copied = next(path for path, cut in found.items() if not cut)
        raise _refuse(f"plan {piece.plan.name}, {copied}", "it is copied while other parameters are sharded")
    return any(found.values())


def _along(piece: Piece, path: str, item: Storage | None, axes: Axes) -> bool:
    """Whether a parameter is sharded along the data axis, in all three roles."""
    if item is None:
        return False
    place = f"plan {piece.plan.name}, {path}"
    if axes.tensor is not None and axes.tensor not in item.params.axes and axes.tensor in item.optimizer.axes:
        raise _refuse(place, f"its state is sharded over the tensor axis {axes.tensor}")
    roles = [_minor(placement, axes.data) for placement in (item.params, item.grads, item.optimizer)]
    cut = {role for role in roles if role is not None}
    if cut - {0}:
        raise _refuse(place, f"it is cut along dimension {max(cut)}")
    if not cut:
        return False
    if roles[-1] is None or (roles[0] is not None and roles[1] is None):
        raise _refuse(
            place, "what is used later is sharded less: parameters, then gradients, then the optimizer's state"
        )
    return True


def _minor(placement: Placement, axis: str | None) -> int | None:
    """The dimension that the axis cuts."""
    cut = placement.on(axis) if axis is not None else None
    return cut if isinstance(cut, int) else None


def _refuse(place: str, cause: str) -> EmissionStorage:
    return EmissionStorage(
        place=place,
        cause=f"this is not emitted yet: {cause}",
        fix="plan with --fix zero=3 (all sharded) or --fix zero=0 (all copied)",
    )
