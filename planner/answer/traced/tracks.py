"""Tracks of a trace: what a stream of a device, or a thread of a processor, did, and when.

    nested spans -> segments: disjoint, each of compute or of communication

A span may hold others (an operator calls operators, a loop holds its body), so each instant belongs to the innermost
span that runs then. It is communication where that span, or one around it, is a collective or a message by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COLLECTIVE = re.compile(
    r"nccl|rccl|gloo:|c10d|all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|collective"
    r"|\b(send|recv|broadcast)\b",
    re.IGNORECASE,
)
"""Names of collectives and messages: of NCCL's kernels, gloo's and c10d's operators, and XLA's instructions."""
COMPUTE, COMMUNICATION = "compute", "communication"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that ran, in microseconds of its trace's clock."""

    name: str
    start_us: float
    end_us: float

    @property
    def kind(self) -> str:
        return COMMUNICATION if COLLECTIVE.search(self.name) else COMPUTE


@dataclass(frozen=True, slots=True)
class Track:
    """A stream or a thread, by its name and that of its process, with its spans in order: outer ones first."""

    process: str
    thread: str
    spans: tuple[Span, ...]

    def moved(self, by_us: float) -> Track:
        """The track on a clock that is ahead of its own."""
        spans = (Span(one.name, one.start_us + by_us, one.end_us + by_us) for one in self.spans)
        return Track(self.process, self.thread, tuple(spans))


Interval = tuple[float, float]


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans by their beginnings, outer ones first."""
    return tuple(sorted(spans, key=lambda span: (span.start_us, -span.end_us, span.name)))


def nested(track: Track) -> list[Track]:
    """A track as tracks in which any two spans lie apart or one in the other, as viewers want them: mostly itself.

    Must: spans are in order.
    """
    rows: list[list[Span]] = []
    open_until: list[list[float]] = []  # by row, the ends of its spans that are open, the innermost last
    for span in track.spans:
        row = next((row for row, ends in enumerate(open_until) if _takes(ends, span)), len(rows))
        if row == len(rows):
            rows.append([])
            open_until.append([])
        rows[row].append(span)
        open_until[row].append(span.end_us)
    names = (track.thread, *(f"{track.thread}, beside ({number})" for number in range(1, len(rows))))
    return [Track(track.process, name, tuple(row)) for name, row in zip(names, rows, strict=False)]


def _takes(open_until: list[float], span: Span) -> bool:
    """Whether a span lies in the innermost one of a row that is open when it begins; the others are closed."""
    while open_until and open_until[-1] <= span.start_us:
        open_until.pop()
    return not open_until or span.end_us <= open_until[-1]


def within(track: Track, start_us: float, end_us: float) -> Track:
    """The part of a track that lies in a window; spans are cut at its ends."""
    spans = (
        Span(span.name, max(span.start_us, start_us), min(span.end_us, end_us))
        for span in track.spans
        if span.start_us < end_us and span.end_us > start_us
    )
    return Track(track.process, track.thread, in_order(spans))


def segments(track: Track) -> Iterator[tuple[str, Interval]]:
    """What a track does, from instant to instant: pieces of its spans, each of the innermost one. Must: spans are in
    order."""
    open_: list[tuple[str, float]] = []  # kind and end, the innermost last
    at = 0.0
    for span in track.spans:
        while open_ and open_[-1][1] <= span.start_us:
            kind, end = open_.pop()
            if end > at:
                yield kind, (at, end)
                at = end
        if open_ and span.start_us > at:
            yield open_[-1][0], (at, span.start_us)
        at = max(at, span.start_us)
        around = open_[-1][0] if open_ else COMPUTE
        open_.append((COMMUNICATION if COMMUNICATION in (around, span.kind) else COMPUTE, span.end_us))
    while open_:
        kind, end = open_.pop()
        if end > at:
            yield kind, (at, end)
            at = end


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals joined where they touch, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > start:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    """What intervals take together."""
    return sum(end - start for start, end in union(intervals))
