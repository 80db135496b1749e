"""The progress of a search on a terminal: one line that is written over; silent elsewhere."""

from __future__ import annotations

import time
from math import inf
from types import TracebackType
from typing import TextIO

from meshwright.planner.plan.units import percent, seconds
from meshwright.planner.search.search import Search

EVERY_S = 0.1
CLEAR = "\r\x1b[K"
"""Back to the start of the line, and erase it: ECMA-48."""


class Progress:
    """The line of one search."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream if stream.isatty() else None
        self.next_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.stream and self.next_s:
            self.stream.write(CLEAR)
            self.stream.flush()

    def told(self, search: Search) -> None:
        """Write the line, unless it was written just now."""
        if self.stream is None or time.monotonic() < self.next_s:
            return
        self.next_s = time.monotonic() + EVERY_S
        self.stream.write(CLEAR + line(search))
        self.stream.flush()


def line(search: Search) -> str:
    """The progress in words: what was looked at, the answer so far, and its bound."""
    counts = search.counts
    words = f"{counts.bases:,} kernel and {counts.shapes:,} pipeline configurations, {counts.priced:,} priced"
    if search.upper_s == inf:
        return f"{words}; nothing fits yet"
    words += f"; best {seconds(search.upper_s)}"
    if not search.expanded or not search.heap:
        return words
    return f"{words}, gap {percent(max(0.0, 1 - search.heap[0].bound_s / search.upper_s))}"
