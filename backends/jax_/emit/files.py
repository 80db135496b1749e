"""The files of an emitted plan, by name, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit.script import SCRIPT, texts
from meshwright.backends.results import Files
from meshwright.backends.subject import Subject
from meshwright.ir.errors import EmissionModel, EmissionSchedule, EmissionSoftware
from meshwright.ir.graph.calls import Calls
from meshwright.ir.target.workload import Workload


def emit(subject: Subject, folder: Path) -> Files:
    """The files of a plan, for this folder: the script finds the model from there. Raises a `NotEmitted` for what no
    code is written for."""
    check_model(subject.calls)
    check_plan(subject)
    check_software(subject.workload, subject.decisions.target, subject.decisions.style)
    home = folder.resolve()
    model = Path(os.path.relpath(home / subject.calls.file, home)).as_posix()
    cpus = TARGETS[subject.decisions.target].device == "cpu"
    return Files(texts(subject, model, cpus=cpus), start=SCRIPT)


def check_model(calls: Calls) -> None:
    """Must: a model of JAX."""
    if calls.places is None:
        raise EmissionModel(
            place=str(calls.file), cause="it is no model of JAX", ways=("--target torch-cuda", "--target torch-gloo")
        )


def check_plan(subject: Subject) -> None:
    """Refuse what no code is written for, as far as it shows without looking into bodies."""
    if len(subject.decisions.stages) > 1:
        raise EmissionSchedule(
            place=f"{len(subject.decisions.stages)} stages", cause="they are not emitted yet", ways=("--fix pp=1",)
        )
    if subject.decisions.schedule.microbatches > 1:
        raise EmissionSchedule(
            place=f"{subject.decisions.schedule.microbatches} micro-batches",
            cause="they are not emitted yet",
            fix="plan with micro-batches of all sequences of a copy (--micro-batch)",
        )


def check_software(workload: Workload, target: str, style: str) -> None:
    """Refuse a stack or an optimizer that no code is written for, whatever the plan."""
    for what, value, known in (("style", style, ("xla",)), ("optimizer", workload.optimizer, ("adamw",))):
        if value not in known:
            raise EmissionSoftware(
                place=f"{what} {value}",
                cause="it is not emitted",
                ways=("--stack jax",) if what == "style" else tuple(f"--{what} {name}" for name in known),
            )
