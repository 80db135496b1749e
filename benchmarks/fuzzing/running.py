"""A case, run in a folder of its own under limits; with a signal, as a whole process.

Cases run in forks of a process that has imported everything, through the entry of the console script. The minute that a
model file may take is `MODEL_S` there: what is tried is that there is an end.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from benchmarks.fuzzing.case import LIMIT_S, WALL, Case, Ran
from benchmarks.mutation.forking import Ended, Job, forked, preload

MODEL_S = 6.0
MEMORY_BYTES = 6 << 30
"""Of addresses, beyond what the frameworks take."""
OUT, ERR, HERE = "out", "err", "here"


def warmed() -> None:
    """Import what cases would import, ours too."""
    preload()
    from meshwright.planner.cli.main import VERBS

    for verb in VERBS:
        import_module(verb.module)
    for name in ("door", "torch_.tracing.capture", "torch_.sources.hf_config", "torch_.sources.shape_toml"):
        import_module(f"meshwright.ir.frontends.{name}")


def run(cases: Iterable[tuple[int, Case]], folder: Path, at_once: int) -> Iterator[tuple[int, Case, Ran]]:
    """How every case ends, as it does; its files stay in a folder of its number."""
    known = dict[str, tuple[int, Case]]()

    def jobs() -> Iterator[Job]:
        for number, case in cases:
            own = folder / str(number)
            _prepare(case, own)
            known[str(own)] = number, case
            yield Job(name=str(own), work=_work(case, own), log=own / OUT, cpu_s=LIMIT_S, wall_s=WALL * LIMIT_S)

    for job, ended in forked(jobs(), at_once):
        number, case = known.pop(job.name)
        yield number, case, _ran(Path(job.name), ended)


def _prepare(case: Case, own: Path) -> None:
    here = own / HERE
    here.mkdir(parents=True)
    for name, content in case.files:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)
    for kind, name in case.made:
        if kind == "pipe":
            os.mkfifo(here / name)
        elif kind == "loop":
            (here / name).symlink_to(name)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made, suppress(OSError):
                made.bind(os.path.relpath(here / name))
        else:
            (here / name).mkdir()


def _work(case: Case, own: Path) -> Callable[[], int]:
    def work() -> int:
        os.chdir(own / HERE)
        os.dup2(os.open(own / ERR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        if case.signal:
            return _signalled(case)
        _bounded()
        sys.argv = ["plan", *case.argv]
        from meshwright.__main__ import main

        try:
            return main()
        except SystemExit as end:  # of argparse
            return end.code if isinstance(end.code, int) else int(end.code is not None)

    return work


def _bounded() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    set_timer = signal.setitimer
    signal.setitimer = lambda which, seconds, *again: set_timer(which, min(seconds, MODEL_S), *again)


def _signalled(case: Case) -> int:
    """The command as a process of its own, which gets the signal so long after it has begun to watch for it."""
    with subprocess.Popen([sys.executable, "-m", "meshwright", *case.argv]) as process:
        while process.poll() is None and not _watches(process.pid):
            time.sleep(0.005)
        time.sleep(case.after_s)
        process.send_signal(case.signal)
        code = process.wait()
    return code if code >= 0 else 128 - code


def _watches(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM, which Python by itself has not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return True
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _ran(own: Path, ended: Ended) -> Ran:
    texts = [(own / name).read_text(errors="replace") if (own / name).is_file() else "" for name in (OUT, ERR)]
    return Ran(
        code=ended.code,
        stopped=ended.stopped,
        out_of_time=ended.out_of_time,
        cpu_s=ended.cpu_s,
        out=texts[0],
        err=texts[1],
    )
