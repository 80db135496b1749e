"""Ranks started on the hosts of a testbed: what each host prints, and no time-out of TCP meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

from benchmarks.testbed.hosts import ADAPTER, Host
from benchmarks.testbed.sleeping import VARIABLE

ROOT = Path(__file__).parents[2]
SITE = ROOT / "benchmarks" / "testbed" / "site"
STEP = re.compile(r"^step (\d+) .*step_time_s ([\d.]+)", re.MULTILINE)
SHOWN = 3000
"""Characters of what failing ranks printed that are repeated."""


class Failed(RuntimeError):
    """Ranks that ended early, were ended, or met time-outs of TCP."""


def steps_of(folder: Path, hosts: Sequence[Host], rates: Sequence[float], steps: int, limit_s: float) -> list[float]:
    """Seconds of every step of an emitted plan, started by its launch.sh on the hosts that its ranks are placed on;
    hosts compute at these rates."""
    rows = json.loads((folder / "ranks.json").read_text())
    order = list(dict.fromkeys(row["host"] for row in rows))
    commands = [[str(folder / "launch.sh"), "--steps", str(steps)] for _ in order]
    printed = printed_by([hosts[at] for at in order], commands, [rates[at] for at in order], limit_s)
    found = {int(number): float(seconds) for text in printed for number, seconds in STEP.findall(text)}
    if sorted(found) != list(range(steps)):
        raise Failed(f"{folder}: of {steps} steps {sorted(found)} were printed: {printed[0][-SHOWN:]}")
    return [found[number] for number in range(steps)]


def printed_by(
    hosts: Sequence[Host], commands: Sequence[Sequence[str]], rates: Sequence[float], limit_s: float
) -> list[str]:
    """What a command prints on each host, all at once; NODE_RANK is their order, and HEAD the first of them."""
    before = [host.timeouts() for host in hosts]
    said = [TemporaryFile("w+") for _ in hosts]  # noqa: SIM115 - closed below
    running = [
        subprocess.Popen(
            host.command(*command),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment(hosts[0].address, number, rate),
            start_new_session=True,
        )
        for number, (host, command, rate, file) in enumerate(zip(hosts, commands, rates, said, strict=True))
    ]
    try:
        _wait(running, limit_s)
        codes = [one.returncode for one in running]
        texts = [_text(file) for file in said]
    finally:
        for one in running:
            _end(one)
        for file in said:
            file.close()
    if any(code != 0 for code in codes):
        first = next(at for at, code in enumerate(codes) if code != 0)
        raise Failed(f"exit codes {codes}; {hosts[first].name} printed last: {texts[first][-SHOWN:]}")
    late = [host.timeouts() - count for host, count in zip(hosts, before, strict=True)]
    if any(late):
        raise Failed(f"time-outs of TCP, host by host: {late}")
    return texts


def environment(head: str, number: int, flops_per_s: float) -> Mapping[str, str]:
    """What a host's ranks are told: where to meet, how fast they are, and to sleep."""
    paths = [str(SITE), str(ROOT / "src"), str(ROOT)]
    return {
        "HEAD": head,
        "NODE_RANK": str(number),
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": ADAPTER,
        VARIABLE: repr(flops_per_s),
    }


def _wait(running: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait for all, or for the first that fails."""
    until = time.monotonic() + limit_s
    while any(one.poll() is None for one in running) and time.monotonic() < until:
        if any(one.returncode for one in running):
            return
        time.sleep(0.1)


def _end(one: subprocess.Popen[bytes]) -> None:
    """End a host's command with all that it started."""
    if one.poll() is None:
        os.killpg(one.pid, signal.SIGKILL)
    one.wait()


def _text(file: TextIO) -> str:
    file.seek(0)
    return file.read()
