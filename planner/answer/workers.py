"""Work shared out among forked processes.

`shared_out` runs a function over numbered pieces of work. Pieces come in *batches*, whose pieces one process takes one
after another: what they share is then made once. Neighbouring batches may share too, so a process goes on with the
batch next to its last one, and one that has none left takes over the far half of what another one has ahead. Batches
come in *windows*; none of a window is begun while one of the window before waits. Processes are forked, so they find
everything that the parent has made, and only numbers and results travel. Results are given back as they come.

A process that ends by itself, or is silent for longer than `limit_s`, is killed and reaped; the piece that it was at is
given to `lost`, and a new process takes the rest of its batch. All are reaped when the iterator is closed, whatever
closes it. If the parent dies, its children find their pipes closed and end.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import ForkProcess
from typing import Generic, TypeVar

from meshwright.ir.processes import collect_rarely, end_with

R = TypeVar("R")

_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True)
class _Worker:
    """A process and its pending work; `left` starts with the current piece, `ahead` are batches."""

    process: ForkProcess
    pipe: Connection
    left: deque[int] = field(default_factory=deque)
    ahead: deque[Sequence[int]] = field(default_factory=deque)
    deadline_s: float = 0.0


class _Crew(Generic[R]):
    """The running processes."""

    def __init__(self, work: Callable[[int], R], limit_s: float, windows: Iterable[Sequence[Sequence[int]]]) -> None:
        self.work = work
        self.limit_s = limit_s
        self.workers: list[_Worker] = []
        self.windows = deque(windows)

    def hire(self) -> _Worker:
        ours, theirs = Pipe()
        others = [ours, *(worker.pipe for worker in self.workers)]
        process = _FORK.Process(target=_serve, args=(self.work, theirs, others, os.getpid()), daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of threads that are not forked along. Those that frameworks start hold no lock of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)
        return worker

    def go_on(self, worker: _Worker) -> None:
        """Give a process its next batch, if any waits."""
        if not worker.ahead:
            self.take_over(worker)
        if worker.ahead:
            self.give(worker, worker.ahead.popleft())

    def take_over(self, worker: _Worker) -> None:
        """Take the far half of the work of the process that has most ahead; the next window, if none has any."""
        other = max(self.workers, key=lambda one: len(one.ahead))
        for _ in range((len(other.ahead) + 1) // 2):
            worker.ahead.appendleft(other.ahead.pop())
        while not worker.ahead and self.windows:
            worker.ahead.extend(self.windows.popleft())

    def give(self, worker: _Worker, batch: Sequence[int]) -> None:
        worker.left = deque(batch)
        worker.deadline_s = time.monotonic() + self.limit_s
        with suppress(OSError):  # it has ended: its pipe will say so
            worker.pipe.send(list(batch))

    def dismiss(self, worker: _Worker) -> int | None:
        """End a process, and return its exit code."""
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        code = worker.process.exitcode
        worker.process.close()
        return code


def _serve(work: Callable[[int], R], pipe: Connection, others: Sequence[Connection], parent: int) -> None:
    """Run a child: take a batch and answer piece by piece, until the parent closes the pipe."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends us
    collect_rarely()
    for other in others:
        other.close()
    with suppress(EOFError, OSError):
        while True:
            for piece in pipe.recv():
                pipe.send((piece, work(piece)))
    os._exit(0)


def shared_out(
    windows: Iterable[Sequence[Sequence[int]]],
    work: Callable[[int], R],
    lost: Callable[[int, str], R],
    *,
    jobs: int,
    limit_s: float,
) -> Iterator[tuple[int, R]]:
    """Every piece with its result, in order of arrival; `lost(piece, why)` is the result of one whose process was
    lost."""
    waiting = [[batch for batch in window if batch] for window in windows]
    crew = _Crew(work, limit_s, waiting)
    gc.freeze()  # collections in the children then leave the parent's memory alone
    try:
        for _ in range(min(jobs, sum(map(len, waiting)))):
            crew.go_on(crew.hire())
        while any(worker.left for worker in crew.workers):
            yield from _collect(crew, lost)
    finally:
        for worker in list(crew.workers):
            crew.dismiss(worker)
        gc.unfreeze()


def _collect(crew: _Crew[R], lost: Callable[[int, str], R]) -> Iterator[tuple[int, R]]:
    """Results that arrive until the next deadline."""
    busy = [worker for worker in crew.workers if worker.left]
    pause_s = max(0.0, min(worker.deadline_s for worker in busy) - time.monotonic())
    ready = wait([worker.pipe for worker in busy], timeout=pause_s)
    for worker in busy:
        why = ""
        if worker.pipe in ready:
            try:
                piece, result = worker.pipe.recv()
            except (EOFError, OSError):
                why = "its process ended"
            else:
                worker.left.popleft()
                worker.deadline_s = time.monotonic() + crew.limit_s
                yield piece, result
        elif time.monotonic() >= worker.deadline_s:
            why = f"it took longer than {crew.limit_s:g} s"
        if why:
            code = crew.dismiss(worker)
            piece = worker.left.popleft()
            ended = f" with exit code {code}" if code is not None and why.endswith("ended") else ""
            yield piece, lost(piece, f"{why}{ended}")
            if worker.left:
                worker.ahead.appendleft(worker.left)
            if worker.ahead or any(one.ahead for one in crew.workers) or crew.windows:
                heir = crew.hire()
                heir.ahead = worker.ahead
                crew.go_on(heir)
        elif not worker.left:
            crew.go_on(worker)
