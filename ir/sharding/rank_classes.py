"""Rank classes: the ranks of a stage by what they hold, where shards are of different sizes.

    rank_classes   stage, bodies, devices -> its ranks, those together that are alike
    seen       body, coordinates      -> the same body, its ranks renumbered so that those there come first

A program's text is one for all ranks, and what it holds locally is read off its first rank. `seen` is the same program
again: along an axis that cuts unevenly, the parts change places. So whatever is asked of a first rank can be asked of
any.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.program.kept import COPY, is_derivative, needs_of
from meshwright.ir.program.program import (
    BodyProgram,
    Compute,
    Gradient,
    Kept,
    Local,
    Move,
    Program,
    Ring,
    Stage,
    Statement,
)
from meshwright.ir.rules.registry import infer
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy, apply
from meshwright.ir.sharding.layouts import Layout, Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement

At = tuple[tuple[str, int], ...]
"""Coordinates on the axes that cut unevenly."""


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks of a stage that hold shards of the same sizes, on the same kind of device."""

    ranks: tuple[int, ...]
    at: At = ()


def rank_classes(
    stages: Sequence[Stage], bodies: Mapping[str, BodyProgram], device: Callable[[int], Hashable] | None
) -> tuple[RankClass, ...]:
    """The rank classes of stages that share their ranks, without classes that hold less of everything than another one
    on the same device. Where all shards are alike, so are the ranks, whatever their devices. `device` of None: there is
    only one kind."""
    names = dict.fromkeys(name for stage in stages for run in stage.runs for name in run.programs)
    sizes, stage = _sizes([bodies[name] for name in names]), stages[0]
    if not sizes or (device is None and all(_first_is_largest(parts) for parts in sizes.values())):
        return (RankClass(stage.ranks),)
    found: dict[tuple[Hashable, tuple[tuple[int, ...], ...]], tuple[At, list[int]]] = {}
    for place, rank in enumerate(stage.ranks):
        at = _at(stage.mesh, sizes, place)
        own = tuple(sizes[axis][part] for axis, part in at)
        found.setdefault((device(rank) if device else None, own), (at, []))[1].append(rank)
    return tuple(
        RankClass(tuple(ranks), at)
        for (where, own), (at, ranks) in found.items()
        if not any(where == there and own != more and _within(own, more) for there, more in found)
    )


def places_of(program: Program, stages: Sequence[int]) -> tuple[At, ...]:
    """The coordinates of the first rank of its class, for every rank of stages that share their ranks."""
    own = [program.stages[number] for number in stages]
    names = dict.fromkeys(name for stage in own for run in stage.runs for name in run.programs)
    sizes, mesh = _sizes([program.body(name) for name in names]), own[0].mesh
    return tuple(_at(mesh, sizes, place) for place in range(mesh.size))


def _at(mesh: Mesh, sizes: Mapping[str, Sequence[object]], place: int) -> At:
    here = mesh.coordinates(place)
    return tuple((axis, parts.index(parts[here[axis]])) for axis, parts in sizes.items())


def _sizes(bodies: Sequence[BodyProgram]) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    """For every axis that cuts anything unevenly, the sizes of each part in all such cuts."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for body in bodies:
        for axis, sizes in body.uneven:
            found.setdefault(axis, []).append(sizes)
    return {axis: tuple(zip(*several, strict=True)) for axis, several in found.items()}


def _first_is_largest(parts: Sequence[tuple[int, ...]]) -> bool:
    return all(_within((part,), (parts[0],)) for part in parts[1:])


def _within(own: Sequence[Sequence[int]], more: Sequence[Sequence[int]]) -> bool:
    return all(a <= b for one, other in zip(own, more, strict=True) for a, b in zip(one, other, strict=True))


# Programs as they see them -------------------------------------------------------------------------------------------


def seen_by(program: Program, at: At) -> Program:
    """A program with its ranks renumbered so that those at these coordinates come first."""
    if not at:
        return program
    return replace(
        program,
        bodies=tuple(seen(body, at) for body in program.bodies),
        transfers=tuple(
            replace(hop, source=_turned(hop.source, at), target=_turned(hop.target, at)) for hop in program.transfers
        ),
        entries=tuple(replace(entry, placement=_turned(entry.placement, at)) for entry in program.entries),
    )


def seen(body: BodyProgram, at: At) -> BodyProgram:
    """A body with its ranks renumbered so that those at these coordinates come first."""
    return _seen(Same(body), at) if any(part for _, part in at) else body


@lru_cache(maxsize=512)
def _seen(key: Same[BodyProgram], at: At) -> BodyProgram:
    body = key.of
    turned = replace(
        body,
        locals={name: Local(local.type, _turned(local.placement, at)) for name, local in body.locals.items()},
        params=tuple(
            replace(slot, grads=_turned(slot.grads, at), optimizer=_turned(slot.optimizer, at)) for slot in body.params
        ),
        forward=tuple(_said(statement, at) for statement in body.forward),
        backward=tuple(_said(statement, at) for statement in body.backward),
        sync=tuple(_said(statement, at) for statement in body.sync),
        publish=tuple(_said(statement, at) for statement in body.publish),
    )
    extras = _extra_bytes(turned)
    return replace(turned, kept=tuple(replace(one, nbytes=_kept_bytes(one, body, turned, extras)) for one in body.kept))


def _extra_bytes(body: BodyProgram) -> Mapping[str, int]:
    """Bytes of the extras that operators keep beside values."""
    found: dict[str, int] = {}
    for statement in filter(is_derivative, body.backward):
        sizes = apply(infer(statement.signature), statement.signature.operands, statement.strategy, body.mesh).sizes
        needs = needs_of(statement, dict(sizes), body.kernels)
        found |= {need.value: need.extra_bytes for need in needs if need.extra_bytes is not None}
    return found


def _kept_bytes(kept: Kept, before: BodyProgram, body: BodyProgram, extras: Mapping[str, int]) -> int:
    if kept.name in extras:
        return extras[kept.name]
    value = kept.name.removesuffix(COPY)
    return kept.nbytes * body.elements[value] // before.elements[value]


def _said(statement: Statement, at: At) -> Statement:
    """A new statement, never the original object: prices are remembered by identity, and its shards are others here."""
    if isinstance(statement, Compute | Gradient | Ring):
        return replace(statement, strategy=_chosen(statement.strategy, at))
    if isinstance(statement, Move):
        axis = statement.step.axes[0]
        return replace(statement, step=replace(statement.step, layout=_laid(statement.step.layout, axis, dict(at))))
    return replace(statement)


@lru_cache(maxsize=4096)
def _chosen(strategy: Strategy, at: At) -> Strategy:
    parts = dict(at)

    def chosen(axis: str, choice: Choice) -> Choice:
        return Split(choice.factors, _laid(choice.layout, axis, parts)) if isinstance(choice, Split) else choice

    return Strategy(tuple((axis, chosen(axis, choice)) for axis, choice in strategy.choices))


@lru_cache(maxsize=16384)
def _turned(placement: Placement, at: At) -> Placement:
    parts = dict(at)
    dims = tuple(
        tuple(replace(shard, layout=_laid(shard.layout, shard.axis, parts)) for shard in dim) for dim in placement.dims
    )
    return Placement(dims, placement.partial)


def _laid(layout: Layout, axis: str, parts: Mapping[str, int]) -> Layout:
    if not isinstance(layout, Uneven) or not parts.get(axis):
        return layout
    sizes = list(layout.sizes)
    sizes[0], sizes[parts[axis]] = sizes[parts[axis]], sizes[0]
    return Uneven(tuple(sizes))
