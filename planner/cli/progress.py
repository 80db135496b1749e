"""The progress of a command on a terminal: one line that is written over, from its start on; silent elsewhere.

    loading -> tracing -> pricing -> searching -> refining      12 s  searching: 54 kernel and …; best 2.28 s, gap 3 %

The line has the seconds since the command began, which go on while nothing else does: importing a framework and tracing
a model are single pieces of work. It is on standard error, never wider than the terminal, and gone when the command
prints.
"""

from __future__ import annotations

import threading
import time
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.cells import set_cell_size
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
BEGIN = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Progress:
    """The line of one command."""

    def __init__(self, stream: TextIO) -> None:
        console = Console(file=stream, highlight=False, markup=False, emoji=False) if stream.isatty() else None
        self.console = None if console is None or console.is_dumb_terminal else console
        self.began_s = time.monotonic()
        self.next_s = 0.0
        self.text = ""
        self.writing = threading.Lock()
        self.ticking: threading.Thread | None = None
        self.ended = threading.Event()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.clear()

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
        if self.console is not None and self.text:
            self.text = ""
            self.console.control(BEGIN)

    def _write(self) -> None:
        assert self.console is not None
        with self.writing:
            self.next_s = time.monotonic() + EVERY_S
            whole = f"{time.monotonic() - self.began_s:4.0f} s  {self.text}"
            room = self.console.width - 1  # in the last column some terminals begin a new line
            self.console.control(BEGIN)
            self.console.print(whole if len(whole) <= room else set_cell_size(whole, room), end="", soft_wrap=True)
            self.console.file.flush()

    def _tick(self) -> None:
        while not self.ended.wait(TICK_S):
            self._write()

    def _still(self) -> None:
        """End the ticking."""
        if self.ticking is not None:
            self.ended.set()
            self.ticking.join()
            self.ticking = None


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
