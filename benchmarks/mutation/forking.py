"""Work in forked processes that begin with everything slow imported, under limits.

A process gets a session of its own, so that what it started ends with it. The kernel limits its CPU time and its
memory; the wall clock only ends what waits for nothing, and is generous, since a busy machine must not decide what a
test finds.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FRAMEWORKS = (
    *("torch", "torch._dynamo", "torch.export", "torch.fx.experimental.symbolic_shapes", "torch.distributed.fsdp"),
    *("torch.distributed.tensor.parallel", "torch.distributed.pipelining", "torch.utils.flop_counter"),
    *("transformers", "transformers.modeling_utils", "transformers.models.llama.modeling_llama"),
    *("numpy", "networkx", "hypothesis", "hypothesis.strategies", "pytest", "_pytest.python", "_pytest.fixtures"),
)
"""What takes seconds to import and holds nothing of ours."""

MEMORY_BYTES = 3 * 2**30
"""Writable memory of each process, beyond which it raises."""

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work for a process of its own; what it prints goes to ``log``."""

    name: str
    work: Callable[[], int]
    log: Path
    cpu_s: float
    wall_s: float
    memory: int = MEMORY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended: ``code`` is what its work returned, None if it ran out of time or a signal stopped it."""

    code: int | None
    stopped: int | None
    out_of_time: bool
    cpu_s: float


def preload() -> None:
    """Import what all jobs would import."""
    for name in FRAMEWORKS:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)


def forked(jobs: Iterable[Job], at_once: int) -> Iterator[tuple[Job, Ended]]:
    """Run all jobs, so many at a time, and say how each ended as it does."""
    waiting, running = iter(jobs), dict[int, tuple[Job, float]]()
    try:
        while True:
            while len(running) < at_once and (job := next(waiting, None)) is not None:
                running[_fork(job)] = job, time.monotonic()
            if not running:
                return
            for pid in list(running):
                job, began = running[pid]
                if (ended := _look(pid, job, began)) is not None:
                    del running[pid]
                    yield job, ended
            time.sleep(_LOOK_S)
    finally:
        for pid in running:
            _kill(pid)


def _fork(job: Job) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) != 0:
        return pid
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells have ignored in the background
        out = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        limit = int(job.cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory, job.memory))
        # Anything raised is an answer here: the parent goes on with the next job.
        code = job.work()
    except BaseException:  # noqa: BLE001
        with open(2, "w", encoding="utf-8", closefd=False) as log:
            traceback.print_exc(file=log)  # whoever has sys.stderr
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _look(pid: int, job: Job, began: float) -> Ended | None:
    found, status, used = os.wait4(pid, os.WNOHANG)
    late = time.monotonic() - began > job.wall_s
    if not found and not late:
        return None
    _kill(pid)
    if not found:
        _, status, used = os.wait4(pid, 0)
    stopped = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return Ended(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) and not late else None,
        stopped=stopped,
        out_of_time=late or stopped in (signal.SIGXCPU, signal.SIGKILL),
        cpu_s=used.ru_utime + used.ru_stime,
    )


def _kill(pid: int) -> None:
    """End the session of a job, whoever of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
