"""Emitted scripts run in turns by one group of processes, step by step, so that what disturbs the machine disturbs all.

    python -m benchmarks.closed.ranks RANKS ROUNDS STEPS OUT SCRIPT [SCRIPT …]

Every rank builds what each script builds, and keeps it. A round takes all scripts in an order of its own, each for
so many steps; of a step the slowest rank counts, of a round the median step. OUT gets a list of rounds for each script,
in seconds; the first round, in which memory is allocated, is left out.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

LIMIT_S = 1800.0


def run(scripts: Sequence[Path], *, ranks: int, rounds: int, steps: int, out: Path) -> list[list[float]]:
    """Seconds of every round of every script, on ranks that are started for this."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(ranks), str(rounds), str(steps), str(out), *map(str, scripts)]
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.closed.ranks", *words],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    until = time.monotonic() + LIMIT_S
    try:
        for child in children:
            if child.wait(max(0.0, until - time.monotonic())):
                raise RuntimeError(f"a rank ended with {child.returncode}")
    finally:
        for child in children:
            child.kill()
    found: list[list[float]] = json.loads(out.read_text())
    return found


class Running:
    """A script that is built and ready to step."""

    def __init__(self, script: str) -> None:
        from meshwright.backends.torch_.verify.run.loading import load

        self.train: Any = load(script)
        self.mesh = self.train.start()
        self.model = self.train.parallelize(self.train.build(), self.mesh)
        if hasattr(self.train, "draw"):
            self.train.draw(self.model, self.mesh)
        self.optimizer = self.train.make_optimizer(self.model)
        self.batch = self.train.batch_of(0, self.mesh)

    def step(self) -> None:
        self.train.train_step(self.model, self.optimizer, self.batch, self.mesh)


def main(rounds: int, steps: int, out: Path, scripts: Sequence[str]) -> int:
    """One rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    running = [Running(script) for script in scripts]
    order, draw = list(range(len(running))), Random(0)
    found: list[list[float]] = [[] for _ in running]
    for number in range(rounds + 1):
        draw.shuffle(order)
        for index in order:
            took = []
            for _ in range(steps):
                dist.barrier()
                begin = time.perf_counter()
                running[index].step()
                slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
                dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
                took.append(slowest.item())
            if number:
                found[index].append(median(took))
        if dist.get_rank() == 0:
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    _, rounds_, steps_, out_, *scripts_ = sys.argv[1:]
    raise SystemExit(main(int(rounds_), int(steps_), Path(out_), scripts_))
