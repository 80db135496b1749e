"""Emitted scripts against the models they were written for, on host devices of one process.

Compared are, for every step, the loss, every gradient and every parameter after the optimizer's step (`run`), and once
the collectives of the script's own compiled step: kind, mesh axes and bytes, against those of the Program (`hlo`,
`predicted`). XLA's pass that joins all-reduces of CPUs is left out of that compilation, so that each can be told.

*Exact* is what docs/emit.md says: the largest difference of a tensor is at most 1e-5 of its largest element, or of 6e-3
of the largest of all (`run.FLOOR`). Where values are off by more, rounding may have done it, or the script: so both run
again in fp64, and what values differ there decides. Rounding is a billion times less there, and a fault is as large.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit.model import draws
from meshwright.backends.jax_.emit.pipeline.stages import Stages, whole_mesh
from meshwright.backends.jax_.emit.script import SCRIPT, printed_in
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.apart import Cuts
from meshwright.backends.jax_.verify.hlo import Collective, collectives
from meshwright.backends.jax_.verify.pipelines import taken
from meshwright.backends.jax_.verify.predicted import OF_PRINTED, REWRITES, predicted
from meshwright.backends.jax_.verify.waiting import planned_bytes
from meshwright.backends.results import EXACT, IN_FP64, Off, Verified, left_in_fp64
from meshwright.backends.subject import Subject
from meshwright.ir.errors import RanksFailed
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program

APART = "cpu-all-reduce-combiner"
"""The pass of XLA that joins all-reduces."""
QUICK = "--xla_backend_optimization_level=0"
"""Machine code as it comes: programs run once, and collectives are decided before."""
LAST = 30
"""Lines of what was printed that an error shows."""
FEWEST_WORDS, MOST_WORDS = 2, 2048
"""Bounds on how many different tokens a batch is drawn from; tables and losses of the model may ask for fewer."""


@dataclass(frozen=True, slots=True)
class Job:
    """A script, and the plan that it was written for."""

    script: Path
    subject: Subject

    @staticmethod
    def of(subject: Subject, folder: Path) -> Job:
        """The job of a plan whose script is written."""
        return Job(folder / SCRIPT, subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a script left: its losses, how many tensors were compared, how far each was off, the collectives of its
    compiled step, and the bytes that this takes on a device besides what it is given and leaves."""

    steps: int
    losses: tuple[float, ...]
    tensors: int
    off: Mapping[str, float]
    temp_bytes: int
    executed: Mapping[Collective, int]
    waiting_bytes: int = 0
    """What the traced step sends to the host's memory (`waiting`)."""
    hlo: str = ""
    """The compiled step."""
    in_fp64: Mapping[str, float] | None = None
    """How far each was off in fp64, where some were in fp32."""
    failed_in_fp64: str = ""
    """Why the script does not run so."""


def verify(jobs: Sequence[Job], *, steps: int, limit_s: float) -> list[Verified]:
    """Run scripts one after the other in one process, and compare. Raises `RanksFailed`."""
    return [verdict(job, ran) for job, ran in zip(jobs, run(jobs, steps=steps, limit_s=limit_s), strict=True)]


def run(jobs: Sequence[Job], *, steps: int, limit_s: float) -> list[Ran]:
    """What scripts left that ran one after the other in one process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            {
                "script": str(job.script.resolve()),
                "model": f"{job.script.resolve().parent / job.subject.calls.file}:{job.subject.calls.factory}",
                "words": words(job.subject.fold),
                "apart": APART,
                "still": bool(still(job.subject)),
                "cuts": Cuts.of(job.subject).plain(),
                "exact": EXACT,
                "hlo": str(folder / f"{number}.hlo"),
                "result": str(folder / f"{number}.json"),
            }
            for number, job in enumerate(jobs)
        ]
        given = {"jobs": rows, "steps": steps, "devices": max(job.subject.ranks for job in jobs)}
        (folder / "jobs.json").write_text(json.dumps(given), encoding="utf-8")
        _run(jobs, folder / "jobs.json", limit_s)
        found = []
        for number, job in enumerate(jobs):
            told = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
            hlo = (folder / f"{number}.hlo").read_text(encoding="utf-8")
            executed = collectives(hlo, whole_mesh(job.subject), taken(job.subject.program))
            found.append(Ran(**told, executed=executed, hlo=hlo, steps=steps))
        return found


def words(fold: Fold) -> int:
    """How many different tokens there may be, at least: rows of the smallest table that is looked up in, or labels of
    a loss."""
    found = [MOST_WORDS]
    for graph in (body.graph for body in fold.bodies):
        for op in graph.ops:
            if op.kind == "embedding":
                found.append(graph.types[op.operands[0]].shape[0])
            if op.kind == "cross_entropy":
                found.append(graph.types[op.operands[0]].shape[-1])
    return max(FEWEST_WORDS, min(found))


def _run(jobs: Sequence[Job], given: Path, limit_s: float) -> None:
    """Start the process, and end it when its time is up."""
    place = ", ".join(str(job.script) for job in jobs)
    command = [sys.executable, "-m", "meshwright.backends.jax_.verify.run", str(given)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, env=environment, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise RanksFailed(
            place=place,
            cause=f"it was still running after {limit_s:g} s, and was ended",
            fix="give it longer with --time-limit",
        ) from None
    if done.returncode:
        last = "\n".join(["what was printed last:", *(done.stdout + done.stderr).strip().splitlines()[-LAST:]])
        raise RanksFailed(
            place=place, cause=f"the process ended with {done.returncode}", fix=f"correct what it died of; {last}"
        )


def verdict(job: Job, ran: Ran, rewrites: tuple[str, ...] | None = None) -> Verified:
    """What differs in what a script left; collectives by these rewrites, or by those that hold of its form."""
    subject = job.subject
    shardings = Shardings(subject)
    printed = printed_in(shardings)
    program, usual = (subject.program, REWRITES) if printed is None else (printed.subject.program, OF_PRINTED)
    stacked = Stages(subject).stacked if len(program.stages) > 1 else ()
    batch = None if printed is None else printed.printed.batch
    planned = predicted(program, subject.fold, TARGETS[subject.decisions.target], rewrites or usual, stacked, batch)
    manual = shardings.manual if printed is None else subject.mesh.names
    off = beyond(ran.off, EXACT)
    left = off if ran.in_fp64 is None else left_in_fp64(off, beyond(ran.in_fp64, IN_FP64))
    return Verified(
        ranks=subject.ranks,
        steps=ran.steps,
        losses=tuple(ran.losses),
        tensors=ran.tensors,
        worst=max(ran.off.values(), default=0.0),
        collectives=summary(ran.executed),
        once=(),
        still=still(subject),
        unlike=(*planned.differences(ran.executed), *waited(ran, program, manual)),
        off=left,
        apart=len(off),
        rounded=len(off) if off and not left else 0,
        in_fp64=max(ran.in_fp64.values(), default=0.0) if ran.in_fp64 is not None else None,
        failed_in_fp64=ran.failed_in_fp64,
        read_whole=planned.whole,
    )


def still(subject: Subject) -> tuple[str, ...]:
    """What does not draw while a printed model is compared, which draws by other keys than the model itself."""
    if not draws(subject) or printed_in(Shardings(subject)) is None:
        return ()
    return tuple(sorted({op.kind for body in subject.fold.bodies for op in body.graph.ops if op.draws}))


def waited(ran: Ran, program: Program, manual: Sequence[str]) -> Iterator[str]:
    """The difference in what is sent to the host's memory. `manual`: the axes of which a trace shows parts."""
    planned = planned_bytes(program, manual)
    if ran.waiting_bytes != planned:
        yield f"{ran.waiting_bytes} bytes of activations wait in the host's memory, {planned} are planned"


def beyond(off: Mapping[str, float], allowed: float) -> tuple[Off, ...]:
    """The values that are off by more than is allowed."""
    return tuple(Off(name, by, allowed) for name, by in off.items() if not by <= allowed)


def summary(executed: Mapping[Collective, int]) -> tuple[tuple[str, str, int, int], ...]:
    """What a device communicates: kind, mesh axes, how many, bytes in all."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for (kind, axes, size), number in executed.items():
        counts[kind, ".".join(axes)] += number
        sizes[kind, ".".join(axes)] += number * size
    return tuple((kind, axes, counts[kind, axes], sizes[kind, axes]) for kind, axes in sorted(counts))
