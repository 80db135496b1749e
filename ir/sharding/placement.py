"""Placements: the way in which one tensor lies on a mesh.

A *layout* says how one dimension is cut into parts. Everything about a layout follows from one method, ``pieces``:
which index ranges of the dimension belong to part i. A *shard* is a layout applied along one mesh axis; a dimension
may carry several shards, major to minor, and each one cuts what the previous ones left. So a placement is

    [dp.cp:zigzag, -, tp:sections(96,32,32)]   three dims: cut over dp then cp, whole, cut over tp by sections
    [tp:nested(4), -]                          each of four equal runs cut over tp: tokens, sample by sample
    [dp:padded(3)]                             ten elements in runs of three: the fourth has one, and room for three
    [-, tp]+sum(dp)                            the value is the sum over dp of what the ranks hold

An axis that is neither in a dimension nor partial holds copies.

A tensor that is trained through lives in two placements, its own and its gradient's. `State` is the pair, with the
illegal combinations left out by construction. Per axis it is one of

    S     value and gradient are sharded alike
    R|R   copies; every rank holds the full gradient
    R|P   copies; the gradient is the sum of what the ranks hold     (input of a column-parallel linear)
    P|R   the value is a sum; every rank holds the full gradient     (output of a row-parallel linear)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from meshwright.ir.errors import AxisUsedTwice, PlacementRank, PlacementSyntax, UnknownReduction
from meshwright.ir.sharding.layouts import (
    CONTIGUOUS,
    Contiguous,
    Layout,
    Padded,
    Span,
    Uneven,
    divided,
    length,
    parse_layout,
    select,
)
from meshwright.ir.sharding.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Shard:
    """One dimension, or what earlier shards left of it, cut along a mesh axis."""

    axis: str
    layout: Layout = CONTIGUOUS

    def __str__(self) -> str:
        layout = str(self.layout)
        return f"{self.axis}:{layout}" if layout else self.axis


Dim = tuple[Shard, ...]
"""The shards of one tensor dimension, major to minor."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The value is the reduction, over the axis, of what the ranks hold."""

    axis: str
    reduction: str = "sum"

    def __post_init__(self) -> None:
        if self.reduction not in ("sum", "max"):
            raise UnknownReduction(place=str(self), cause=f"unknown reduction {self.reduction!r}", fix="use sum or max")

    def __str__(self) -> str:
        return f"{self.reduction}({self.axis})"


@dataclass(frozen=True, slots=True)
class Placement:
    """The way in which one tensor lies on a mesh.

    - An axis must appear at most once, in a dimension or as partial.
    - Partial axes have no order and are kept sorted by name.
    """

    dims: tuple[Dim, ...]
    partial: tuple[Partial, ...] = ()
    axes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The axes of dimensions, then those that are partial."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Placements are keys everywhere."""

    def __post_init__(self) -> None:
        if len(self.partial) > 1:
            object.__setattr__(self, "partial", tuple(sorted(self.partial, key=lambda p: p.axis)))
        used = tuple([shard.axis for dim in self.dims for shard in dim] + [one.axis for one in self.partial])
        object.__setattr__(self, "axes", used)
        object.__setattr__(self, "_hash", hash((self.dims, self.partial)))
        for axis in used if len(set(used)) < len(used) else ():
            if used.count(axis) > 1:
                raise AxisUsedTwice(
                    place=str(self), cause=f"axis {axis!r} is used twice", fix="use each axis at most once"
                )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Placement], tuple[object, ...]]:
        """Rebuild the placement when unpickled: strings have other hashes in another process."""
        return Placement, (self.dims, self.partial)

    @staticmethod
    def replicated(rank: int) -> Placement:
        return Placement(((),) * rank)

    @property
    def rank(self) -> int:
        return len(self.dims)

    def on(self, axis: str) -> int | Partial | None:
        """The use of an axis: the dimension that it cuts, its partial reduction, or None for copies."""
        for index, dim in enumerate(self.dims):
            if any(shard.axis == axis for shard in dim):
                return index
        return next((p for p in self.partial if p.axis == axis), None)

    def check(self, shape: Sequence[int], mesh: Mesh, place: str) -> None:
        """Check one entry per dimension, axes of the mesh, and extents that the layouts can cut."""
        if len(shape) != len(self.dims):
            raise PlacementRank(
                place=place,
                cause=f"{self} has {len(self.dims)} dims, the tensor {len(shape)}",
                fix="give one entry per dim",
            )
        _check_cuts(self, tuple(shape), mesh)

    def spans(self, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[tuple[Span, ...], ...]:
        """Per dimension, the global index ranges that the rank holds, in local order."""
        at = mesh.coordinates(rank)
        return tuple(_spans(dim, extent, mesh, at) for dim, extent in zip(self.dims, shape, strict=True))

    def local_shape(self, shape: Sequence[int], mesh: Mesh, rank: int = 0) -> tuple[int, ...]:
        if rank == 0:
            pairs = zip(self.dims, shape, strict=True)
            return tuple([_first_share(dim, extent, mesh) if dim else extent for dim, extent in pairs])
        return tuple(length(spans) for spans in self.spans(shape, mesh, rank))

    def __str__(self) -> str:
        dims = ", ".join(".".join(map(str, dim)) or "-" for dim in self.dims)
        return "".join([f"[{dims}]", *(f"+{p}" for p in self.partial)])

    @staticmethod
    def parse(text: str) -> Placement:
        dims, tail = _parse_dims(text)
        partial = []
        for word in filter(None, re.split(r"(?=\+)", tail)):
            found = re.match(r"^\+(sum|max)\((\w+)\)$", word)
            if not found:
                raise PlacementSyntax(
                    place=repr(text), cause=f"cannot read {word!r}", fix="write +sum(AXIS) or +max(AXIS)"
                )
            partial.append(Partial(found[2], found[1]))
        return Placement(dims, tuple(partial))


@dataclass(frozen=True, slots=True)
class State:
    """The placements of a value and of its gradient, as one thing.

    - Shards are shared by both; an axis must be in at most one of dims, partial, grad_partial.
    - `partial`: the value is partial, its gradient full on every rank (P|R).
    - `grad_partial`: the value is replicated, its gradient partial (R|P); gradients always add.
    """

    dims: tuple[Dim, ...]
    partial: tuple[Partial, ...] = ()
    grad_partial: tuple[str, ...] = ()
    value: Placement = field(init=False, repr=False, compare=False)
    grad: Placement = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grad_partial", tuple(sorted(self.grad_partial)))
        summed = tuple(Partial(axis) for axis in self.grad_partial)
        value, grad = Placement(self.dims, self.partial), Placement(self.dims, summed)
        if self.partial and summed:
            Placement(self.dims, self.partial + summed)
        object.__setattr__(self, "partial", value.partial)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "grad", grad)

    def __hash__(self) -> int:
        return hash((self.value, self.grad_partial))

    @staticmethod
    def replicated(rank: int) -> State:
        return _replicated(rank)

    def without_gradient(self) -> State:
        """The state of the value where no gradient flows: R|P and R|R are then one."""
        return _without_gradient(self) if self.grad_partial else self

    def __str__(self) -> str:
        partial = "".join(f"+{p}" for p in self.partial)
        grad = "".join(f"|sum({axis})" for axis in self.grad_partial)
        return f"{Placement(self.dims)}{partial}{grad}"

    @staticmethod
    def parse(text: str) -> State:
        head, *grads = text.split("|")
        value = Placement.parse(head)
        axes = []
        for word in grads:
            found = re.match(r"^sum\((\w+)\)$", word)
            if not found:
                raise PlacementSyntax(place=repr(text), cause=f"cannot read {word!r}", fix="write |sum(AXIS)")
            axes.append(found[1])
        return State(value.dims, value.partial, tuple(axes))


@lru_cache(maxsize=256)
def _replicated(rank: int) -> State:
    return State(((),) * rank)


@lru_cache(maxsize=65536)
def _without_gradient(state: State) -> State:
    return replace(state, grad_partial=())


def _parse_dims(text: str) -> tuple[tuple[Dim, ...], str]:
    found = re.match(r"^\[(?P<dims>[^\]]*)\](?P<tail>.*)$", text)
    if not found:
        raise PlacementSyntax(place=repr(text), cause="a placement opens with [dims]", fix="write such as [dp, -, tp]")
    if not found["dims"].strip():
        return (), found["tail"]
    dims = []
    for word in re.split(r",\s+", found["dims"]):
        shards = [] if word.strip() == "-" else [_parse_shard(part) for part in word.strip().split(".")]
        dims.append(tuple(shards))
    return tuple(dims), found["tail"]


def _parse_shard(text: str) -> Shard:
    axis, _, layout = text.partition(":")
    if not re.match(r"^\w+$", axis):
        raise PlacementSyntax(place=repr(text), cause="a shard names a mesh axis", fix="write AXIS or AXIS:LAYOUT")
    return Shard(axis, parse_layout(layout))


def _first_share(dim: Dim, extent: int, mesh: Mesh) -> int:
    """The part of an extent that shards leave on the first rank."""
    left = extent
    for shard in dim:
        if not isinstance(shard.layout, Contiguous):
            return _first_length(dim, extent, mesh)
        left = divided(left, mesh.axis(shard.axis).size, shard.layout)
    return left


@lru_cache(maxsize=65536)
def _first_length(dim: Dim, extent: int, mesh: Mesh) -> int:
    return length(_spans(dim, extent, mesh, {shard.axis: 0 for shard in dim}))


def _spans(dim: Dim, extent: int, mesh: Mesh, at: Mapping[str, int]) -> tuple[Span, ...]:
    """The index ranges of one dimension at these coordinates."""
    spans: tuple[Span, ...] = ((0, extent),)
    for shard in dim:
        local = shard.layout.pieces(length(spans), mesh.axis(shard.axis).size, at[shard.axis])
        spans = select(spans, local)
    return spans


@lru_cache(maxsize=65536)
def _check_cuts(placement: Placement, shape: tuple[int, ...], mesh: Mesh) -> None:
    """Check that axes are of the mesh, and that every dimension can be cut."""
    for axis in placement.axes:
        mesh.axis(axis)
    for dim, extent in zip(placement.dims, shape, strict=True):
        if dim:
            _check_cut(dim, extent, mesh)


@lru_cache(maxsize=65536)
def _check_cut(dim: Dim, extent: int, mesh: Mesh) -> None:
    """Check that every part can be cut. Checks that passed once are not repeated; only parts of unequal sizes are
    checked one by one, since equal ones all behave alike."""
    uneven = any(isinstance(shard.layout, Uneven | Padded) for shard in dim)
    for part in range(_parts(dim, mesh) if uneven else 1):
        _spans(dim, extent, mesh, _unravel(dim, mesh, part))


def _parts(dim: Dim, mesh: Mesh) -> int:
    parts = 1
    for shard in dim:
        parts *= mesh.axis(shard.axis).size
    return parts


def _unravel(dim: Dim, mesh: Mesh, part: int) -> dict[str, int]:
    at = {}
    for shard in reversed(dim):
        part, at[shard.axis] = divmod(part, mesh.axis(shard.axis).size)
    return at
