"""The line on a terminal that says how a command goes on: from its start, once a second, and gone in the end."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.planner.cli import progress as module
from meshwright.planner.cli.progress import Progress, line
from meshwright.planner.search.phases import PRICING, REFINING, SEARCHING
from meshwright.planner.search.search import Counts
from tests.planner.solved import question

WIPED = "\r\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What was written, each over what was before; without the seconds."""
        return [text.partition(" s  ")[2] for text in self.getvalue().split(WIPED)[1:]]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def searched(upper_s: float, *bounds_s: float, expanded: bool = True) -> Any:
    counts = Counts(bases=1200, shapes=34567, priced=89)
    heap = [SimpleNamespace(bound_s=bound_s) for bound_s in bounds_s]
    return SimpleNamespace(counts=counts, upper_s=upper_s, expanded=expanded, heap=heap)


COUNTED = "1,200 kernel and 34,567 pipeline configurations, 89 priced"


def test_what_is_known_of_a_search() -> None:
    """The bound is the least that is left, once all is bounded; it is never above the answer."""
    table = (
        (searched(inf, 1.0), "nothing fits yet"),
        (searched(2.0, 1.5, 1.0), "best 2 s, bound 1.5 s (gap 25.00 %)"),
        (searched(2.0, 3.0), "best 2 s, bound 2 s (gap 0.00 %)"),
        (searched(2.0), "best 2 s"),
        (searched(2.0, 1.0, expanded=False), "best 2 s"),
    )
    for search, said in table:
        assert line(search) == f": {said}; {COUNTED}"


def test_a_phase_is_told_at_once_and_then_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "TICK_S", 1e6)
    terminal = Terminal()
    with Progress(terminal) as progress:
        progress.phase("loading")
        for phase, now_s, times in (
            (PRICING, 50.0, 2),
            (PRICING, 50.05, 2),
            (PRICING, 50.15, 3),
            (SEARCHING, 50.2, 4),
            (SEARCHING, 50.25, 4),
        ):
            now[0] = now_s
            progress.told(phase, searched(2.0))
            assert len(terminal.lines) == times
        now[0] = 62.0
        progress.told(REFINING)
    price, search = (f"{phase}: best 2 s; {COUNTED}" for phase in (PRICING, SEARCHING))
    assert terminal.lines == ["loading", price, price, search, REFINING, ""]
    assert "  12 s  refining" in terminal.getvalue()


def test_seconds_go_on_while_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    terminal = Terminal()
    with Progress(terminal) as progress:
        progress.phase("loading")
        until = time.monotonic() + 10.0
        while len(terminal.lines) < 4:
            assert time.monotonic() < until
            time.sleep(0.01)
    after = terminal.getvalue()
    assert set(terminal.lines) == {"loading", ""}
    time.sleep(0.05)
    assert terminal.getvalue() == after
    assert progress.ticking is None


def test_a_line_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character less: some terminals begin a new line after their last column. What does not fit is
    left out by clauses."""
    counted = "1,200 kernel and 34,567 pipeline configurations"
    for columns, shown in ((28, ": best 2 s"), (27, ""), (77, f": best 2 s; {counted}"), (76, ": best 2 s"), (12, "")):
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal = Terminal()
        with Progress(terminal) as progress:
            progress.told(SEARCHING, searched(2.0))
        assert terminal.getvalue().split(WIPED)[1] == f"   0 s  searching{shown}"[: columns - 1]


@pytest.mark.parametrize("words", [{}, {"FORCE_COLOR": "1"}])
def test_what_is_no_terminal_hears_nothing(monkeypatch: pytest.MonkeyPatch, words: dict[str, str]) -> None:
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    pipe = io.StringIO()
    with Progress(pipe) as progress:
        progress.phase("loading")
        progress.told(SEARCHING, searched(2.0))
        progress.counted(1, 2)
    assert (pipe.getvalue(), progress.ticking) == ("", None)


def test_a_command_may_be_started_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    for stream in (None, Terminal()):
        with Progress(stream) as progress:
            progress.phase("loading")
        assert sys.stdout is None


def test_a_terminal_that_cannot_be_written_over_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with Progress(terminal) as progress:
        progress.phase("loading")
    assert terminal.getvalue() == ""


def test_what_is_counted_does_not_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are forked meanwhile. The last one is always told."""
    monkeypatch.setattr(module, "EVERY_S", 1e6)
    terminal = Terminal()
    with Progress(terminal) as progress:
        progress.phase("loading")
        progress.next_s = 0.0
        for done in (1, 2, 1051):
            progress.counted(done, 1051)
            assert progress.ticking is None
    assert terminal.lines == ["loading", "1 of 1,051 configurations", "1,051 of 1,051 configurations", ""]


def test_what_others_print_goes_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not written over before its line has ended. What is no terminal is left alone."""
    monkeypatch.setattr(module, "TICK_S", 1e6)
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", pipe)
    with Progress(terminal) as progress:
        progress.phase("loading")
        sys.stderr.write("a note")
        progress.phase("tracing")
        sys.stderr.write(", ended\n")
        sys.stdout.write("a result\n")
        progress.phase("searching")
        assert sys.stderr.isatty()
    assert (sys.stderr, sys.stdout) == (terminal, pipe)
    assert pipe.getvalue() == "a result\n"
    assert terminal.getvalue() == (f"{WIPED}   0 s  loading{WIPED}a note, ended\n{WIPED}   0 s  searching{WIPED}")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
def test_a_forked_process_tells_nothing_and_waits_for_nobody() -> None:
    """Whoever held the lock when it was forked is not there to release it."""
    terminal, (reading, writing) = Terminal(), os.pipe()
    with Progress(terminal) as progress:
        progress.phase("loading")
        with progress.writing:
            child = os.fork()
            if child == 0:
                sys.stderr.write("a note\n")
                progress.told(SEARCHING)
                os.write(writing, terminal.getvalue().encode())
                os._exit(0)
        os.waitpid(child, 0)
        assert b"searching" not in os.read(reading, 10_000)


def test_phases_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real question."""
    from meshwright.planner.answer.solve import solve

    ask, setting, wished = question()
    heard: list[str] = []
    solved = solve(ask, setting, wished, told=lambda phase, search=None: heard.append(phase))
    assert solved.best is not None
    assert list(dict.fromkeys(heard)) == ["tracing the model", PRICING, SEARCHING, REFINING]


BEGINS = """
import io, sys
from meshwright.planner.cli import main as module
from meshwright.planner.cli.main import Verb

class Terminal(io.StringIO):
    def isatty(self):
        return True

sys.stderr = terminal = Terminal()
module.import_module = lambda name: sys.modules["__main__"]

def run(args):
    heavy = [name for name in ("torch", "jax", "pydantic", "networkx") if name in sys.modules]
    print(repr(terminal.getvalue()), heavy)
    args.progress.clear()
    print(repr(terminal.getvalue()[-5:]))
    return 0

verb = Verb(name="plan", help="", arguments=lambda parser: None, module="its own", begins="loading the model")
module.main(["plan"], verbs=(verb,))
"""


def test_the_first_line_comes_before_anything_heavy() -> None:
    """The environment of this process has a terminal and its width (`_terminal`)."""
    done = subprocess.run([sys.executable, "-c", BEGINS], capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    assert first == "'\\r\\x1b[2K   0 s  loading the model' []"
    assert last == "'\\r\\x1b[2K'"
