"""Refusals of code that show without looking into bodies."""

from __future__ import annotations

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.capabilities import DEVICE, TARGETS
from meshwright.ir.errors import EmissionModel, EmissionRecompute, EmissionSchedule, EmissionSoftware, EmissionTarget
from meshwright.ir.graph.calls import Calls
from meshwright.ir.target.combined import again_in_halves, compiled_blocks, compiled_statistics, waiting_blocks
from meshwright.ir.target.workload import Workload


def device_of(subject: Subject) -> str:
    """The kind of device that a plan's ranks run on."""
    return DEVICE[subject.decisions.target]


def check_plan(subject: Subject) -> None:
    """Refuse plans that no code is written for, as far as that shows without looking into bodies."""
    check_model(subject.calls)
    decisions, schedule = subject.decisions, subject.decisions.schedule
    if decisions.target not in DEVICE:
        raise EmissionTarget(
            place=f"target {decisions.target}",
            cause="it is no runtime",
            ways=tuple(f"--target {name}" for name in DEVICE),
        )
    if subject.workload.global_batch % schedule.microbatches:
        raise EmissionSchedule(
            place=f"{schedule.microbatches} micro-batches",
            cause=f"they do not divide a batch of {subject.workload.global_batch} sequences",
            fix="plan with a --global-batch that they divide",
        )
    if problem := again_in_halves(decisions, subject.fold):
        raise EmissionRecompute(
            place="recompute",
            cause=f"this is not emitted: {problem}",
            ways=("--fix schedule=1f1b", "--fix recompute=none"),
        )
    if problem := waiting_blocks(decisions, subject.fold):
        raise EmissionRecompute(
            place=f"offload {decisions.offload}",
            cause=f"this is not emitted: {problem}",
            ways=("--fix offload=none", "--fix offload=optimizer"),
        )
    check_software(subject.workload, decisions.target, decisions.style)
    within = "" if subject.prints else compiled_statistics(decisions, subject.fold)
    if problem := compiled_blocks(decisions, subject.fold) or within:
        raise EmissionSoftware(
            place=f"style {decisions.style}",
            cause=f"this is not emitted: {problem}",
            ways=("--style eager", "--fix recompute=none,tp=1,schedule=1f1b"),
        )


def check_model(calls: Calls) -> None:
    """Must: a module of torch."""
    if calls.invoked is not None:
        raise EmissionModel(
            place=str(calls.file),
            cause="it is no torch model",
            ways=("--target jax-cuda", "--target jax-tpu", "--target jax-cpu"),
        )


def check_software(workload: Workload, target: str, style: str) -> None:
    """Refuse a stack or an optimizer that no code is written for, whatever the plan."""
    if "tensor" in workload.stack.hides and DEVICE[target] == "cpu":
        raise EmissionSoftware(
            place=f"stack {workload.stack.name}",
            cause="tensor parallel collectives hide behind pieces of products on GPUs only",
            ways=("--target torch-cuda", "--stack torch-compile"),
        )
    if workload.stack.piecewise:
        raise EmissionSoftware(
            place=f"stack {workload.stack.name}",
            cause="no code is written that gathers parameters one by one",
            ways=("--stack torch",),
        )
    styles = tuple(line.name for line in TARGETS[target].styles)
    for what, value, known in (("style", style, styles), ("optimizer", workload.optimizer, ("adamw",))):
        if value not in known:
            raise EmissionSoftware(
                place=f"{what} {value}",
                cause="it is not emitted yet",
                ways=tuple(f"--{what} {name}" for name in known),
            )
