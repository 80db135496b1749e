"""The memory that a verification takes on this machine, printed and checked before it starts.

Ranks run side by side. Each has what its plan takes at the fullest instant, and beside that whole copies of what is
compared: parameters and gradients after every step, at most the whole model's. When they have ended, one process reads
what all have left, and runs the model on one device:

    ranks       each rank        PROCESS_BYTES + wide * (peak + model * (1 + 2 * steps))
    afterwards  one process      PROCESS_BYTES + wide * model * (ranks * 2 * steps + ON_ONE_DEVICE)

The larger one is what is needed. `wide` is 2 where what is off in fp32 may be run again in fp64, else 1.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from meshwright.backends.subject import Subject
from meshwright.cost_models.memory.peak import stepped_on_host, tensors_held
from meshwright.ir.errors import VerificationTooLarge
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program
from meshwright.planner.plan.units import count, nbytes

PROCESS_BYTES = 300 * 2**20
"""Of a rank by itself: 264 MiB were of no other process, most of it the libraries that it had written to (a small
Falcon, torch 2.13.0, transformers 5.23.0, November 2026)."""
ON_ONE_DEVICE = 10
"""Copies of a model: its own, gradients, two states of AdamW, those before and after a step, gradients of it, and what
backward passes hold of a small batch."""
LOW, FULL = ("bf16", "fp16"), 4
"""Precisions in which nothing is run again; bytes of a number as the reference holds parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The processes of a verification, and the most memory that they take."""

    ranks: int
    steps: int
    parameters: int
    memory_bytes: float

    def check(self, limit_bytes: float, time_limit_s: float) -> None:
        """Print what will be run; refuse what takes more memory than there is."""
        within = f"within {time_limit_s:g} s (--time-limit) and {nbytes(limit_bytes)} (--memory-limit)"
        what = f"{self.ranks} processes, {self.steps} steps of {count(self.parameters)} parameters"
        if self.memory_bytes > limit_bytes:
            raise VerificationTooLarge(
                place=what,
                cause=f"about {nbytes(self.memory_bytes)} of memory are needed, and {nbytes(limit_bytes)} may be used",
                fix="verify one rank of each stage with --alone, which has no values, or give more with --memory-limit",
            )
        sys.stderr.write(f"to be run: {what}, about {nbytes(self.memory_bytes)} of memory; {within}\n")


def needs_of(subject: Subject, peaks: tuple[float, ...], steps: int) -> Needs:
    """The needs of verifying a plan whose ranks have these fullest instants, in bytes."""
    parameters = parameters_of(subject.fold)
    wide = 1 if subject.workload.precision in LOW else 2
    model, kept = wide * FULL * parameters, 2 * steps
    ranks = sum(PROCESS_BYTES + wide * peak + model * (1 + kept) for peak in peaks)
    afterwards = PROCESS_BYTES + model * (len(peaks) * kept + ON_ONE_DEVICE)
    return Needs(ranks=len(peaks), steps=steps, parameters=parameters, memory_bytes=max(ranks, afterwards))


def parameters_of(fold: Fold) -> int:
    """Numbers of elements of all parameters and buffers that a model's step reads; tied ones count where they are
    read."""
    return sum(
        prod(call.body.graph.types[param.value].shape) for call in fold.calls() for param in call.body.graph.params
    )


def available_bytes() -> float:
    """The memory available to processes here: that of the machine, limited by their control group."""
    found = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max": none
        group = Path("/sys/fs/cgroup")
        limit, used = (float((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        found.append(limit - used)
    return max(0.0, min(found))


def planned_memory(program: Program) -> tuple[float, ...]:
    """The planned peak of tensors on every rank, group after group. Where ranks run on CPUs, offloaded optimizer state
    is in the same memory; offloaded activations are not counted (`Peak.leave_out`)."""
    held, stepped = tensors_held(program), stepped_on_host(program)
    ranks = dict.fromkeys(rank for stage in program.stages for rank in stage.ranks)
    return tuple(held[rank].peak_bytes + stepped[rank] for rank in ranks)
