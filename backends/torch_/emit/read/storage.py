"""How the copies of parameters along the data and context axes are kept: all of them everywhere, or sharded
(`fully_shard`): over all of these axes, or over the minor one while the major one keeps copies (HSDP).

`fully_shard` cuts what a module holds, along dimension 0 or one that it is told, gathers the module's parameters in one
message before it runs, and scatters their gradients likewise. So every body is one unit: the block itself, or, outside
of blocks, the modules that own its parameters. What the shards divide along another dimension than the first is cut
there; what they divide along none is padded along the first, as planned. A scalar (a learned temperature)
`fully_shard` does not take: it stays whole, the script sums its gradient, and casts it where parameters are cast.

ZeRO-1 and ZeRO-2 shard the optimizer's state, and gradients, and keep parameters whole. With one micro-batch that is
what `fully_shard` does when parameters stay gathered from the forward to the backward pass: per step one gather, before
the forward pass instead of after the optimizer's step, and one scatter. Between steps it holds less than was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.copies import COPIED, Copies
from meshwright.ir.decisions.decisions import Storage
from meshwright.ir.errors import EmissionSoftware, EmissionStorage, EmissionWritten
from meshwright.ir.errors.capability import STORAGE
from meshwright.ir.graph.graph import Param
from meshwright.ir.program.program import Move
from meshwright.ir.program.units import unshared
from meshwright.ir.sharding.placement import Placement

WHOLE = "whole"
"""The mesh axis of one rank over which `fully_shard` shards what is to stay whole."""
ACTIVE = 3
"""Stages of a rank that the runtime of pipelines keeps gathered at once."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that are gathered together."""

    piece: Piece
    reshard: bool
    """Whether parameters are given back after the forward pass, and gathered again for the backward pass."""
    along: Mapping[str, int] = field(default_factory=dict)
    """The dimension that is cut of those parameters of which it is not the first one."""
    inner: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules in it that are units of their own: what they hold some axes cut apart, and it is sharded over these."""

    def within(self, path: str) -> str:
        """The innermost unit's module that holds a parameter; empty if there is none."""
        return next((module for module in self.inner if path.startswith(f"{module}.")), "")


@dataclass(frozen=True, slots=True)
class Kept:
    """Storage of parameters along the data and context axes: `units` are empty where every rank holds all."""

    units: tuple[Unit, ...]
    over: tuple[str, ...] = ()
    """The axes that shard, major to minor."""
    level: int = 0
    """What is sharded: 1 the optimizer's state, 2 gradients besides, 3 parameters too. With several micro-batches,
    gradients that are not sharded are scattered after the last one, and parameters that are not stay gathered."""

    frozen: bool = False
    """Whether parameters that are not trained stay whole on every rank, beside shards of the others."""
    scalars: bool = False
    """Whether scalar parameters do, which torch does not shard."""

    @property
    def whole(self) -> bool:
        """Whether every rank holds all, and `fully_shard` serves the dtypes alone."""
        return self.over == (WHOLE,)


def kept_of(subject: Subject, axes: Axes, copies: Copies = COPIED) -> Kept:
    """The storage of a plan."""
    cuts = {piece.plan.name: _cuts(piece, axes, copies) for piece in subject.pieces}
    shards = _shards(subject, cuts, copies)
    if not shards:
        return Kept(())
    _check_lasting(subject)
    for piece in subject.pieces:
        _check_cuts(piece, cuts[piece.plan.name], shards, copies)
    whole = axes.copies[: -len(shards)]
    if whole and (len(whole) > 1 or len(shards) > 1):
        raise _refuse("storage", f"it is sharded over {'.'.join(shards)} with copies over {'.'.join(whole)}")
    units = tuple(
        Unit(piece, _gathers_again(subject, piece), _along(piece, axes, copies), _inner(piece, own, shards))
        for piece, own in ((piece, cuts[piece.plan.name]) for piece in subject.pieces)
        if any(own.values())
    )
    for unit in units:
        _check_even(subject, unit, axes, copies)
    frozen = any(map(_left, subject.pieces))
    return Kept(units, shards, _level(subject, shards, copies), frozen, any(map(scalars_of, subject.pieces)))


def _check_lasting(subject: Subject) -> None:
    """Check that writes of the forward pass into parameters last. `fully_shard` has them go into what is gathered or
    cast, and then frees that."""
    if subject.calls.written:
        cause = (
            f"the forward pass writes into {subject.calls.written[0]}, and torch forgets what is written into shards"
        )
        raise EmissionWritten(place="storage", cause=cause, ways=("--fix zero=0",), depends=(STORAGE,))


def _check_even(subject: Subject, unit: Unit, axes: Axes, copies: Copies) -> None:
    """Check that shards divide the dimension that they cut, where that is not the first one."""
    shape = {param.path: unit.piece.graph.types[param.value].shape for param in unit.piece.graph.params}
    for item in (item for item in unit.piece.plan.storage if item.path in unit.along):
        cut, along = _cut(item.optimizer, _copied(unit.piece, item.path, axes, copies)), unit.along[item.path]
        dims = tuple(tuple(s for s in dim if s.axis not in cut) for dim in item.optimizer.dims)
        size = Placement(dims).local_shape(shape[item.path], subject.mesh)[along]
        parts = prod(subject.mesh.axis(axis).size for axis, dim in cut.items() if dim == along)
        if size % parts:
            raise _refuse(f"plan {unit.piece.plan.name}, {item.path}", f"{parts} shards of {size} along a dimension")


def _inner(piece: Piece, cuts: Mapping[str, tuple[str, ...]], shards: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Modules that hold parameters which some axes cut apart, and those that shard them: some of the others."""
    held = {param.path: param for param in piece.graph.params if param.path in cuts}
    found = {piece.owner(held[path]): cut for path, cut in cuts.items() if cut not in ((), shards)}
    for module, among in found.items():
        within = [path for path, one in held.items() if any(name.startswith(f"{module}.") for name in one.paths)]
        other = next((path for path in within if cuts[path] != among), "") if module else module
        if other or not module:
            cause = f"it is sharded over {'.'.join(among)}, and what is in its module otherwise"
            raise _refuse(f"plan {piece.plan.name}, {module or 'the module itself'}", cause)
    return found


def _along(piece: Piece, axes: Axes, copies: Copies) -> dict[str, int]:
    """Parameters that shards cut along another dimension than the first one."""
    cuts = {one.path: _cut(one.optimizer, _copied(piece, one.path, axes, copies)) for one in piece.plan.storage}
    cut = {path: max(dims.values(), default=0) for path, dims in cuts.items()}
    return {path: dim for path, dim in cut.items() if dim}


def whole_of(subject: Subject, axes: Axes) -> Kept:
    """Copies of which `fully_shard` makes what is computed with, and whose gradients it sums: its shards lie along an
    axis of one rank, where torch gathers and scatters nothing."""
    for wrong, what in (
        (len(axes.copies) > 1, f"copies along {' and '.join(axes.copies)}"),
        (bool(axes.context), f"more than the batch cut along {' and '.join(axes.context)}"),
    ):
        if wrong:
            raise EmissionSoftware(
                place=f"recipe {subject.workload.recipe or subject.workload.stack.recipe}",
                cause=f"what is kept whole in fp32, and computed with in bf16, is not emitted yet with {what}",
                ways=("--fix zero=3", "--recipe bf16"),
            )
    _check_lasting(subject)
    again = not weights_apart(subject)  # torch loses gradients of weights that are made of copies given back before
    units = tuple(Unit(piece, reshard=again) for piece in subject.pieces if piece.graph.params)
    return Kept(units, (WHOLE,), level=1, scalars=any(map(scalars_of, subject.pieces)))


def check_sharded(subject: Subject, kept: Kept, axes: Axes) -> None:
    """Check that the runtime of pipelines does what the plan says with sharded parameters."""
    of_rank = max(Counter(stage.ranks for stage in subject.decisions.stages).values())
    if kept.level > 1 and weights_apart(subject):
        raise _refuse_staged("gradients of weights that are computed apart, and scattered for every micro-batch")
    if kept.level > 1 and kept.over != axes.copies:
        raise _refuse_staged(f"gradients scattered for every micro-batch, with copies along {axes.copies[0]}")
    if kept.level == 1 and of_rank > ACTIVE and not kept.whole:
        raise _refuse_staged(f"{of_rank} stages per rank, of which torch keeps {ACTIVE} gathered")


def around_units(
    units: Sequence[Unit], beside: Callable[[Unit, Unit], bool] = lambda unit, other: unit is not other
) -> frozenset[str]:
    """Modules that hold parameters of several units, or in which units lie that come later, or that lie in blocks and
    hold what others read, too: the model as a whole gathers that."""
    held = [one.piece.segment.paths if one.piece.repeated else one.piece.owners() for one in units]
    return frozenset(
        path
        for at, unit in enumerate(units)
        for path in (() if unit.piece.repeated else unit.piece.owners())
        for later, paths in enumerate(held)
        if beside(unit, units[later])
        and any(
            one == path
            or (later > at and one.startswith(f"{path}."))
            or (path.startswith(f"{one}.") and unit.piece.passes(path))
            for one in paths
        )
    )


def passed(subject: Subject) -> tuple[tuple[Piece, Param], ...]:
    """Parameters that blocks hold and others read, with the piece that gives them to all that do."""
    blocks = tuple(f"{path}." for piece in subject.pieces if piece.repeated for path in piece.segment.paths)
    return tuple(
        (piece, param)
        for piece in subject.pieces
        for param in (() if piece.repeated else piece.graph.params)
        if param.value in piece.graph.outputs and any(path.startswith(blocks) for path in param.paths)
    )


def check_passed(subject: Subject, kept: Kept) -> None:
    """Check that no block of a stage holds a parameter that others read, since a stage takes what its modules hold; nor
    where `fully_shard` is there for the dtypes alone, and has one unit outside of blocks."""
    staged = len(subject.decisions.stages) > 1
    for piece, param in passed(subject) if staged or kept.whole else ():
        raise EmissionStorage(
            place=f"plan {piece.plan.name}, {param.path}",
            cause="this is not emitted yet: a block holds it, others read it, and "
            + ("it is in stages" if staged else "its copies are cast"),
            ways=("--fix pp=1" if staged else "--fix zero=3",),
        )


def check_shared(subject: Subject) -> None:
    """Check that bodies that read a parameter through one module leave its gradient in one placement: its unit has
    one."""
    if path := unshared(subject.program, subject.fold):
        raise EmissionStorage(
            place=path,
            cause="bodies read it through one module, and leave gradients in different placements for its one unit",
            ways=("--fix zero=0", "--fix cp=1"),
        )


def weights_apart(subject: Subject) -> bool:
    """Whether gradients of weights are computed apart."""
    return any(action.kind == "W" for _, actions in subject.program.actions for action in actions)


def _refuse_staged(what: str) -> EmissionStorage:
    return EmissionStorage(
        place="pipeline stages",
        cause=f"this is not emitted yet: {what}",
        ways=("--fix zero=0", "--fix zero=1,vp=2"),
    )


def _level(subject: Subject, shards: tuple[str, ...], copies: Copies) -> int:
    """The ZeRO level of all parameters. Along an axis that cuts them apart they have no copies to shard."""
    found = set()
    for piece, item in ((one, item) for one in subject.pieces for item in one.plan.storage):
        over = set(shards) - set(copies.apart(piece, item.path))
        if over and item.path not in scalars_of(piece):
            cut = [not over.isdisjoint(placement.axes) for placement in (item.grads, item.params)]
            found.add(1 + sum(cut))
    if len(found) > 1 and subject.decisions.schedule.microbatches > 1:
        raise _refuse("storage", "some gradients or parameters are sharded and others are not, over micro-batches")
    return max(found)


def _gathers_again(subject: Subject, piece: Piece) -> bool:
    return any(isinstance(one, Move) and one.reason == "parameter" for one in subject.bodies[piece.plan.name].backward)


def _cuts(piece: Piece, axes: Axes, copies: Copies) -> dict[str, tuple[str, ...]]:
    """The data and context axes that shard each parameter, of those that `fully_shard` takes."""
    stored = {item.path: item for item in piece.plan.storage}
    left = _buffers(piece) | _left(piece) | scalars_of(piece)
    paths = [param.path for param in piece.graph.params if param.path not in left]
    return {path: _over(piece, path, stored.get(path), axes, copies) for path in paths}


def _shards(subject: Subject, cuts: Mapping[str, Mapping[str, tuple[str, ...]]], copies: Copies) -> tuple[str, ...]:
    """The axes that shard parameters which none of them cuts apart: all in the same way."""
    found = [(cut, copies.apart(one, path)) for one in subject.pieces for path, cut in cuts[one.plan.name].items()]
    over = {cut for cut, apart in found if cut and not apart} or {cut for cut, _ in found if cut}
    if len(over) > 1:
        raise _refuse("storage", f"it is sharded over {' and over '.join('.'.join(one) for one in sorted(over))}")
    return next(iter(over), ())


def _check_cuts(piece: Piece, cuts: Mapping[str, tuple[str, ...]], shards: tuple[str, ...], copies: Copies) -> None:
    """Check that every parameter is sharded along those of these axes that do not cut it apart."""
    for path, cut in cuts.items():
        apart = copies.apart(piece, path)
        if cut != tuple(axis for axis in shards if axis not in apart):
            whole = "it is copied while other parameters are sharded"
            cause = "its parts are sharded otherwise than what is beside them" if apart else whole
            raise _refuse(f"plan {piece.plan.name}, {path}", cause)


def scalars_of(piece: Piece) -> set[str]:
    """Parameters without dimensions."""
    shape = {param.path: piece.graph.types[param.value].shape for param in piece.graph.params if not param.buffer}
    return {path for path, extents in shape.items() if not extents}


def _left(piece: Piece) -> set[str]:
    """Untrained parameters that no axis shards."""
    stored = {item.path for item in piece.plan.storage}
    frozen = {param.path for param in piece.graph.params if not param.requires_grad and not param.buffer}
    return frozen - stored - scalars_of(piece)


def _buffers(piece: Piece) -> set[str]:
    """Buffers that no axis shards: `fully_shard` leaves them as they are."""
    return {param.path for param in piece.graph.params if param.buffer} - {item.path for item in piece.plan.storage}


def _over(piece: Piece, path: str, item: Storage | None, axes: Axes, copies: Copies) -> tuple[str, ...]:
    """The data and context axes that shard the copies of a parameter, in all three roles."""
    if item is None:
        return ()
    place, copied = f"plan {piece.plan.name}, {path}", _copied(piece, path, axes, copies)
    roles = [_cut(placement, copied) for placement in (item.params, item.grads, item.optimizer)]
    if len({dim for role in roles for dim in role.values()}) > 1:
        raise _refuse(place, "it is cut along several dimensions")
    used = [tuple(role) for role in roles]
    if len(set(used) - {()}) > 1 or used != sorted(used, key=len):
        raise _refuse(
            place, "what is used later is sharded less: parameters, then gradients, then the optimizer's state"
        )
    if used[-1] != copied[len(copied) - len(used[-1]) :]:
        raise _refuse(place, f"it has copies along an axis inside of {'.'.join(used[-1])}")
    return used[-1]


def _copied(piece: Piece, path: str, axes: Axes, copies: Copies) -> tuple[str, ...]:
    """The data and context axes along which there are copies of a parameter."""
    apart = copies.apart(piece, path)
    return tuple(axis for axis in axes.copies if axis not in apart)


def _cut(placement: Placement, axes: tuple[str, ...]) -> dict[str, int]:
    """The dimension that each axis cuts."""
    cuts = {axis: placement.on(axis) for axis in axes}
    return {axis: cut for axis, cut in cuts.items() if isinstance(cut, int)}


def _refuse(place: str, cause: str) -> EmissionStorage:
    return EmissionStorage(
        place=place,
        cause=f"this is not emitted yet: {cause}",
        ways=("--fix zero=3", "--fix zero=0"),
    )
