"""The schema of `plan.json`: its keys, their values, and the rules between them.

`PlanTable` is the whole file; its half of decisions is `ir.decisions.json.DecisionsTable`. `contradictions` names what
no single key shows: that the interval holds the step, that shares add up to it, that the gap follows from its bounds.
What follows from other keys alone (`fits`, `calibrated`, `upper_s`, …) is not listed there: `plan_file` writes a plan
that it has read once more, and compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isclose
from typing import Annotated

from meshwright.backends.door import TARGETS
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.quantity import KINDS, weakest_kind
from meshwright.cost_models.measured.file import MeasuredTable
from meshwright.cost_models.prediction import HELD, SHARES, Held, Prediction, StagePrediction
from meshwright.ir.decisions.json import DecisionsTable, StageTable
from meshwright.ir.errors import PlanBroken, PlanNotJson, PlanUnreadable
from meshwright.ir.files.documents import Fault, Path_
from meshwright.ir.files.schema import (
    Amount,
    Count,
    FileForm,
    Most,
    Name,
    Number,
    OneOf,
    Positive,
    Table,
    Text,
    Tuple,
    Whole,
)
from meshwright.ir.limits import GLOBAL_BATCH, HOSTS, LAYERS, PLAN_BYTES, RANKS, SEQ
from meshwright.ir.schedules import CUSTOM
from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS
from meshwright.planner.plan.types import Machines, Plan, Rival
from meshwright.planner.question.module_pins import OPTIONS
from meshwright.planner.question.objective import OBJECTIVES, score
from meshwright.planner.question.pin_schema import ConfigTable, ConstraintsTable
from meshwright.planner.question.pins import Config

NEAR = 1e-6
"""Relative difference of numbers that are the same but for rounding."""

KindName = Annotated[str, OneOf(KINDS)]
Index = Annotated[Whole, Most(LAYERS)]
Ranks = Annotated[Count, Most(RANKS)]


class StageOfPlan(StageTable):
    """A stage of the decisions, with the blocks that it runs."""

    blocks: dict[Name, Count]


class ProfileTable(Table):
    """The profile of prices that a plan was made with."""

    name: Name
    digest: Name
    measured: MeasuredTable | None = None
    """What `plan calibrate` found, if the plan was made with that."""


class ProvenanceTable(Table):
    """The release that made a plan, and the numbers that it used."""

    meshwright: Name
    profile: ProfileTable
    weakest: KindName
    calibrated: bool
    seed: int


class ModelTable(Table):
    """The facts by which a plan recognises its model."""

    ref: Name
    digest: Name
    parameters: Count
    tensors: dict[Name, Name]


class ClusterTable(Table):
    """The facts by which a plan recognises its cluster."""

    ref: Name
    hosts: Annotated[Count, Most(HOSTS)]
    ranks: Ranks
    devices: Tuple[Name]
    toml: str


class WorkloadTable(Table):
    """The training workload."""

    global_batch: Annotated[Count, Most(GLOBAL_BATCH)]
    seq: Annotated[Count, Most(SEQ)]
    precision: Annotated[str, OneOf(PRECISIONS)]
    optimizer: Annotated[str, OneOf(tuple(OPTIMIZERS))]
    stack: Annotated[str, OneOf(tuple(STACKS))]
    recipe: Annotated[str, OneOf(tuple(RECIPES))]
    imbalance: Positive


class StagePredictedTable(Table):
    """Seconds of a micro-batch on a stage, and the memory of its ranks."""

    stage: Index
    ranks: Ranks
    forward_s: Amount
    backward_s: Amount
    weight_s: Amount
    peak_memory_bytes: Amount
    capacity_bytes: Number
    device_bytes: Positive
    margin_bytes: Amount
    instant: Name
    memory: dict[Annotated[str, OneOf(HELD)], Amount]
    host_bytes: Amount

    def made(self) -> StagePrediction:
        return StagePrediction(
            stage=self.stage,
            ranks=self.ranks,
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            weight_s=self.weight_s,
            memory=Held(
                peak_bytes=self.peak_memory_bytes,
                device_bytes=self.device_bytes,
                margin_bytes=self.margin_bytes,
                instant=self.instant,
                parts=tuple(self.memory.items()),
                host_bytes=self.host_bytes,
            ),
        )


class PredictedTable(Table):
    """The prediction of a plan."""

    step_time_s: Positive
    step_time_low_s: Positive
    step_time_high_s: Positive
    tokens_per_s_per_gpu: Positive
    mfu: Amount
    peak_memory_bytes: Amount
    fits: bool
    stages: Annotated[Tuple[StagePredictedTable], Most(LAYERS)]
    shares: dict[Annotated[str, OneOf(SHARES)], Amount]
    traffic: dict[Name, Amount]
    provenance: dict[Name, KindName]

    def made(self) -> Prediction:
        return Prediction(
            step_time_s=self.step_time_s,
            step_time_low_s=self.step_time_low_s,
            step_time_high_s=self.step_time_high_s,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu,
            mfu=self.mfu,
            stages=tuple(stage.made() for stage in self.stages),
            shares=tuple(self.shares.items()),
            traffic=tuple(self.traffic.items()),
            provenance=tuple(self.provenance.items()),  # type: ignore[arg-type]
        )


class ObjectiveTable(Table):
    """The objective of a search, and its bound."""

    name: Annotated[str, OneOf(OBJECTIVES)]
    lower: Amount
    upper: Positive


class ModulePinTable(Table):
    """A pin of modules."""

    option: Annotated[str, OneOf(OPTIONS)]
    pin: Name


class SpaceTable(Table):
    """The declared space that the bounds are about."""

    only: ConstraintsTable  # type: ignore[valid-type]
    never: ConstraintsTable  # type: ignore[valid-type]
    modules: Tuple[ModulePinTable] = ()
    truncated: Tuple[Text]
    complete: bool
    counts: dict[Name, Whole]


class OperatorBoundTable(Table):
    """The bounds on all plans of operators."""

    lower_s: Amount = 0.0
    gap: Number = 1.0
    more_axes_lower_s: Amount = 0.0


class BoundsTable(Table):
    """The bounds that were proved."""

    lower_s: Amount
    upper_s: Positive
    gap: Number
    operators: OperatorBoundTable = OperatorBoundTable()
    objective: ObjectiveTable
    space: SpaceTable


class ShortTable(Table):
    """The memory that a plan lacks."""

    stage: Index
    bytes: Positive


class RivalTable(Table):
    """A plan that the answer is compared with."""

    name: str
    config: ConfigTable | None  # type: ignore[valid-type]
    step_time_s: Amount
    peak_memory_bytes: Amount
    fits: bool
    short: ShortTable | None
    slower: Amount
    differences: dict[Annotated[str, OneOf(SHARES)], Number]
    lost: Text


class PointTable(Table):
    """A configuration that was priced, with its time and its memory."""

    config: ConfigTable  # type: ignore[valid-type]
    step_time_s: Positive
    peak_memory_bytes: Positive
    fits: bool


class BindingTable(Table):
    """A constraint that keeps a plan from being faster."""

    kind: Name
    what: Text


class PlanTable(DecisionsTable):
    """A plan: decisions, what they were made for, what they cost, and how good that is (docs/plan.md)."""

    target: Annotated[str, OneOf(tuple(TARGETS))]
    stages: Annotated[Tuple[StageOfPlan], Most(LAYERS)]
    provenance: ProvenanceTable
    model: ModelTable
    cluster: ClusterTable
    workload: WorkloadTable
    config: ConfigTable  # type: ignore[valid-type]
    predicted: PredictedTable
    bounds: BoundsTable
    baselines: Tuple[RivalTable]
    alternatives: Tuple[RivalTable]
    frontier: Tuple[PointTable] = ()
    binding_constraints: Tuple[BindingTable]
    notes: Tuple[Text]


FORM: FileForm[PlanTable] = FileForm(
    table=PlanTable,
    unreadable=PlanUnreadable,
    broken=PlanNotJson,
    missing=PlanBroken,
    unknown=PlanBroken,
    value=PlanBroken,
    give="name the plan.json that `plan MODEL … --out DIR` wrote",
    limit=PLAN_BYTES,
)


# What must hold between keys -----------------------------------------------------------------------------------------


def contradictions(plan: Plan) -> Iterator[Fault]:
    """Statements of two parts of a plan that contradict each other."""
    cluster = plan.machines.cluster()
    yield from _machines(plan, cluster)
    yield from _stages(plan)
    yield from _config(("config",), plan.config, plan)
    yield from _predicted(plan)
    yield from _bounds(plan, cluster)
    for key, rivals in (("baselines", plan.baselines), ("alternatives", plan.alternatives)):
        for index, one in enumerate(rivals):
            yield from _rival((key, index), one, plan)
    yield from _frontier(plan)


def _same(path: Path_, said: float, follows: float, how: str) -> Iterator[Fault]:
    """Check a number that follows from others."""
    if not isclose(said, follows, rel_tol=NEAR, abs_tol=1e-12):
        yield Fault(path, f"it is {said!r}, and {how} is {follows!r}", AGAIN)


AGAIN = "make the plan again; what a plan costs cannot be edited"


def _machines(plan: Plan, cluster: Cluster) -> Iterator[Fault]:
    now = Machines.of(plan.machines.ref, cluster)
    for key in ("hosts", "ranks", "devices"):
        said, told = getattr(plan.machines, key), getattr(now, key)
        if said != told:
            yield Fault(("cluster", key), f"it is {said}, and cluster.toml has {told}", "correct one of them")
    for index, stage in enumerate(plan.decisions.stages):
        if max(stage.ranks, default=0) >= now.ranks:
            cause = f"rank {max(stage.ranks)} of a cluster of {now.ranks}"
            yield Fault(("ranks", index), cause, f"use 0 to {now.ranks - 1}")


def _stages(plan: Plan) -> Iterator[Fault]:
    decisions = plan.decisions
    before = 0
    for index, (stage, blocks) in enumerate(zip(decisions.stages, plan.blocks, strict=True)):
        if not stage.first == before < stage.last:
            cause = f"it runs calls {stage.first}..{stage.last}, and those before it end at {before}"
            yield Fault(("stages", index, "first"), cause, "let stages follow one another, each with a call at least")
        before = stage.last
        count = sum(number for _, number in blocks)
        if count != stage.last - stage.first:
            cause = f"{count} blocks for calls {stage.first}..{stage.last}"
            yield Fault(("stages", index, "blocks"), cause, "count every call once")
    for body in decisions.plans:
        if not any(body.name in stage.plans for stage in decisions.stages):
            yield Fault(("placements", body.name), "no stage has this plan", "remove it, or name it in a stage")
    if bool(decisions.schedule.actions) != (decisions.schedule.name == CUSTOM):
        cause = f"lists of actions say the order of work where the schedule is {CUSTOM}, and nowhere else"
        yield Fault(("schedule", "actions"), cause, "correct one of them")
    config = plan.config
    own = any(stage.mesh.size != config.dp * config.tp * config.cp for stage in decisions.stages)
    for key, said, follows in (
        ("microbatches", config.microbatches, decisions.schedule.microbatches),
        ("vp", config.pp * config.vp, len(decisions.stages)),
    ):
        if said != follows and not (own and key == "vp"):  # stages of another mesh are not those of the configuration
            yield Fault(("config", key), f"it makes {said}, and the decisions have {follows}", "correct one of them")
    if not config.zero and not own and any(body.storage for body in decisions.plans):
        yield Fault(("config", "zero"), "it keeps whole copies, and the decisions have shards", "correct one of them")
    if config.dp * config.tp * config.cp * config.pp > plan.machines.ranks:
        yield Fault(
            ("config",), f"it has more ranks than the {plan.machines.ranks} of the cluster", "correct one of them"
        )


def _config(path: Path_, config: Config, plan: Plan) -> Iterator[Fault]:
    if config.dp * config.mbs * config.microbatches != plan.workload.global_batch:
        cause = f"{config.dp} copies with {config.microbatches} micro-batches of {config.mbs} sequences"
        yield Fault(path, f"{cause} are not {plan.workload.global_batch} sequences", "correct one of them")
    for name, needs in (("sp", "tp"), ("zigzag", "cp"), ("vp", "pp")):
        if int(getattr(config, name)) > int(name == "vp") and getattr(config, needs) == 1:
            yield Fault((*path, name), f"it is {getattr(config, name)}, and {needs} is 1", "correct one of them")


def _predicted(plan: Plan) -> Iterator[Fault]:
    found, stages = plan.prediction, plan.decisions.stages
    if len(found.stages) != len(stages):
        cause = f"{len(found.stages)} of them, and the decisions have {len(stages)}"
        yield Fault(("predicted", "stages"), cause, AGAIN)
        return
    if not found.step_time_low_s <= found.step_time_s <= found.step_time_high_s:
        cause = f"{found.step_time_s} is not within {found.step_time_low_s} to {found.step_time_high_s}"
        yield Fault(("predicted", "step_time_s"), cause, AGAIN)
    shares = sum(seconds for _, seconds in found.shares)
    yield from _same(("predicted", "shares"), shares, found.step_time_s, "the step time")
    ranks = len({rank for stage in stages for rank in stage.ranks})
    speed = plan.workload.tokens / found.step_time_s / ranks
    yield from _same(
        ("predicted", "tokens_per_s_per_gpu"), found.tokens_per_s_per_gpu, speed, "what the step time gives"
    )
    kinds = [kind for _, kind in found.provenance]
    if not kinds or weakest_kind(*kinds) != plan.provenance.weakest:
        cause = f"it is {plan.provenance.weakest}, and predicted.provenance has {', '.join(kinds) or 'nothing'}"
        yield Fault(("provenance", "weakest"), cause, AGAIN)
    for index, (said, stage) in enumerate(zip(found.stages, stages, strict=True)):
        path = ("predicted", "stages", index)
        yield from _same((*path, "stage"), said.stage, index, "its place")
        yield from _same((*path, "ranks"), said.ranks, len(stage.ranks), "the number of its ranks")
        held = sum(nbytes for _, nbytes in said.memory.parts)
        yield from _same((*path, "memory"), held, said.memory.peak_bytes, "peak_memory_bytes")
        if said.weight_s > said.backward_s * (1 + NEAR):
            cause = f"{said.weight_s} of a backward pass of {said.backward_s}"
            yield Fault((*path, "weight_s"), cause, AGAIN)


def _bounds(plan: Plan, cluster: Cluster) -> Iterator[Fault]:
    bounds, path = plan.bounds, ("bounds", "objective")
    if bounds.lower > bounds.upper * (1 + NEAR):
        yield Fault((*path, "lower"), f"{bounds.lower} is above the upper bound, {bounds.upper}", AGAIN)
    if bounds.objective == "cost" and not all(pool.price for pool in cluster.pools):
        yield Fault((*path, "name"), "plans by cost, and the cluster has no prices", AGAIN)
    else:
        follows = score(bounds.objective, plan.prediction, cluster)
        yield from _same((*path, "upper"), bounds.upper, follows, "what is predicted")
    gap = 1 - bounds.lower / bounds.upper
    if abs(bounds.gap - gap) > NEAR:
        yield Fault(("bounds", "gap"), f"it is {bounds.gap}, and that of the bounds is {gap}", AGAIN)
    for name, least_s in (("lower_s", bounds.operators_s), ("more_axes_lower_s", bounds.more_axes_s)):
        if least_s > plan.prediction.step_time_s * (1 + NEAR):
            cause = f"{least_s} is above the step of the plan, {plan.prediction.step_time_s}"
            yield Fault(("bounds", "operators", name), cause, AGAIN)


def _rival(path: Path_, one: Rival, plan: Plan) -> Iterator[Fault]:
    if one.config is None:
        if one.step_time_s or one.peak_memory_bytes or one.slower or one.differences or one.short_stage >= 0:
            yield Fault((*path, "config"), "it costs something, and is no configuration", AGAIN)
        return
    best = plan.prediction
    yield from _config((*path, "config"), one.config, plan)
    if not one.peak_memory_bytes > one.short_bytes:
        yield Fault((*path, "peak_memory_bytes"), f"{one.peak_memory_bytes} bytes, {one.short_bytes} too many", AGAIN)
    yield from _same((*path, "slower"), one.slower, one.step_time_s / best.step_time_s, "what the step times give")
    more_s, tolerated = one.step_time_s - best.step_time_s, NEAR * max(one.step_time_s, best.step_time_s)
    if abs(sum(seconds for _, seconds in one.differences) - more_s) > tolerated:
        yield Fault((*path, "differences"), f"they do not add up to the {more_s} s that it takes longer", AGAIN)


def _frontier(plan: Plan) -> Iterator[Fault]:
    for index, one in enumerate(plan.frontier):
        yield from _config(("frontier", index, "config"), one.config, plan)
    for index, (one, after) in enumerate(pairwise(plan.frontier), 1):
        if after.step_time_s <= one.step_time_s or after.peak_memory_bytes >= one.peak_memory_bytes:
            yield Fault(("frontier", index), "the one before takes less time, or no more memory", AGAIN)
