"""The progress of a command on a terminal: one line that is written over, from its start on; silent elsewhere.

    loading -> tracing -> pricing -> searching -> refining      12 s  searching: 54 kernel and …; best 2.28 s, gap 3 %

The line has the seconds since the command began, which go on while nothing else does: importing a framework and tracing
a model are single pieces of work. It is on standard error, never wider than the terminal, and gone when the command
prints; what others print meanwhile (a model's file, a warning) goes above it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from meshwright.planner.plan.units import percent, seconds

if TYPE_CHECKING:
    from meshwright.planner.search.search import Search

EVERY_S = 0.1
"""Between two lines at least."""
TICK_S = 1.0
"""Between two lines at most."""
CLAUSE = re.compile(r"[;,:] | \(")
"""Before what may be left out where a line is too long."""
BEGIN = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Progress:
    """The line of one command."""

    def __init__(self, stream: TextIO | None) -> None:
        console = Console(file=stream, highlight=False, markup=False, emoji=False) if _shows(stream) else None
        self.console = None if console is None or console.is_dumb_terminal else console
        if self.console is not None and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self.began_s = time.monotonic()
        self.next_s = 0.0
        self.text = ""
        self.writing = threading.Lock()
        self.shown = self.open = False
        """Whether the line is there; and whether the line of somebody else's text has not ended."""
        self.streams: tuple[TextIO, TextIO] | None = None
        self.ticking: threading.Thread | None = None
        self.ended = threading.Event()

    def __enter__(self) -> Progress:
        if self.console is not None:
            self.streams = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = (
                cast("TextIO", Above(stream, self)) if _shows(stream) else stream for stream in self.streams
            )
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.clear()
        if self.streams is not None:
            sys.stdout, sys.stderr = self.streams

    def phase(self, text: str) -> None:
        """Begin a phase: its line is written at once, and again every second."""
        if self.console is None:
            return
        self.text = text
        self._write()
        if self.ticking is None:
            self.ended.clear()
            self.ticking = threading.Thread(target=self._tick, daemon=True)
            self.ticking.start()

    def told(self, phase: str, search: Search | None = None) -> None:
        """Begin a phase, or tell how it goes on, unless the line was written just now."""
        if self.console is not None:
            text = f"{phase}{line(search) if search else ''}"
            begins = self.text.partition(":")[0] != text.partition(":")[0]
            if begins or time.monotonic() >= self.next_s:
                self.phase(text)

    def counted(self, done: int, total: int) -> None:
        """Tell how many of many things are done. Nothing ticks meanwhile: they are done by forked processes."""
        if self.console is not None and (time.monotonic() >= self.next_s or done == total):
            self._still()
            self.text = f"{done:,} of {total:,} configurations"
            self._write()

    def clear(self) -> None:
        """Wipe the line, until something is told again."""
        self._still()
        self.text = ""
        with self.writing:
            self._wipe()

    def above(self, stream: TextIO, text: str) -> int:
        """Write somebody else's text where the line is; that is told again below it."""
        with self.writing:
            self._wipe()
            self.open = not text.endswith("\n")
            return stream.write(text)

    def _forked(self) -> None:
        """Tell nothing in a forked process: the line, and whoever may hold the lock, stayed behind."""
        self.console, self.ticking, self.shown, self.writing = None, None, False, threading.Lock()

    def _wipe(self) -> None:
        if self.console is not None and self.shown:
            self.console.control(BEGIN)
            self.console.file.flush()
            self.shown = False

    def _write(self) -> None:
        assert self.console is not None
        with self.writing:
            if self.open:
                return
            self.next_s = time.monotonic() + EVERY_S
            whole = f"{time.monotonic() - self.began_s:4.0f} s  {self.text}"
            room = self.console.width - 1  # in the last column some terminals begin a new line
            self.console.control(BEGIN)
            ends = (len(whole), *(clause.start() for clause in CLAUSE.finditer(whole)))
            shown = whole[: max((end for end in ends if end <= room), default=room)]
            self.console.print(shown, end="", soft_wrap=True)
            self.console.file.flush()
            self.shown = True

    def _tick(self) -> None:
        while not self.ended.wait(TICK_S):
            self._write()

    def _still(self) -> None:
        """End the ticking."""
        if self.ticking is not None:
            self.ended.set()
            self.ticking.join()
            self.ticking = None


def _shows(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; a process that is started with it closed has none."""
    return stream is not None and stream.isatty()


class Above:
    """A terminal whose text goes above the line."""

    def __init__(self, stream: TextIO, progress: Progress) -> None:
        self.stream, self.progress = stream, progress

    def write(self, text: str) -> int:
        return self.progress.above(self.stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def line(search: Search) -> str:
    """How a search goes, in words: the answer so far, its bound, and what was looked at."""
    counts = search.counts
    looked = f"{counts.bases:,} kernel and {counts.shapes:,} pipeline configurations, {counts.priced:,} priced"
    if search.upper_s == inf:
        return f": nothing fits yet; {looked}"
    best = f"best {seconds(search.upper_s)}"
    if search.expanded and search.heap:
        bound_s = min(search.heap[0].bound_s, search.upper_s)
        best += f", bound {seconds(bound_s)} (gap {percent(1 - bound_s / search.upper_s)})"
    return f": {best}; {looked}"
