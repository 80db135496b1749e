"""Which rank a failed verification names."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from meshwright.backends.torch_.verify import ranks
from meshwright.backends.torch_.verify.ranks import PATIENCE_S, _first, _stopped, _wait


def test_the_rank_that_said_so_first_is_named_whichever_is_reaped_first(tmp_path: Path) -> None:
    (tmp_path / "1.died").write_text("200\na connection was closed by 2")
    (tmp_path / "2.died").write_text("100\nno more\nof it")
    assert _first({1: 256, 2: 256}, tmp_path) == (2, "no more\nof it")


def test_a_rank_that_was_ended_before_it_could_say_why_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.died").write_text("200\na connection was closed by 3")
    assert _first({1: 256, 3: 9}, tmp_path) == (3, "")


def test_ranks_that_end_together_are_looked_at_together(tmp_path: Path) -> None:
    """Rank 0 is reaped first, and failed last."""
    children = {_ended(tmp_path, rank, at): rank for rank, at in enumerate((300, 200, 100))}
    for child in children:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert _wait(children, tmp_path) == 1
    assert (tmp_path / "failed").read_text() == "2 1\nbroke at 100"


def test_ranks_that_are_told_to_end_print_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not end at once does not hold up the others for long: all of them share one time of patience."""
    clock = Clock()
    monkeypatch.setattr(ranks, "time", clock)
    reading, writing = os.pipe()
    children = {_asleep(writing, str(rank)): rank for rank in range(3)}
    for _ in children:
        os.read(reading, 1)
    stubborn = next(iter(children))
    _stopped(children)
    assert PATIENCE_S <= clock.now_s < PATIENCE_S + 1
    assert stubborn in children
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Clock:
    """A time that passes by sleeping alone."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def _asleep(writing: int, said: str) -> int:
    """A process; the first one ends only when it is killed."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGABRT, signal.SIG_IGN if said == "0" else signal.SIG_DFL)
        os.write(writing, b"!")
        while True:
            signal.pause()
    return child


def _ended(folder: Path, rank: int, at: int) -> int:
    (folder / f"{rank}.died").write_text(f"{at}\nbroke at {at}")
    child = os.fork()
    if not child:
        os._exit(1)
    return child
