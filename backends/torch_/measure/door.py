"""What a calibration asks of torch: its versions, and cases measured, on ranks of its own or on those of torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile

from meshwright.backends.measuring import Case, Told
from meshwright.ir.errors import RanksFailed

SHOWN = 2000
"""Characters of what failing ranks printed that are repeated."""
LIBRARY = "gloo"


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


def measure_joined(cases: Sequence[Case], samples: Path, *, threads: int, budget_s: float, told: Told) -> None:
    """The same as one of the ranks that torchrun started."""
    from meshwright.backends.torch_.measure.ranks import joined

    joined(cases, samples, threads, budget_s, told)
