"""Fused weights: products that yield several values side by side (queries, keys and values; gate and up), of each of
which a rank of the tensor axis computes its part.

Shards of a DTensor are runs of rows. So the rows of such weights are put into another order when a script starts: first
the parts of the first rank, then those of the second. Where whole weights are shown or kept they are in the model's
order. The model's own code cuts the product by the sizes that it knows; in the script it is given a stand-in that is as
wide as it expects, and yields this rank's parts where it is cut (`writing.sections`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionModule
from meshwright.ir.fold import joined
from meshwright.ir.fused import GROUPED, cut_apart
from meshwright.ir.graph import Op
from meshwright.ir.placement import CONTIGUOUS, Layout, Nested, Placement, Sections
from meshwright.ir.rewrite import facts_of

Sizes = tuple[int, ...]
Cut = tuple[int, Sizes] | tuple[int, Sizes, str]
"""The dimension that has sections, and their sizes; the axis that cuts them, where several cut parameters."""
What = TypeVar("What")


@dataclass(frozen=True, slots=True)
class Fused:
    """The fused products of one body."""

    modules: Mapping[str, Sizes] = field(default_factory=dict)
    """What each one yields side by side: sizes by module, relative to the instance."""
    params: Mapping[str, Cut] = field(default_factory=dict)
    """How each of their parameters is cut that has them."""


def fused_of(subject: Subject, piece: Piece, axis: str) -> Fused:
    """What of a body an axis cuts in sections."""
    modules, params, path_of = {}, {}, {param.value: param.path for param in piece.graph.params}
    for op in piece.graph.ops:
        applied = facts_of(piece.graph)[op.name].applied(piece.plan.strategy(op.name), subject.mesh)
        for value, state in zip(op.operands, applied.operands, strict=True):
            found = sections_on(state.value, axis)
            if value in path_of and any(isinstance(s.layout, Nested) for dim in state.dims for s in dim):
                raise refuse(piece, op, f"it reads %{value} in equal runs")
            if found is not None and value in path_of:
                params[path_of[value]] = found
            elif found is not None and op.kind != "split":
                raise refuse(piece, op, f"it reads %{value} in sections")
        for value, state in zip(op.results, applied.results, strict=True):
            found = sections_on(state.value, axis)
            if found is not None and not cut_apart(piece.graph, op, Sections(found[1])):
                raise refuse(piece, op, f"it makes %{value} in sections, and is no product that is cut into them")
            if found is not None and op.kind != GROUPED:
                modules[op.module] = found[1]
    return Fused(modules, params)


def sections_on(placement: Placement, axis: str) -> tuple[int, Sizes] | None:
    """The dimension that an axis cuts in sections, and their sizes."""
    for dim, shards in enumerate(placement.dims):
        for shard in shards:
            if shard.axis == axis and isinstance(shard.layout, Sections):
                return dim, shard.layout.sizes
    return None


def sizes_of(layout: Layout, extent: int) -> Sizes:
    """The sections of a weight's dimension of so many elements, of each of which a rank has its part; equal runs are
    sections, too. Empty where it is cut plainly, or otherwise."""
    if isinstance(layout, Nested) and layout.layout == CONTIGUOUS:
        return (extent // layout.runs,) * layout.runs
    return layout.sizes if isinstance(layout, Sections) else ()


def named(pieces: Iterable[Piece], several: Iterable[tuple[Piece, Fused]]) -> dict[str, Cut]:
    """The fused parameters among those of pieces: what a regular expression of their names says of each."""
    fused = {(piece.first, piece.plan.name): one.params for piece, one in several}
    return by_name(
        (piece, path, fused.get((piece.first, piece.plan.name), {}).get(path))
        for piece in pieces
        for param in piece.graph.params
        for path in param.paths
    )


def by_name(several: Iterable[tuple[Piece, str, What | None]]) -> dict[str, What]:
    """What is said of parameters of bodies, if anything, by regular expressions of their names in all instances."""
    given = list(several)
    said = {joined(at, path): what for piece, path, what in given for at in piece.around()}
    found = dict[str, What]()
    for piece, path, what in given:
        if what is not None:
            every = pattern(piece, path)
            alike = all(said[name] == what for name in said if re.fullmatch(every, name))
            found[every if alike else pattern(piece, path, of=piece.instances().numbers)] = what
    return found


def pattern(piece: Piece, path: str, of: tuple[int, ...] = ()) -> str:
    """The names of a parameter in all instances of a body, as a regular expression; only those `of` these numbers where
    others of the list are another body's."""
    if not piece.repeated:
        return re.escape(path)
    every = piece.instances()
    numbers = rf"(?:{'|'.join(map(str, of))})" if of else r"\d+"
    return rf"{re.escape(every.before)}{numbers}{re.escape(every.after)}\.{re.escape(path)}"


def refuse(piece: Piece, op: Op, cause: str) -> EmissionModule:
    return EmissionModule(
        place=f"plan {piece.plan.name}, %{op.name} ({op.kind}) of {piece.path(op.module) or 'the model'}",
        cause=f"this is not emitted yet: {cause}",
        ways=("--fix tp=1",),
    )
