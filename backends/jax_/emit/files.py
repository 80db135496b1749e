"""The files of an emitted plan, by name, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit.script import SCRIPT, texts
from meshwright.backends.results import Files
from meshwright.backends.subject import Subject
from meshwright.ir.errors import EmissionModel, EmissionSoftware
from meshwright.ir.graph.calls import Calls
from meshwright.ir.target.workload import Workload


def emit(subject: Subject, folder: Path) -> Files:
    """The files of a plan, for this folder: the script finds the model from there. Raises a `NotEmitted` for what no
    code is written for, a `NotExpressible` for what the target cannot do."""
    target = TARGETS[subject.decisions.target]
    check_model(subject.calls)
    target.check(subject.decisions, subject.fold, subject.workload)
    check_software(subject.workload, subject.decisions.target, subject.decisions.style)
    home = folder.resolve()
    model = Path(os.path.relpath(home / subject.calls.file, home)).as_posix()
    cpus = target.device == "cpu"
    return Files((*texts(subject, model, cpus=cpus), *subject.calls.beside), start=SCRIPT)


def check_model(calls: Calls) -> None:
    """Must: a model of JAX."""
    if calls.places is None:
        raise EmissionModel(
            place=str(calls.file), cause="it is no model of JAX", ways=("--target torch-cuda", "--target torch-gloo")
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
