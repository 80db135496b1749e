"""Emitted scripts run in turns by one group of processes, step by step, so that what disturbs the machine disturbs all.

    python -m meshwright.backends.torch_.measure.steps PARENT THREADS ROUNDS STEPS OUT SCRIPT [SCRIPT …]

Every rank builds what each script builds, and keeps it. A round takes all scripts in an order of its own, each for
so many steps; of a step the slowest rank counts, of a round the median step. The first round, in which memory is
allocated, is left out. OUT gets a list of rounds for each script, in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from meshwright.backends.torch_.verify.run.loading import load
from meshwright.ir.processes import end_with


class Running:
    """A script that is built and ready to step."""

    def __init__(self, script: str) -> None:
        self.train: Any = load(script)
        self.mesh = self.train.start()
        self.model = self.train.parallelize(self.train.build(), self.mesh)
        if hasattr(self.train, "draw"):
            self.train.draw(self.model, self.mesh)
        self.optimizer = self.train.make_optimizer(self.model)
        self.batch = self.train.batch_of(0, self.mesh)

    def step_s(self) -> float:
        """Seconds of a step on the slowest rank."""
        dist.barrier()
        begin = time.perf_counter()
        self.train.train_step(self.model, self.optimizer, self.batch, self.mesh)
        slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest)


def main(parent: int, threads: int, rounds: int, steps: int, out: Path, scripts: Sequence[str]) -> None:
    """Run one rank."""
    end_with(parent)
    warnings.simplefilter("ignore", FutureWarning)  # of names that newer releases have others for
    torch.set_num_threads(threads)
    running = [Running(script) for script in scripts]
    order, draw = list(range(len(running))), Random(0)
    found: list[list[float]] = [[] for _ in running]
    for number in range(rounds + 1):
        draw.shuffle(order)
        for index in order:
            took = median(running[index].step_s() for _ in range(steps))
            if number:
                found[index].append(took)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parent_, threads_, rounds_, steps_, out_, *scripts_ = sys.argv[1:]
    main(int(parent_), int(threads_), int(rounds_), int(steps_), Path(out_), scripts_)
    os._exit(0)  # at once: threads of gloo that are still there abort a process that ends (`GLOO_ENDS_S`)
