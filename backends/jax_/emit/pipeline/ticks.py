"""Pipelines in ticks: all stages run one program, so all of them pass values on at the same time.

A stage's *turns* are its forward passes in order, and its backward passes in order: of m micro-batches on each of v
chunks of layers there are v m. With p stages, in tick t

    stage s runs the forward pass of turn    t - s
    and then the backward pass of turn       t - start - (p - 1 - s)

and passes what came of it on to the next stage and to the one before. Turn k has micro-batch p (k div p v) + k mod p
and chunk (k div p) mod v, counted from the last chunk on the way back (Narayanan et al. 2021). A value is read in the
tick after the one it was made in, so nothing waits but what a stage keeps for its own backward pass.

    eager 1F1B, interleaved   start = p v - 1: the last stage's backward pass follows its forward pass at once
    GPipe                     start = m v + p - 1: when no stage has a forward pass left

Idle time is that of the schedule: where no stage has a backward pass in a tick, it takes as long as a forward pass.
Stage s keeps 2 (p - s) - 1 micro-batches of eager 1F1B, where stages that wait for each other one by one keep p - s.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.program.program import Program
from meshwright.ir.schedules import BACKWARD, FORWARD, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """The ticks of a step: p stages of v chunks each, m micro-batches."""

    stages: int
    chunks: int
    microbatches: int
    waits: bool
    """Whether backward passes wait for all forward passes."""

    @staticmethod
    def of(program: Program) -> Ticks:
        """Those of a program. Raises `EmissionSchedule` where its stages do their work in another order."""
        work = work_of(program)
        stages = len(work.lists)
        last = [code % 4 for code in work.lists[-1]]
        waits = BACKWARD in last and FORWARD not in last[last.index(BACKWARD) :]
        found = Ticks(
            stages=stages,
            chunks=len(program.stages) // stages,
            microbatches=program.microbatches,
            waits=waits and program.microbatches > 1,
        )
        depth = found.stages * found.chunks
        for group, codes in enumerate(work.lists):
            for kind in (FORWARD, BACKWARD):
                own = [code // 4 for code in codes if code % 4 == kind]
                turns = (found.turn(number, back=kind == BACKWARD) for number in range(found.turns))
                if own != [micro * depth + chunk * stages + group for chunk, micro in turns]:
                    raise EmissionSchedule(
                        place=f"stage {group}",
                        cause="it takes its turns in another order than that in which all stages run in step",
                        ways=("--fix schedule=eager-1f1b", "--fix schedule=gpipe", "--fix pp=1"),
                    )
        return found

    @property
    def turns(self) -> int:
        """Forward passes of a stage, and backward passes."""
        return self.microbatches * self.chunks

    @property
    def start(self) -> int:
        """The tick of the last stage's first backward pass."""
        return self.turns + self.stages - 1 if self.waits else self.stages * self.chunks - 1

    @property
    def loops(self) -> tuple[tuple[int, int, tuple[bool, bool]], ...]:
        """The loops over ticks: the first one, that after the last, and whether forward and backward passes run."""
        last = self.start + self.stages - 1 + self.turns
        if self.waits:
            return (0, self.start, (True, False)), (self.start, last, (False, True))
        return ((0, last, (True, True)),)

    def turn(self, number: int, *, back: bool) -> tuple[int, int]:
        """The chunk and the micro-batch of a turn."""
        chunk = number // self.stages % self.chunks
        micro = number // (self.stages * self.chunks) * self.stages + number % self.stages
        return self.chunks - 1 - chunk if back else chunk, micro
