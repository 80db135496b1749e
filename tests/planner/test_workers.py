"""Work shared out: every piece once, in spite of processes that end or hang; and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.planner.workers import _Crew, shared_out

BATCHES = [[0, 1, 2], [3], [], [4, 5, 6, 7], [8, 9]]


def lost(piece: int, why: str) -> str:
    return f"{piece} lost: {why}"


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_every_piece_is_done_once(jobs: int) -> None:
    done = list(shared_out([BATCHES], lambda piece: f"{piece} done", lost, jobs=jobs, limit_s=60))
    assert sorted(done) == [(piece, f"{piece} done") for piece in range(10)]
    assert not multiprocessing.active_children()


def test_a_batch_stays_with_one_process() -> None:
    done = dict(shared_out([BATCHES], lambda piece: str(os.getpid()), lost, jobs=2, limit_s=60))
    for batch in BATCHES:
        assert len({done[piece] for piece in batch}) <= 1
    assert str(os.getpid()) not in done.values()


def test_a_process_that_ends_costs_one_piece() -> None:
    def work(piece: int) -> str:
        if piece in (0, 5):
            os._exit(7)
        return "done"

    done = dict(shared_out([BATCHES], work, lost, jobs=2, limit_s=60))
    for piece in (0, 5):
        assert done.pop(piece) == f"{piece} lost: its process ended with exit code 7"
    assert done == dict.fromkeys(set(range(10)) - {0, 5}, "done")


def test_a_process_that_hangs_costs_one_piece_and_its_time() -> None:
    def work(piece: int) -> str:
        if piece == 4:
            time.sleep(600)
        return "done"

    done = dict(shared_out([BATCHES], work, lost, jobs=2, limit_s=3))
    assert done.pop(4) == "4 lost: it took longer than 3 s"
    assert done == dict.fromkeys(set(range(10)) - {4}, "done")
    assert not multiprocessing.active_children()


def test_who_stops_listening_leaves_nobody_behind() -> None:
    with closing(shared_out([BATCHES], lambda piece: "done", lost, jobs=2, limit_s=60)) as arriving:
        next(arriving)
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()


def test_a_process_goes_on_with_the_next_batch_and_takes_over_the_far_half() -> None:
    """Of twelve batches in a row two processes take six each, one from either half, whatever else differs."""
    pieces = [[piece] for piece in range(12)]
    done = dict(shared_out([pieces], slow_pid, lost_pid, jobs=2, limit_s=60))
    changes = sum(done[piece] != done[piece + 1] for piece in range(11))
    assert len(set(done.values())) == 2
    assert changes <= 5


def slow_pid(piece: int) -> int:
    time.sleep(0.02)
    return os.getpid()


def lost_pid(piece: int, why: str) -> int:
    raise AssertionError(f"{piece}: {why}")


def test_windows_follow_one_another() -> None:
    windows = [[[0], [1, 2]], [], [[3], [4]], [[5]]]
    order = [piece for piece, _ in shared_out(windows, lambda piece: "done", lost, jobs=1, limit_s=60)]
    assert order == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("ahead", "windows", "taken", "left"),
    [
        ([[], [1, 2, 3, 4, 5], [6, 7]], [], [3, 4, 5], [[1, 2], [6, 7]]),
        ([[], [1, 2], [3, 4, 5, 6]], [], [5, 6], [[1, 2], [3, 4]]),
        ([[], [1], []], [[8]], [1], [[], []]),
        ([[], [], []], [[], [8, 9], [10]], [8, 9], [[], []]),
        ([[], [], []], [], [], [[], []]),
    ],
)
def test_the_far_half_of_who_has_most(
    ahead: list[list[int]], windows: list[list[int]], taken: list[int], left: list[list[int]]
) -> None:
    """Rounded up, in its order; the next window that holds anything, where nobody has anything ahead."""
    crew: Any = _Crew(str, 1.0, windows)  # type: ignore[arg-type]
    crew.workers = [SimpleNamespace(ahead=deque(own)) for own in ahead]
    crew.take_over(crew.workers[0])
    assert [list(one.ahead) for one in crew.workers] == [taken, *left]
