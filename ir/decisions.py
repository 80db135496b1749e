"""Decisions: everything that a plan decides, and nothing that follows from it.

`Decisions` is what a search returns, what a person can write by hand, and what a saved plan is read back into;
`lower` turns it, with the fold of the model, into the Program that runs. It says, per *stage*, which calls of the
fold run on which ranks in which mesh; per *body*, what every mesh axis does in every operator and in which states
values enter and leave; per parameter, where its copies are stored; and when things happen (schedule, recomputation).

    target torch-cuda  style eager
    stage 0: calls 0..64 on dp=2@rail tp=4@nvlink, ranks 0..7
    layer (LlamaDecoderLayer):
      x       in  [dp, tp, -]
      %q      tp=n dp=d0
      ...
    storage: *.weight params [dp] grads [dp] optimizer [dp]
    schedule 1f1b, 8 micro-batches

Operators that a body plan does not name are idle on every axis; `verify_decisions` says what must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from meshwright.ir.adjoint import Strategy
from meshwright.ir.errors import (
    BodyUnplanned,
    CallsUncovered,
    RanksOverlap,
    ScheduleImpossible,
    StorageConflict,
    UnknownStage,
)
from meshwright.ir.fold import Fold
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement, State


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the copies of one parameter lie between uses.

    Compute needs the parameter in its compute state; over the axes that leave copies there, each of the three may be
    sharded further: the parameter (ZeRO-3, gathered before use), its gradient (ZeRO-2) and the optimizer's state
    (ZeRO-1). Each placement must refine the compute placement: the same shards, and more of them at the minor end.
    """

    path: str
    params: Placement
    grads: Placement
    optimizer: Placement


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """How one body runs on one kind of stage.

    - `strategies` names operators of the body's graph, each at most once.
    - `states` gives the state in which inputs arrive and outputs leave, and may give any other value a *hub*: the
      state it is brought to once, before its readers take it from there.
    - `recompute` names the values that are computed again in the backward pass instead of being kept.
    """

    name: str
    body: str
    strategies: tuple[tuple[str, Strategy], ...] = ()
    states: tuple[tuple[str, State], ...] = ()
    storage: tuple[Storage, ...] = ()
    recompute: tuple[str, ...] = ()
    regather: bool = True
    """Gather sharded parameters again for the backward pass instead of keeping them (FSDP's reshard_after_forward)."""

    def strategy(self, op: str) -> Strategy:
        return next((strategy for name, strategy in self.strategies if name == op), Strategy())


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One pipeline stage: calls first..last (exclusive) of the fold, on `ranks` of the cluster arranged as `mesh`.

    Several virtual stages may share ranks (interleaved schedules); then they must share the mesh too.
    """

    first: int
    last: int
    mesh: Mesh
    ranks: tuple[int, ...]
    plans: tuple[str, ...]
    """The body plans used here, one per body that runs here."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of work over micro-batches: a named schedule, or `custom` with an action list per group of ranks."""

    name: str = "gpipe"
    microbatches: int = 1
    actions: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Decisions:
    """A plan's choices.

    - Stages must cover every call of the fold once, in order.
    - Two stages share all of their ranks (and the mesh), or none.
    - Every body that runs in a stage has exactly one plan there.
    """

    plans: tuple[BodyPlan, ...]
    stages: tuple[StagePlan, ...]
    schedule: Schedule = Schedule()
    target: str = "any"
    style: str = "eager"
    offload: tuple[str, ...] = ()
    """Saved values that wait in host memory between forward and backward."""

    def __post_init__(self) -> None:
        names = [plan.name for plan in self.plans]
        for stage_index, stage in enumerate(self.stages):
            for name in stage.plans:
                if names.count(name) != 1:
                    raise UnknownStage(
                        place=f"stage {stage_index}",
                        cause=f"{names.count(name)} plans named {name!r}",
                        fix="define it once",
                    )
            if stage.mesh.size != len(stage.ranks) or len(set(stage.ranks)) != len(stage.ranks):
                raise RanksOverlap(
                    place=f"stage {stage_index}",
                    cause=f"{len(set(stage.ranks))} different ranks for a mesh of {stage.mesh.size}",
                    fix="give one rank per mesh position",
                )
        self._check_groups()
        if self.schedule.microbatches < 1:
            raise ScheduleImpossible(
                place="schedule", cause=f"{self.schedule.microbatches} micro-batches", fix="use at least one"
            )

    def _check_groups(self) -> None:
        for index, one in enumerate(self.stages):
            for other in self.stages[:index]:
                shared = set(one.ranks) & set(other.ranks)
                if shared and (one.ranks != other.ranks or one.mesh != other.mesh):
                    raise RanksOverlap(
                        place=f"stage {index}",
                        cause=f"it shares rank {min(shared)} with another stage of a different mesh",
                        fix="share all ranks and the mesh, or none",
                    )

    @cached_property
    def plan(self) -> Mapping[str, BodyPlan]:
        return {plan.name: plan for plan in self.plans}

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of ranks, in order of their first stage."""
        return tuple(dict.fromkeys(stage.ranks for stage in self.stages))

    def plan_for(self, stage: int, body: str) -> BodyPlan:
        for name in self.stages[stage].plans:
            if self.plan[name].body == body:
                return self.plan[name]
        raise BodyUnplanned(
            place=f"stage {stage}", cause=f"body {body!r} runs here without a plan", fix="add a body plan"
        )


def verify_decisions(decisions: Decisions, fold: Fold) -> None:
    """Check decisions against the model they are for: coverage, names, states, storage. `lower` relies on this."""
    calls = list(fold.calls())
    expected = 0
    for index, stage in enumerate(decisions.stages):
        if stage.first != expected or stage.last <= stage.first:
            raise CallsUncovered(
                place=f"stage {index}",
                cause=f"it runs calls {stage.first}..{stage.last}",
                fix=f"start at call {expected}",
            )
        expected = stage.last
        for call in calls[stage.first : stage.last]:
            _verify_plan(decisions.plan_for(index, call.body.name), fold, stage.mesh)
    if expected != len(calls):
        raise CallsUncovered(
            place="stages", cause=f"calls {expected}..{len(calls)} run nowhere", fix="extend the last stage"
        )


def _verify_plan(plan: BodyPlan, fold: Fold, mesh: Mesh) -> None:
    graph = fold.body[plan.body].graph
    names = {op.name for op in graph.ops}
    for name, _ in plan.strategies:
        if name not in names:
            raise UnknownStage(
                place=f"plan {plan.name}", cause=f"there is no operator %{name}", fix="name ops of the body"
            )
    for name, state in plan.states:
        if name not in graph.types:
            raise UnknownStage(
                place=f"plan {plan.name}", cause=f"there is no value %{name}", fix="name values of the body"
            )
        state.value.check(graph.types[name].shape, mesh, f"plan {plan.name}, %{name}")
    paths = {param.path for param in graph.params}
    for stored in plan.storage:
        if stored.path not in paths:
            raise StorageConflict(
                place=f"plan {plan.name}",
                cause=f"there is no parameter {stored.path!r}",
                fix="name parameters of the body",
            )
