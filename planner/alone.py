"""`plan verify PLAN --alone`: one rank of every group of ranks, alone, for meshes that no machine here can run.

Each runs the plan's own script (for CPUs: device and backend are all that differs) with the whole mesh around it, under
a process group that communicates nothing and on tensors without memory (`backends.torch_.verify.fake`). Values have no
data, so none is compared: what it builds, runs and would communicate is real, and is held against the plan's Program,
kind, group and bytes. One rank runs at a time, in a process of its own, under a time limit.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from meshwright.backends.torch_.emit import Subject, emit
from meshwright.ir.errors import VerificationTooLarge
from meshwright.planner.units import nbytes

if TYPE_CHECKING:
    from meshwright.backends.torch_.verify.fake import Counted

TARGET = "torch-gloo"


class Run(Protocol):
    """Whoever runs one rank of a script."""

    def __call__(self, script: Path, rank: int, ranks: int, *, limit_s: float) -> Counted: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What one rank did, and how that differs from the plan."""

    rank: int
    stages: tuple[int, ...]
    collectives: tuple[tuple[str, str, int, int], ...]
    """Kind, mesh axes, how many, bytes in all."""
    wall_s: float
    cpu_s: float
    peak_bytes: int
    differences: tuple[str, ...]


def each_alone(subject: Subject, folder: Path, run: Run, *, limit_s: float) -> Iterator[Alone]:
    """One rank of every group, one after the other; a later group's stands further on in its mesh."""
    from meshwright.backends.torch_.verify.emitted import summary
    from meshwright.backends.torch_.verify.groups import groups_of, unlike

    groups = groups_of(subject.program, subject.fold)
    if any(group.predicted[0].routed for group in groups):
        raise VerificationTooLarge(
            place="a rank alone",
            cause="how many rows its experts are sent depends on values, which it has none of",
            fix="verify the plan's small twin with --tiny",
        )
    here = replace(subject, decisions=replace(subject.decisions, target=TARGET))
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


def verify_alone(subject: Subject, folder: Path, args: Namespace) -> bool:
    """Run them and print; whether nothing differs."""
    from meshwright.backends.torch_.verify.fake import counted

    found = []
    for one in each_alone(subject, folder, counted, limit_s=args.time_limit):
        found.append(one)
        print(line(one), file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found, subject.ranks), indent=2)}\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in shown(found, subject.ranks)))
    return not any(one.differences for one in found)


def line(one: Alone) -> str:
    """What is printed of a rank when it is done."""
    number = sum(count for _, _, count, _ in one.collectives)
    stages = f"stage {one.stages[0]}" if len(one.stages) == 1 else f"stages {' '.join(map(str, one.stages))}"
    equal = "as planned" if not one.differences else "DIFFERENT"
    return (
        f"rank {one.rank}, {stages}: {number} collectives and messages {equal}; "
        f"{one.wall_s:.1f} s, {one.cpu_s:.1f} s of CPU, {nbytes(one.peak_bytes)}"
    )


def shown(found: Sequence[Alone], ranks: int) -> Iterable[str]:
    """What is printed after all of them."""
    wrong = [f"rank {one.rank}: {what}" for one in found for what in one.differences]
    first = found[0]
    yield (
        f"{len(found)} of {ranks} ranks, each alone: "
        f"{'communicates what is priced' if not wrong else 'DIFFERENT'}; at most "
        f"{max(one.wall_s for one in found):.1f} s, {max(one.cpu_s for one in found):.1f} s of CPU and "
        f"{nbytes(max(one.peak_bytes for one in found))}"
    )
    for kind, axes, number, size in first.collectives:
        yield f"rank {first.rank}, per step  {number} {kind} over {axes}, {nbytes(size)}"
    yield from wrong


def to_json(found: Sequence[Alone], ranks: int) -> dict[str, Any]:
    """What is printed with --json; docs/emit.md describes it."""
    return {
        "exact": not any(one.differences for one in found),
        "ranks": ranks,
        "alone": [
            {
                "rank": one.rank,
                "stages": list(one.stages),
                "collectives": [
                    {"kind": kind, "axes": axes, "count": n, "bytes": size} for kind, axes, n, size in one.collectives
                ],
                "wall_s": one.wall_s,
                "cpu_s": one.cpu_s,
                "peak_bytes": one.peak_bytes,
                "differences": list(one.differences),
            }
            for one in found
        ],
    }
