"""What a calibration asks of torch: its versions, and cases measured, on ranks of its own or on those of torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TextIO

from meshwright.backends.measuring import Case, Told
from meshwright.ir.errors import RanksFailed

SHOWN = 2000
"""Characters of what failing ranks printed that are repeated."""
LIBRARY = "gloo"
REFERENCE = Path(__file__).with_name("reference.py")
REFERENCES = (("narrow", 8, 16), ("broad", 8, 32), ("long", 8, 64))
"""Reference models, with the sequences of a step and the tokens of each."""


def libraries() -> tuple[tuple[str, str], ...]:
    """The software that is measured."""
    return (("torch", version("torch")),)


def measure(
    cases: Sequence[Case], samples: Path, *, ranks: int, threads: int, budget_s: float, limit_s: float, told: Told
) -> None:
    """Append samples of all cases to a file, on ranks that are started for this and ended after `limit_s`."""
    command = [sys.executable, "-m", "meshwright.backends.torch_.measure.ranks"]
    command += [str(os.getpid()), str(ranks), str(threads), str(budget_s), str(samples)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with (
        TemporaryFile("w+") as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        ) as running,
    ):
        late = threading.Timer(limit_s, running.kill)
        late.start()
        try:
            assert running.stdin is not None, "it is a pipe"
            assert running.stdout is not None, "it is a pipe"
            running.stdin.write("".join(f"{case}\n" for case in cases))
            running.stdin.close()
            for line in running.stdout:
                told(Case.parse(line))
            code = running.wait()
        finally:
            late.cancel()
            running.kill()
        if code:
            said.seek(0)
            raise RanksFailed(
                place=f"plan calibrate, {ranks} ranks",
                cause=f"they ended with {code}" if code > 0 else f"they were ended after {limit_s:g} s",
                fix=f"correct what they died of, and start it again; what was printed last:\n{said.read()[-SHOWN:]}",
            )


def steps(
    scripts: Sequence[Path], *, ranks: int, threads: int, rounds: int, each: int, limit_s: float
) -> list[list[float]]:
    """Seconds of every round of every script, run in turns on ranks that are started for this."""
    with socket.socket() as free, TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port, out = free.getsockname()[1], Path(folder) / "out"
        free.close()
        command = [sys.executable, "-m", "meshwright.backends.torch_.measure.steps"]
        command += [str(os.getpid()), str(threads), str(rounds), str(each), str(out), *map(str, scripts)]
        named = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        named["OMP_NUM_THREADS"] = str(threads)
        said = [(Path(folder) / f"{rank}.said").open("w+") for rank in range(ranks)]
        places = [named | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        running = [
            subprocess.Popen(command, stderr=file, env=os.environ | place)
            for file, place in zip(said, places, strict=True)
        ]
        try:
            _wait(running, said, limit_s)
        finally:
            for one, file in zip(running, said, strict=True):
                one.kill()
                one.wait()
                file.close()
        found: list[list[float]] = json.loads(out.read_text())
        return found


def _wait(running: Sequence[subprocess.Popen[bytes]], said: Sequence[TextIO], limit_s: float) -> None:
    """Wait for all ranks, or for the first that fails."""
    until = time.monotonic() + limit_s
    while any(one.poll() is None for one in running):
        failed = next((rank for rank, one in enumerate(running) if one.returncode), None)
        if failed is not None or time.monotonic() > until:
            break
        time.sleep(0.05)
    codes = [one.poll() for one in running]
    if any(codes) or None in codes:
        rank = next((rank for rank, code in enumerate(codes) if code), 0)
        said[rank].seek(0)
        raise RanksFailed(
            place=f"whole steps on {len(running)} ranks",
            cause=f"rank {rank} ended with {codes[rank]}" if codes[rank] else f"they were ended after {limit_s:g} s",
            fix=f"correct what they died of; what was printed last:\n{said[rank].read()[-SHOWN:]}",
        )


def measure_joined(cases: Sequence[Case], samples: Path, *, threads: int, budget_s: float, told: Told) -> None:
    """The same as one of the ranks that torchrun started."""
    from meshwright.backends.torch_.measure.ranks import joined

    joined(cases, samples, threads, budget_s, told)
