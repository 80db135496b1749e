"""The tiny twin of a plan: the plan of a small model of the same structure on a few processes here.

    plan -> sizes (ir.project) -> a small model (ir.frontends.twin) -> its fold -> projected decisions -> Program

What the twin's files do is what the plan's do, on smaller meshes with smaller tensors: `plan verify --tiny` runs them,
`plan emit --tiny` writes them. What could not be kept is told.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.backends.door import local_target
from meshwright.backends.subject import Subject
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.apart import apart
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.decisions.project import Sizes, layers_of, projected, sizes_of
from meshwright.ir.frontends.door import Source, twin_of
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.degrees import uses
from meshwright.ir.target.capabilities import Capabilities
from meshwright.ir.target.workload import STACK_OF_STYLE, Workload, stack_named
from meshwright.planner.plan.reload import Reloaded
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.pins import Config, Pins
from meshwright.planner.question.pricing import target_of

SEQ, MOST_SEQUENCES = 32, 2
"""Tokens of a sequence, and sequences of a micro-batch on one rank."""
MOST_RANKS, ENOUGH_RANKS = 8, 4
"""Processes at most; and how many are used where a plan's degrees would need fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The parts of a plan that its twin is made from."""

    model: str
    source: Source
    fold: Fold
    decisions: Decisions
    config: Config
    workload: Workload

    @staticmethod
    def of(again: Reloaded) -> Planned:
        plan = again.plan
        return Planned(
            model=again.ask.model,
            source=again.setting.folds.source,
            fold=again.setting.fold(plan.config),
            decisions=plan.decisions,
            config=plan.config,
            workload=plan.workload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Twinned:
    """The twin of a plan: what is emitted, its predicted price here, and its differences from the plan."""

    subject: Subject
    prediction: Prediction
    told: tuple[str, ...]


def twinned(planned: Planned, folder: Path) -> Twinned:
    """The twin of a plan, with files for a folder."""
    sizes = sizes_of(planned.decisions, MOST_RANKS, ENOUGH_RANKS)
    layers = layers_of(planned.decisions, planned.fold, sizes)
    scale = Scale(layers=layers, seq=SEQ, tokens=planned.workload.seq)
    config = _config(planned.config, sizes)
    local = target_of(local_target(planned.source.framework))
    workload = Workload(
        global_batch=config.batch * config.microbatches,
        seq=SEQ,
        precision="fp32",
        recipe="fp32",
        optimizer=planned.workload.optimizer,
        stack=stack_named(STACK_OF_STYLE[local.styles[0].name]),
    )
    made = twin_of(planned.source, planned.model, scale)
    with tempfile.TemporaryDirectory() as name:
        ask = _ask(_in(Path(name), made), local, sizes, workload)
        setting = ask.setting()
        twin = setting.fold(config)
        calls = setting.folds.calls(ask.model, config.batch)
    files = made.files(folder)
    if files and not calls.beside:
        calls = replace(calls, file=Path(files[0][0]), beside=files)
    decisions = projected(planned.decisions, planned.fold, twin, sizes, local.target, style=workload.stack.style)
    setting.target.check(decisions, twin, workload)
    fold, spelled = (twin, decisions) if local.names_numbers else apart(twin, decisions)
    program = setting.lowered(fold, spelled, workload.global_batch)
    subject = Subject(
        fold=fold,
        decisions=spelled,
        program=program,
        workload=workload,
        calls=calls,
        config=f"{config}; the model's plan: {planned.config}",
    )
    return Twinned(
        subject=subject,
        prediction=setting.price(program),
        told=tuple(_told(planned.decisions, decisions, sizes)),
    )


def _in(folder: Path, twin: Twin) -> str:
    """The reference of a twin whose files are written into a folder."""
    files = twin.files(folder)
    for file, text in files:
        (folder / file).write_text(text, encoding="utf-8")
    return str(folder / twin.reference) if files else twin.reference


def _ask(model: str, target: Capabilities, sizes: Sizes, workload: Workload) -> Ask:
    cluster = f"cpu:{sizes.ranks}"
    return Ask(
        model=model,
        cluster_reference=cluster,
        cluster=read_cluster(cluster),
        workload=workload,
        global_batch=workload.global_batch,
        target=target,
        pins=Pins(),
        seed=0,
    )


def _config(config: Config, sizes: Sizes) -> Config:
    """The degrees of the twin, as a person would write them. Stages with different meshes have their own, and
    micro-batches that all of them can share out."""
    if len({*sizes.meshes}) > 1:
        sequences = max(mesh.size for mesh in sizes.meshes)
        one = replace(config, dp=1, cp=1, tp=1, ep=1, etp=0, shard=0, stage_blocks=(), split="even")
        return replace(one, pp=sizes.groups, mbs=sequences, microbatches=sizes.microbatches)
    found = {"dp": 1, "cp": 1, "tp": 1, "ep": 1, "etp": 1}
    for use in uses(config.degrees()):
        found[use.outside] *= sizes.axis(use.name)
        if use.inside == "ep":
            found["ep"] *= sizes.axis(use.name)
        if use.inside == "tp":
            found["etp"] *= sizes.axis(use.name)
    return replace(
        config,
        dp=found["dp"],
        cp=found["cp"],
        tp=found["tp"],
        ep=found["ep"],
        etp=found["etp"] if config.etp else 0,
        shard=0 if not config.shard else min(config.shard, 2),
        pp=sizes.groups,
        mbs=min(config.mbs, MOST_SEQUENCES),
        microbatches=sizes.microbatches,
        stage_blocks=(),
        split="even",
    )


def _told(decisions: Decisions, twin: Decisions, sizes: Sizes) -> Iterator[str]:
    """The differences of the twin's structure, where it had to differ."""
    lost = {
        (axis.name, axis.size)
        for at, stage in zip(sizes.stands_for, twin.stages, strict=True)
        for axis in decisions.stages[at].mesh.axes
        if axis.size > 1 and stage.mesh.axis(axis.name).size == 1
    }
    for name, size in sorted(lost):
        yield f"axis {name} of {size} ranks has one rank: {MOST_RANKS} processes have no room for it"
    left = len({stage.mesh for stage in decisions.stages}) - len({decisions.stages[at].mesh for at in sizes.stands_for})
    if left:
        yield f"kinds of stages that {MOST_RANKS} processes have no room for are left out: {left}"
    if decisions.schedule.name != twin.schedule.name:
        yield f"its schedule is {twin.schedule.name}: the plan's is a list of actions for its own ranks"
    if decisions.style != twin.style:
        yield f"it runs {twin.style}, not {decisions.style}"
