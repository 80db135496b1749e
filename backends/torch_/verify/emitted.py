"""An emitted script against the model it was written for, on this machine.

The ranks run the script's own functions (`ranks`). The reference is the user's model on one device, from the same seed:
no line of it is the script's. Compared are, for every step and on every rank,

    the loss; every gradient; every parameter after the optimizer's step, and every buffer of the model's state
    the collectives: kind, group and bytes, against those of the Program

Where nothing but values in fp32 is off, rounding may have done it, or the script. So the same script is run in fp64 and
held against the model in fp64 (`precise`), and what values differ there decides: rounding is a billion times less, and
a fault is as large as before. What makes much of rounding does so in fp64, too: a value may be off there by as much of
what it was off by as values may be off by in fp32.

*Exact* is what docs/emit.md says: the largest difference of a tensor is at most 1e-5 of its largest element, or of a
thousandth of the largest of all. The optimizer is given the gradients of the run, which were compared before: where a
gradient is nothing but noise, Adam makes a step of full length of it, and no two runs agree on its direction.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.backends.results import Off, Verified, left_in_fp64
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.verify.apart import Apart, apart_of
from meshwright.backends.torch_.verify.equal import FLOOR, Compared, close, compared, distances
from meshwright.backends.torch_.verify.groups import Group, groups_of, unlike, unlike_together
from meshwright.backends.torch_.verify.reference import LOW, Reference, Stepped
from meshwright.backends.torch_.verify.run.counting import Collective
from meshwright.backends.torch_.verify.run.ranks import IN_FP64, START
from meshwright.ir.errors import RanksFailed
from meshwright.ir.graph.calls import Calls
from meshwright.ir.target.workload import Workload

QUESTION_BYTES = 4
PATIENCE_S = 5.0
"""For processes that were told to end."""
LAST, STACKS = 30, 60
"""Lines of what ranks printed that an error shows: of one that died, and of all that were still running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script, and the model that it must equal."""

    script: Path
    calls: Calls
    workload: Workload
    groups: tuple[Group, ...]
    apart: Apart | None = None
    in_fp64: bool = False

    @staticmethod
    def of(subject: Subject, script: Path) -> Job:
        """The job of a plan whose script is written."""
        return Job(
            script=script,
            calls=subject.calls,
            workload=subject.workload,
            groups=groups_of(subject.program, subject.fold),
            apart=apart_of(subject),
        )

    @property
    def reference(self) -> Reference:
        return Reference(self.script.parent, self.calls, self.workload, self.apart, in_fp64=self.in_fp64)

    @property
    def low(self) -> bool:
        """Whether it computes in less than fp32."""
        return self.workload.precision in LOW

    @property
    def watched(self) -> bool:
        """Whether every tensor is made by an operator that torch dispatches."""
        return self.workload.stack.style == "eager"

    @property
    def ranks(self) -> int:
        return sum(group.mesh.size for group in self.groups)

    @property
    def drawn_in_parts(self) -> bool:
        """Whether its ranks draw the weights of their parts, which are not those of the reference."""
        return "\ndef draw(" in self.script.read_text(encoding="utf-8")


def verify(jobs: Sequence[Job], *, steps: int, limit_s: float) -> list[Verified]:
    """Run scripts one after the other, each on as many processes as it has ranks, and compare. Runs that are repeated
    in fp64 get the same time again. Raises `RanksFailed`."""
    found = _verified(jobs, steps, limit_s)
    doubtful = [at for at, one in enumerate(found) if one.off and not one.unlike and not jobs[at].low]
    if not doubtful:
        return found
    wide = [replace(jobs[at], in_fp64=True) for at in doubtful]
    try:
        again = _verified(wide, steps, limit_s)
    except Exception as error:  # noqa: BLE001 - what the model's own code makes of fp64 is no fault of a run
        why = error.cause if isinstance(error, RanksFailed) else f"{type(error).__name__}: {error}".splitlines()[0]
        return [replace(one, failed_in_fp64=why) if at in doubtful else one for at, one in enumerate(found)]
    for at, one in zip(doubtful, again, strict=True):
        found[at] = _decided(found[at], one)
    return found


def _decided(narrow: Verified, wide: Verified) -> Verified:
    """The verdict on a run in fp32, given the run in fp64."""
    off = left_in_fp64(narrow.off, wide.off)
    rounded = 0 if wide.unlike or off else narrow.apart
    return replace(narrow, rounded=rounded, in_fp64=wide.worst, unlike=wide.unlike, off=off)


def _verified(jobs: Sequence[Job], steps: int, limit_s: float) -> list[Verified]:
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(len(jobs))]
        for job, folder in zip(jobs, folders, strict=True):
            folder.mkdir()
            if job.in_fp64:
                (folder / IN_FP64).touch()
            if job.drawn_in_parts:
                job.reference.save(folder / START)
        _run(jobs, folders, steps, limit_s)
        return [_held_against(job, folder, steps) for job, folder in zip(jobs, folders, strict=True)]


def _held_against(job: Job, folder: Path, steps: int) -> Verified:
    """The results of a script's ranks, compared with the model."""
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):  # all of them may be more than memory is
        runs = [torch.load(folder / f"{rank}.pt", weights_only=False, mmap=True) for rank in range(job.ranks)]
    once = [_once([one["collectives"] for one in run]) for run in runs]
    reference, last = job.reference, next(group.ranks[0] for group in job.groups if group.last)
    wrong, off = list(drawn_apart([run[0]["drawn"] for run in runs])), list[Off]()
    worst, tensors, rounded, apart = 0.0, 0, 0, set[tuple[int, str]]()
    for step in range(steps):
        grads = _together(run[step]["grads"] for run in runs)
        model = reference.step(step, grads)
        if job.low:
            model, near = _with_rounded(reference, step, runs[last][step]["loss"], grads, model)
            rounded += near
        tensors = sum(map(len, (model.grads, model.parameters, model.buffers, model.constants)))
        sent: Counter[tuple[int, ...]] = Counter()
        for group, rank in ((one, rank) for one in job.groups for rank in one.ranks):
            run, place = runs[rank][step], f"step {step}, rank {rank}"
            for one in _beside(job, group, run, model, reference):
                wrong += [f"{place}: {text}" for text in one.unlike]
                off += [replace(each, what=f"{place}: {each.what}") for each in one.off.values()]
                apart |= {(step, name) for name in one.off}
                worst = max(worst, one.worst)
            wrong += [f"{place}: {one}" for one in _unlike(job, group, run, rank, sent)]
        together = (one for group in job.groups for one in unlike_together(sent, group) if not job.in_fp64)
        lost = lost_buffers(job.groups, model, (run[step]["buffers"] for run in runs))
        wrong += [f"step {step}: {one}" for one in (*together, *lost)]
    return Verified(
        ranks=job.ranks,
        steps=steps,
        losses=tuple(one["loss"] for one in runs[last]),
        tensors=tensors,
        worst=worst,
        collectives=summary(runs[0][0]["collectives"], job.groups[0]),
        once=summary(once[0], job.groups[0]),
        memory=tuple(max(one["peak"] for one in run[1:]) for run in runs) if steps > 1 and job.watched else (),
        rounded=rounded,
        apart=len(apart),
        still=tuple(sorted({name for run in runs for one in run for name in one["still"]})),
        unlike=tuple(wrong),
        off=tuple(off),
    )


def _with_rounded(
    reference: Reference, step: int, loss: float, grads: Mapping[str, Tensor], model: Stepped
) -> tuple[Stepped, int]:
    """A step in low precision with those gradients of the run that are rounded otherwise, and their number; only if the
    loss is the model's."""
    if not close({"": _wide(loss)}, {"": model.loss}, reference.tolerance):
        return model, 0
    off = {name for name, one in distances(grads, model.grads).items() if not one <= reference.tolerance}
    near = reference.rounded(step, grads, model.grads) if off else {}
    taken = {name: one for name, one in near.items() if name in off}
    return replace(model, grads={**model.grads, **taken}), len(taken)


def _beside(job: Job, group: Group, run: Mapping[str, Any], model: Stepped, reference: Reference) -> Iterator[Compared]:
    """The result of a rank for a step, compared with the model's."""
    loss = {} if run["loss"] is None else {"": _wide(run["loss"])}
    yield compared("the loss", loss, {"": model.loss} if group.last else {}, reference.tolerance)
    for what, found, of_model, tolerance in (
        ("the gradient of ", run["grads"], model.grads, reference.tolerance),
        ("the parameter ", run["parameters"], model.parameters, reference.after),
    ):
        yield compared(what, found, group.of(of_model, found), tolerance)
    constant = {name: one for name, one in run["buffers"].items() if name in model.constants}
    changed = {name: one for name, one in run["buffers"].items() if name not in constant}
    unread = unread_buffers(job.groups, model)
    for found, of_model, floor in ((changed, model.buffers, FLOOR), (constant, model.constants, 0.0)):
        also = {name: of_model[name] for name in unread.intersection(found, of_model)}
        yield compared("the buffer ", found, group.of(of_model, found) | also, reference.tolerance, floor)


def _wide(loss: float) -> Tensor:
    """A loss in double precision."""
    return torch.tensor(loss, dtype=torch.float64)


def unread_buffers(groups: Sequence[Group], model: Stepped) -> set[str]:
    """Buffers of the model's state that no program reads: masks, which are no tensors in a trace. Who holds the module
    holds them."""
    read = {name for group in groups for names in group.parameters for name in names}
    return (model.buffers.keys() | model.constants.keys()) - read


def lost_buffers(groups: Sequence[Group], model: Stepped, found: Iterable[Mapping[str, Tensor]]) -> Iterator[str]:
    """Buffers of these that no rank holds."""
    left = unread_buffers(groups, model).difference(*found)
    yield from (f"the buffer {name} is missing on all ranks" for name in sorted(left))


def _unlike(job: Job, group: Group, run: Mapping[str, Any], rank: int, sent: Counter[tuple[int, ...]]) -> list[str]:
    """Differences between the communication of a rank and the plan, which is in the plan's own precision."""
    return [] if job.in_fp64 else unlike(run["collectives"], group, rank, sent)


def drawn_apart(drawn: Sequence[Mapping[str, int]]) -> Iterator[str]:
    """Parameters that ranks drew differently, with the digest of each."""
    first: dict[str, tuple[int, int]] = {}
    for rank, found in enumerate(drawn):
        for name, digest in found.items():
            one, expected = first.setdefault(name, (rank, digest))
            if digest != expected:
                yield f"rank {rank}: {name} was not drawn as on rank {one}"


def _together(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors that ranks hold, by name; of ranks that hold the same, the first one's."""
    found: dict[str, Tensor] = {}
    for part in parts:
        found = dict(part) | found
    return found


def _once(steps: list[dict[Collective, int]]) -> dict[Collective, int]:
    """Communication in one step only, taken out of the counts: DDP sorts its buckets anew after the first step, and
    tells all ranks; pipeline stages ask one another in the first step whether they know what will cross."""
    found: dict[Collective, int] = {}
    having = [step for step in steps if any(_broadcast(key) for key in step)]
    if len(having) == 1 and len(steps) > 1:
        found |= {key: having[0].pop(key) for key in list(having[0]) if _broadcast(key)}
    asked = Counter({key: number for key, number in steps[0].items() if _question(key)})
    asked -= Counter(steps[1] if len(steps) > 1 else {})  # scalars that cross have as many bytes
    for key, number in asked.items():
        steps[0][key] -= number
        if not steps[0][key]:
            del steps[0][key]
    return found | asked


def _broadcast(key: Collective) -> bool:
    return key[0] == "broadcast"


def _question(key: Collective) -> bool:
    return key[0] in ("send", "recv") and key[2] == QUESTION_BYTES


def _run(jobs: Sequence[Job], folders: Sequence[Path], steps: int, limit_s: float) -> None:
    """Start the ranks and wait for them; they are a process group of their own, which is ended as a whole."""
    command = [sys.executable, "-m", "meshwright.backends.torch_.verify.run.ranks", str(os.getpid()), str(steps)]
    for job, folder in zip(jobs, folders, strict=True):
        command += [str(job.script), str(job.ranks), str(folder)]
    said = folders[0] / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    if code != 0:
        raise _failed(jobs, folders, f"{limit_s:g} s" if code is None else "", said.read_text(errors="replace"))


def _failed(jobs: Sequence[Job], folders: Sequence[Path], too_long: str, said: str) -> RanksFailed:
    """The rank that failed, and its error, or what was printed last."""
    for job, folder in zip(jobs, folders, strict=True):
        failed = folder / "failed"
        if failed.exists():
            head, _, why = failed.read_text().partition("\n")
            rank, _, status = head.partition(" ")
            return RanksFailed(
                place=str(job.script),
                cause=f"rank {rank} ended with {status}; the others were ended",
                fix=f"correct what it died of; {_last(why or said, LAST)}",
            )
    printed = _last(said, STACKS if too_long else LAST)
    if too_long:
        waiting = [(job, folder / "waiting") for job, folder in zip(jobs, folders, strict=True)]
        job, ranks = next(((job, one.read_text()) for job, one in waiting if one.exists()), (jobs[0], "all"))
        return RanksFailed(
            place=str(job.script),
            cause=f"ranks {ranks} were still running after {too_long}, and were ended",
            fix=f"give them longer with --time-limit; {printed}",
        )
    return RanksFailed(place=str(jobs[0].script), cause="the process that starts the ranks ended", fix=printed)


def _last(said: str, lines: int) -> str:
    return "\n".join(["what was printed last:", *said.strip().splitlines()[-lines:]])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs: the process that started the ranks ends and reaps them; if it does not, all are killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def summary(found: Mapping[Collective, int], group: Group) -> tuple[tuple[str, str, int, int], ...]:
    """The communication of a rank: kind, mesh axes, how many, bytes in all."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for (kind, ranks, size), number in found.items():
        axes = axes_of(group, ranks)
        counts[kind, axes] += number
        sizes[kind, axes] += number * size
    return tuple((kind, axes, counts[kind, axes], sizes[kind, axes]) for kind, axes in sorted(counts))


def axes_of(group: Group, ranks: tuple[int, ...]) -> str:
    """The mesh axes along which these ranks differ, as text."""
    if not set(ranks) <= set(group.ranks):
        return "pp"
    at = [group.mesh.coordinates(rank - group.ranks[0]) for rank in ranks]
    return ".".join(axis for axis in group.mesh.names if len({one[axis] for one in at}) > 1)
