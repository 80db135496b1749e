"""Placements: how one tensor lies on a mesh.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

from meshwright.ir.errors import (
    AxisUsedTwice,
    BadLayoutSize,
    IndivisibleExtent,
    PlacementRank,
    PlacementSyntax,
    SectionsMismatch,
    UnevenMismatch,
    UnknownReduction,
)
from meshwright.ir.sharding.mesh import Mesh

Span = tuple[int, int]
"""A half-open index range."""


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Part i is the i-th of equal runs."""

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        step = _divide(extent, parts, self)
        return ((part * step, part * step + step),)

    def scaled(self, factor: int) -> Contiguous:
        return self

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Sections:
    """The dimension is a concatenation of sections (fused q|k|v, gate|up) and each is cut into equal runs of its
    own."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        _positive(self.sizes, "sections")

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        _adds_up(self.sizes, extent, self)
        spans = []
        for start, size in zip(_starts(self.sizes), self.sizes, strict=True):
            step = _divide(size, parts, self)
            spans.append((start + part * step, start + part * step + step))
        return merge(spans)

    def scaled(self, factor: int) -> Sections:
        return Sections(tuple(size * factor for size in self.sizes))

    def __str__(self) -> str:
        return f"sections({','.join(map(str, self.sizes))})"


@dataclass(frozen=True, slots=True)
class Zigzag:
    """2n equal runs; part i holds run i and run 2n-1-i, which balances causal attention over n ranks."""

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        step = _divide(extent, 2 * parts, self)
        late = 2 * parts - 1 - part
        return merge([(part * step, part * step + step), (late * step, late * step + step)])

    def scaled(self, factor: int) -> Zigzag:
        return self

    def __str__(self) -> str:
        return "zigzag"


Plain = Contiguous | Zigzag
"""The layouts of a loop that has its dimension to itself."""


@dataclass(frozen=True, slots=True)
class Nested:
    """Several equal runs, each cut alike: how an inner loop is cut where it shares its dimension with outer ones
    (batch and sequence as one, cut along the sequence). Seen as the two dimensions that it is, the inner one lies in
    `layout`; so whatever moves that moves this."""

    runs: int
    layout: Plain = Contiguous()

    def __post_init__(self) -> None:
        _positive((self.runs,), "nested")

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        run = _divide(extent, self.runs, self)
        own = self.layout.pieces(run, parts, part)
        return merge((at * run + start, at * run + stop) for at in range(self.runs) for start, stop in own)

    def scaled(self, factor: int) -> Nested:
        return self

    def __str__(self) -> str:
        inner = str(self.layout)
        return f"nested({self.runs},{inner})" if inner else f"nested({self.runs})"


@dataclass(frozen=True, slots=True)
class Uneven:
    """Part i is a run of sizes[i]: for GPUs that are not alike."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        _positive(self.sizes, "uneven")

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        _adds_up(self.sizes, extent, self)
        if len(self.sizes) != parts:
            raise UnevenMismatch(
                place=str(self),
                cause=f"{len(self.sizes)} sizes for {parts} parts",
                fix="give one size per position on the axis",
            )
        start = _starts(self.sizes)[part]
        return ((start, start + self.sizes[part]),)

    def scaled(self, factor: int) -> Uneven:
        return Uneven(tuple(size * factor for size in self.sizes))

    def __str__(self) -> str:
        return f"uneven({','.join(map(str, self.sizes))})"


@dataclass(frozen=True, slots=True)
class Padded:
    """Part i is the i-th run of so many elements: the last parts hold less, or nothing, and have room for a whole run.

    Trainers cut parameters so that nothing divides. What is stored, gathered and scattered has the size of the first
    part. `runs`: of each axis that cuts, major to minor, where several do as one group.
    """

    runs: tuple[int, ...]

    def __post_init__(self) -> None:
        _positive(self.runs, "padded")

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        run = self.runs[-1]
        if parts * run < extent:
            raise SectionsMismatch(
                place=str(self), cause=f"{parts} runs do not hold {extent}", fix="give runs that hold all"
            )
        start, stop = part * run, min(part * run + run, extent)
        return ((start, stop),) if start < stop else ()

    def scaled(self, factor: int) -> Padded:
        return Padded(tuple(run * factor for run in self.runs))

    def __str__(self) -> str:
        return f"padded({','.join(map(str, self.runs))})"


Layout = Contiguous | Sections | Zigzag | Nested | Uneven | Padded

CONTIGUOUS = Contiguous()
ZIGZAG = Zigzag()

LAYOUT_PATTERN = r"zigzag|nested\(\d+(?:,zigzag)?\)|(?:sections|uneven|padded)\(\d+(?:,\d+)*\)"
"""What is written of layouts that are not contiguous."""


def parse_layout(text: str) -> Layout:
    """Read what `str(layout)` writes; the empty text is contiguous."""
    if not text:
        return CONTIGUOUS
    if not re.fullmatch(LAYOUT_PATTERN, text):
        raise PlacementSyntax(
            place=repr(text),
            cause="no such layout",
            fix="use zigzag, nested(…), sections(…), uneven(…), padded(…) or nothing",
        )
    kind, _, inside = text.rstrip(")").partition("(")
    words = inside.split(",")
    if kind == "zigzag":
        return ZIGZAG
    if kind == "nested":
        return Nested(int(words[0]), ZIGZAG if len(words) > 1 else CONTIGUOUS)
    sizes = tuple(map(int, words))
    if kind == "sections":
        return Sections(sizes)
    return Uneven(sizes) if kind == "uneven" else Padded(sizes)


def merge(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same indices in the same order, with runs that touch joined."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def select(spans: Sequence[Span], local: Sequence[Span]) -> tuple[Span, ...]:
    """Take the positions `local` of a tensor whose own positions are the indices `spans`."""
    chosen: list[Span] = []
    for start, stop in local:
        offset = 0
        for first, last in spans:
            low, high = max(start, offset), min(stop, offset + last - first)
            if low < high:
                chosen.append((first + low - offset, first + high - offset))
            offset += last - first
    return merge(chosen)


def length(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)


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
    """How one tensor lies on a mesh.

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
        """Made anew in another process, where strings have other hashes."""
        return Placement, (self.dims, self.partial)

    @staticmethod
    def replicated(rank: int) -> Placement:
        return Placement(((),) * rank)

    @property
    def rank(self) -> int:
        return len(self.dims)

    def on(self, axis: str) -> int | Partial | None:
        """What the axis does: the dimension it cuts, its partial, or None for copies."""
        for index, dim in enumerate(self.dims):
            if any(shard.axis == axis for shard in dim):
                return index
        return next((p for p in self.partial if p.axis == axis), None)

    def check(self, shape: Sequence[int], mesh: Mesh, place: str) -> None:
        """Must: one entry per dimension, axes of the mesh, extents that the layouts can cut."""
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
        return State(((),) * rank)

    def without_gradient(self) -> State:
        """The state of the same value where no gradient flows: R|P and R|R are then one."""
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
    """What shards leave of an extent on the first rank."""
    left = extent
    for shard in dim:
        if not isinstance(shard.layout, Contiguous):
            return _first_length(dim, extent, mesh)
        left = _divide(left, mesh.axis(shard.axis).size, shard.layout)
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
    """Must: axes of the mesh, and every dimension can be cut."""
    for axis in placement.axes:
        mesh.axis(axis)
    for dim, extent in zip(placement.dims, shape, strict=True):
        if dim:
            _check_cut(dim, extent, mesh)


@lru_cache(maxsize=65536)
def _check_cut(dim: Dim, extent: int, mesh: Mesh) -> None:
    """Must: every part can be cut. What could be once is not tried again; only parts of unequal sizes can fail one by
    one, of others any shows what all are like."""
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


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(sizes)][:-1]


def _divide(extent: int, parts: int, layout: object) -> int:
    if extent % parts:
        name = str(layout) or "contiguous"
        raise IndivisibleExtent(
            place=name,
            cause=f"{extent} does not divide into {parts} equal parts",
            fix="choose a degree that divides it",
        )
    return extent // parts


def _adds_up(sizes: Sequence[int], extent: int, layout: object) -> None:
    if sum(sizes) != extent:
        raise SectionsMismatch(
            place=str(layout),
            cause=f"sizes add up to {sum(sizes)}, the extent is {extent}",
            fix="make the sizes add up",
        )


def _positive(sizes: Sequence[int], name: str) -> None:
    if not sizes or min(sizes) < 1:
        raise BadLayoutSize(
            place=f"{name}{tuple(sizes)}", cause="sizes must be positive", fix="list one positive size per part"
        )
