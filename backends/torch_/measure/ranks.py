"""The ranks of a calibration: every rank walks through the same cases, and the first one writes down what all found.

    python -m meshwright.backends.torch_.measure.ranks PARENT RANKS THREADS BUDGET_S SAMPLES < cases

A process imports torch once and forks one process for each rank; under torchrun every process is a rank (`joined`).
Each line of SAMPLES is written whole and kept (fsync) before the next case begins; the case is named on standard output
then. All processes end with PARENT.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.backends.measuring import Case, Sample, Told
from meshwright.backends.torch_.emit.write.frame.entry import GLOO_ENDS_S
from meshwright.backends.torch_.measure.kernels import kernel, timed
from meshwright.backends.torch_.measure.wires import moving, ranks_of_a_host, timed_together
from meshwright.ir.processes import end_with

TOGETHER = ("collective", "overlap")


def joined(cases: Sequence[Case], samples: Path, threads: int, budget_s: float, told: Told) -> None:
    """Measure all cases as one of the ranks that the environment names; those of the first rank count."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", FutureWarning)  # of names that newer releases have others for
    dist.init_process_group("gloo")
    own: list[Sequence[Case]] = [cases]
    dist.broadcast_object_list(own)
    ranks, each = dist.get_world_size(), ranks_of_a_host()
    working = {busy: [rank for rank in range(ranks) if rank % each < busy] for busy in {case.busy for case in own[0]}}
    groups = {busy: dist.new_group(working[busy]) for busy in sorted(working)}
    for case in own[0]:
        found = _all_of(case, groups[case.busy], budget_s)
        if found:
            _keep(samples, found)
            told(case)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(GLOO_ENDS_S)


def _keep(samples: Path, found: Iterable[Sample]) -> None:
    """Add lines to a file, and have them written to the disk."""
    with samples.open("a", encoding="utf-8") as file:
        file.write("".join(f"{sample.line()}\n" for sample in found))
        file.flush()
        os.fsync(file.fileno())


def _all_of(case: Case, group: dist.ProcessGroup, budget_s: float) -> list[Sample]:
    """The samples of all ranks that a case is of, on the first of them; others find none."""
    dist.barrier()
    rank, found = dist.get_rank(), None
    if rank % ranks_of_a_host() < case.busy:
        seconds, cpu = _measured(case, group, budget_s)
        found = Sample(case=case, rank=rank, seconds=tuple(seconds), cpu=tuple(cpu))
    everyone: list[Sample | None] | None = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(found, everyone)
    return [one for one in everyone or () if one is not None]


def _measured(case: Case, group: dist.ProcessGroup, budget_s: float) -> tuple[list[float], list[float]]:
    if case.kind in TOGETHER:
        return timed_together(*moving(case, group), group, budget_s), []
    run = kernel(case)
    dist.barrier(group)
    return timed(run, budget_s)


def main(parent: int, ranks: int, threads: int, budget_s: float, samples: Path, lines: Iterable[str]) -> int:
    """Fork the ranks, tell them where to meet, and wait for all."""
    end_with(parent)
    cases = [Case.parse(line) for line in lines if line.strip()]
    torch.set_num_threads(threads)
    here, pipes, children = os.getpid(), [], []
    for rank in range(ranks):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            end_with(here)
            os.close(writing)
            _child(rank, ranks, reading, cases, samples, threads, budget_s)
        os.close(reading)
        pipes.append(writing)
        children.append(child)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for pipe in pipes:
        os.write(pipe, str(store.port).encode())
        os.close(pipe)
    statuses = [os.wait()[1] for _ in children[:1]]
    if not any(statuses):
        statuses += [os.wait()[1] for _ in children[1:]]
    return int(any(statuses))


def _child(
    rank: int, ranks: int, reading: int, cases: Sequence[Case], samples: Path, threads: int, budget_s: float
) -> None:
    port = os.read(reading, 16).decode()  # not up to its end, which other ranks hold open
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # a store is there already
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    try:
        joined(cases, samples, threads, budget_s, lambda case: print(case, flush=True))  # noqa: T201
    except BaseException:  # noqa: BLE001 - a forked process must not return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    parent_, ranks_, threads_, budget_, samples_ = sys.argv[1:]
    raise SystemExit(main(int(parent_), int(ranks_), int(threads_), float(budget_), Path(samples_), sys.stdin))
