"""One rank of every group of ranks, alone, for meshes that no machine here can run.

Each runs the plan's own script (for CPUs: device and backend are all that differs) with the whole mesh around it, under
a process group that communicates nothing and on tensors without memory (`backends.torch_.verify.run.fake`). Values have
no data, so none is compared: what it builds, runs and would communicate is real, and is held against the plan's
Program, kind, group and bytes. One rank runs at a time, in a process of its own, under a time limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from meshwright.backends.results import Alone
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.capabilities import LOCAL
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.verify.emitted import summary
from meshwright.backends.torch_.verify.groups import groups_of, unlike
from meshwright.backends.torch_.verify.run.fake import Counted
from meshwright.ir.errors import VerificationTooLarge


class Run(Protocol):
    """A function that runs one rank of a script."""

    def __call__(self, script: Path, rank: int, ranks: int, *, limit_s: float) -> Counted: ...


def each_alone(subject: Subject, folder: Path, run: Run, *, limit_s: float) -> Iterator[Alone]:
    """Run one rank of every group, one after the other; a later group's rank stands further on in its mesh."""
    groups = groups_of(subject.program, subject.fold)
    if any(group.predicted[0].routed for group in groups):
        raise VerificationTooLarge(
            place="a rank alone",
            cause="how many rows its experts are sent depends on values, which it has none of",
            fix="verify the plan's small twin with --tiny",
        )
    here = replace(subject, decisions=replace(subject.decisions, target=LOCAL))
    emit(here, folder).write(folder)
    stages = subject.program.stages
    held = list(dict.fromkeys(stage.ranks for stage in stages))
    for index, (group, ranks) in enumerate(zip(groups, held, strict=True)):
        rank = group.ranks[index * len(group.ranks) // len(groups)]
        found = run(folder / "train.py", rank, subject.ranks, limit_s=limit_s)
        yield Alone(
            rank=rank,
            stages=tuple(number for number, stage in enumerate(stages) if stage.ranks == ranks),
            collectives=summary(found.collectives, group),
            wall_s=found.wall_s,
            cpu_s=found.cpu_s,
            peak_bytes=found.peak_bytes,
            differences=tuple(unlike(found.collectives, group, rank, Counter())),
        )
