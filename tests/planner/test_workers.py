"""Work shared out: every piece once, in spite of processes that end or hang; and nobody is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.planner.answer import workers
from meshwright.planner.answer.workers import _collect, _Crew, shared_out

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


def state_of(_: int) -> tuple[object, ...]:
    """What a process is like: whom it is, what it ignores, how it collects garbage, its ends of pipes."""
    ends = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    sockets = sum(str(path.readlink()).startswith("socket:") for path in ends)
    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return os.getpid(), ignores, gc.get_threshold(), gc.get_freeze_count() > 0, sockets


@pytest.mark.skipif(sys.platform != "linux", reason="counts what is open")
def test_what_processes_begin_with() -> None:
    """Each hears from us alone: it has one end of one pipe, whatever others were started before it. Threads of ours
    are no reason to warn."""
    before, ended = gc.get_threshold(), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    gc.set_threshold(700, 10, 10)
    try:
        mine = state_of(0)
        done = dict(shared_out([[[0], [1], [2]]], state_of, lambda *_: (), jobs=3, limit_s=60))
    finally:
        gc.set_threshold(*before)
        ended.set()
        thread.join()
    assert len({state[0] for state in done.values()}) == 3
    assert {state[1:] for state in done.values()} == {(True, (100_000, 20, 100), True, int(str(mine[4])) + 1)}
    assert gc.get_freeze_count() == 0


NOW_S, LIMIT_S = 100.0, 10.0


def collected(
    monkeypatch: pytest.MonkeyPatch,
    own: Sequence[int],
    answer: object,
    *,
    deadline_s: float = NOW_S + 4,
    ahead: Sequence[Sequence[int]] = (),
    others: Sequence[Sequence[int]] = (),
    windows: Sequence[Sequence[Sequence[int]]] = (),
    code: int | None = 7,
) -> tuple[list[object], list[object]]:
    """What arrives of a process with these pieces that answers so, is silent (None) or has ended, and what is done.
    Two others have pieces ahead, one of them none at hand, and more time."""
    did: list[object] = []

    class Pipe:
        def recv(self) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

    def wait(pipes: Sequence[object], timeout: float) -> list[object]:
        did.append((len(pipes), timeout))
        return [] if answer is None else [pipes[0]]

    def go_on(one: Any) -> None:
        did.append(("on", one is worker, [list(batch) for batch in one.ahead]))

    worker = SimpleNamespace(
        pipe=Pipe(), left=deque(own), ahead=deque(deque(one) for one in ahead), deadline_s=deadline_s
    )
    rest = [
        SimpleNamespace(pipe=Pipe(), left=deque(left), ahead=deque(others), deadline_s=NOW_S + more)
        for left, more in (([], 1), ([99], 8))
    ]
    crew: Any = SimpleNamespace(
        workers=[worker, *rest],
        limit_s=LIMIT_S,
        windows=deque(windows),
        dismiss=lambda one: did.append("dismissed") or code,
        hire=lambda: SimpleNamespace(ahead=deque()),
        go_on=go_on,
    )
    monkeypatch.setattr(workers, "wait", wait)
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: NOW_S))
    arrived: list[object] = list(_collect(crew, lost))
    did.append((list(worker.left), worker.deadline_s))
    return arrived, did


def test_what_is_done_with_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited until the first deadline of those at work. Each piece has its time; one that is lost costs that
    piece alone, and there is a new process only where there is more to do."""
    found = collected(monkeypatch, [1, 2], (1, "done"))
    assert found == ([(1, "done")], [(2, 4.0), ([2], NOW_S + LIMIT_S)])
    found = collected(monkeypatch, [2], (2, "done"), ahead=[[5]])
    assert found == ([(2, "done")], [(2, 4.0), ("on", True, [[5]]), ([], NOW_S + LIMIT_S)])
    assert collected(monkeypatch, [1], None) == ([], [(2, 4.0), ([1], NOW_S + 4)])
    late = "1 lost: it took longer than 10 s"
    table: tuple[tuple[dict[str, Any], list[list[int]] | None], ...] = (
        ({"own": [1]}, None),
        ({"own": [1, 2, 3]}, [[2, 3]]),
        ({"own": [1, 2], "ahead": [[5], [6]]}, [[2], [5], [6]]),
        ({"own": [1], "ahead": [[5]]}, [[5]]),
        ({"own": [1], "others": [[6]]}, []),
        ({"own": [1], "windows": [[[7]]]}, []),
    )
    for words, heir in table:
        went = [] if heir is None else [("on", False, heir)]
        left = (list(words["own"][1:]), NOW_S)
        arrived, did = collected(monkeypatch, answer=None, deadline_s=NOW_S, **words)
        assert (arrived, did) == ([(1, late)], [(2, 0.0), "dismissed", *went, left])
    for error, code, said in (
        (EOFError(), 7, "1 lost: its process ended with exit code 7"),
        (OSError(), None, "1 lost: its process ended"),
    ):
        arrived, did = collected(monkeypatch, [1], error, deadline_s=NOW_S - 5, code=code)
        assert (arrived, did) == ([(1, said)], [(2, 0.0), "dismissed", ([], NOW_S - 5)])
