"""Layouts: the parts into which an axis cuts a dimension, as equal runs, unequal runs, sections, a zigzag, or an inner
loop."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meshwright.ir.errors import BadLayoutSize, IndivisibleExtent, PlacementSyntax, SectionsMismatch, UnevenMismatch

Span = tuple[int, int]
"""A half-open index range."""


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Part i is the i-th of equal runs."""

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        step = divided(extent, parts, self)
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
            step = divided(size, parts, self)
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
        step = divided(extent, 2 * parts, self)
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
    """Several equal runs, each cut alike: the cut of an inner loop that shares its dimension with outer ones (batch and
    sequence as one, cut along the sequence). Seen as two dimensions, the inner one lies in `layout`; whatever moves
    that moves this."""

    runs: int
    layout: Plain = Contiguous()

    def __post_init__(self) -> None:
        _positive((self.runs,), "nested")

    def pieces(self, extent: int, parts: int, part: int) -> tuple[Span, ...]:
        run = divided(extent, self.runs, self)
        own = self.layout.pieces(run, parts, part)
        return merge((at * run + start, at * run + stop) for at in range(self.runs) for start, stop in own)

    def scaled(self, factor: int) -> Nested:
        return self

    def __str__(self) -> str:
        inner = str(self.layout)
        return f"nested({self.runs},{inner})" if inner else f"nested({self.runs})"


@dataclass(frozen=True, slots=True)
class Uneven:
    """Part i is a run of sizes[i], for devices that differ."""

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
    """Part i is the i-th run of so many elements: the last parts are shorter or empty, with room for a whole run.

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
    """The same indices in the same order, with adjacent runs joined."""
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
    offsets = [0, *accumulate(last - first for first, last in spans)]
    for start, stop in local:
        at = max(0, bisect_right(offsets, start) - 1)
        while at < len(spans) and offsets[at] < stop:
            (first, _), offset = spans[at], offsets[at]
            low, high = max(start, offset), min(stop, offsets[at + 1])
            if low < high:
                chosen.append((first + low - offset, first + high - offset))
            at += 1
    return merge(chosen)


def length(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(sizes)][:-1]


def divided(extent: int, parts: int, layout: object) -> int:
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
