"""Decisions: everything that a plan decides, and nothing that follows from it.

`Decisions` is what a search returns, what a person can write by hand, and what a saved plan is read back into;
`lower` turns it, with the fold of the model, into the Program that runs. It says, per *stage*, which calls of the
fold run on which ranks in which mesh; per *body*, what every mesh axis does in every operator and in which states
values enter and leave; per parameter, where its copies are stored; and when things happen (schedule, recomputation).

    decisions
      target torch-cuda
      style eager
      stage 0..64 on (dp=2@rail tp=4@nvlink) ranks 0..7: layer
      plan layer for LlamaDecoderLayer
        state %x  [dp, tp, -]
        op %q  dp=d0 tp=n
        ...
        store "mlp.up.weight" params [tp.dp, -] grads [tp.dp, -] optimizer [tp.dp, -]
      schedule 1f1b x 8

Operators that a body plan does not name are idle on every axis; `verify_decisions` says what must hold. The text form
is in `meshwright.ir.decisions.text`, the one that plans are saved in is in `meshwright.ir.decisions.json`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshwright.ir.decisions.offload import NOTHING, Offload
from meshwright.ir.errors import (
    BodyUnknown,
    BodyUnplanned,
    CallsRepeated,
    CallsUncovered,
    MeshUnfilled,
    PlannedOpUnknown,
    PlannedValueUnknown,
    PlanRepeated,
    PlanUnknown,
    RanksOverlap,
    ScheduleImpossible,
    StageEmpty,
    StoredParamUnknown,
    within,
)
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.rewrite import facts_of


@dataclass(frozen=True, slots=True)
class Storage:
    """The placements of one parameter, its gradient and its optimizer state between uses.

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
    """The plan of one body on one kind of stage.

    - `strategies` names operators of the body's graph, each at most once. One that leaves all axes idle says nothing
      and is left out.
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
    first: int = 0
    """For the first so many calls of the body in a stage only; a later plan takes the rest. 0: for all of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategies", tuple(pair for pair in self.strategies if pair[1].choices))
        for what, names in (
            ("a strategy for %", [op for op, _ in self.strategies]),
            ("a state for %", [value for value, _ in self.states]),
            ("storage for ", [item.path for item in self.storage]),
            ("recomputation of %", self.recompute),
        ):
            repeated = _repeated(names)
            if repeated is not None:
                raise PlanRepeated(
                    place=f"plan {self.name}", cause=f"it has {what}{repeated} twice", fix="decide it once"
                )

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
    """The body plans used here: one per body that runs here, after those for its first calls."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of work over micro-batches: a named schedule, or `custom` with an action list per group of ranks."""

    name: str = "gpipe"
    microbatches: int = 1
    actions: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Decisions:
    """The choices of a plan.

    - Stages must cover every call of the fold once, in order.
    - Two stages share all of their ranks (and the mesh), or none.
    - Every call of a body in a stage has a plan there: the first one listed that is for it.
    """

    plans: tuple[BodyPlan, ...]
    stages: tuple[StagePlan, ...]
    schedule: Schedule = Schedule()
    target: str = "any"
    style: str = "eager"
    offload: Offload = NOTHING
    """What waits in the host's memory."""

    def __post_init__(self) -> None:
        names = [plan.name for plan in self.plans]
        repeated = _repeated(names)
        if repeated is not None:
            raise PlanRepeated(place="plans", cause=f"two are named {repeated!r}", fix="name every plan once")
        for index, stage in enumerate(self.stages):
            if (twice := _repeated(stage.plans)) is not None:
                raise PlanRepeated(place=f"stage {index}", cause=f"it names plan {twice!r} twice", fix="name it once")
            for name in stage.plans:
                if name not in names:
                    raise PlanUnknown(
                        place=f"stage {index}", cause=f"there is no plan {name!r}", fix=f"use one of {', '.join(names)}"
                    )
            if stage.mesh.size != len(stage.ranks) or len(set(stage.ranks)) != len(stage.ranks):
                raise MeshUnfilled(
                    place=f"stage {index}",
                    cause=f"{len(set(stage.ranks))} different ranks for a mesh of {stage.mesh.size}",
                    fix="give one rank per mesh position",
                )
        self._check_groups()
        if self.schedule.microbatches < 1:
            raise ScheduleImpossible(
                place="schedule", cause=f"{self.schedule.microbatches} micro-batches", fix="use at least one"
            )

    def _check_groups(self) -> None:
        meshes: dict[tuple[int, ...], Mesh] = {}
        held: set[int] = set()
        for index, stage in enumerate(self.stages):
            if meshes.get(stage.ranks) == stage.mesh:
                continue
            shared = held.intersection(stage.ranks)
            if shared:
                raise RanksOverlap(
                    place=f"stage {index}",
                    cause=f"it shares rank {min(shared)} with another stage of a different mesh",
                    fix="share all ranks and the mesh, or none",
                )
            meshes[stage.ranks] = stage.mesh
            held.update(stage.ranks)

    @cached_property
    def plan(self) -> Mapping[str, BodyPlan]:
        return {plan.name: plan for plan in self.plans}

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of ranks, in order of their first stage."""
        return tuple(dict.fromkeys(stage.ranks for stage in self.stages))

    def plans_for(self, stage: int, bodies: Iterable[str]) -> list[BodyPlan]:
        """The plan of every call of a stage, given the bodies called."""
        plans = [self.plan[name] for name in self.stages[stage].plans]
        if not any(plan.first for plan in plans):
            only = {plan.body: plan for plan in reversed(plans)}
            return [only.get(body) or self.plan_for(stage, body) for body in bodies]
        before: Counter[str] = Counter()
        found = []
        for body in bodies:
            found.append(self.plan_for(stage, body, before[body]))
            before[body] += 1
        return found

    def plan_for(self, stage: int, body: str, call: int = 0) -> BodyPlan:
        """The plan of a body in a stage, for its `call`-th call there."""
        for name in self.stages[stage].plans:
            plan = self.plan[name]
            if plan.body == body and (not plan.first or call < plan.first):
                return plan
        raise BodyUnplanned(
            place=f"stage {stage}", cause=f"body {body!r} runs here without a plan", fix="add a body plan"
        )


def verify_decisions(decisions: Decisions, fold: Fold) -> None:
    """Check decisions against the model they are for: coverage, names, states, storage. `lower` relies on this."""
    calls = list(fold.calls())
    expected = 0
    for planned in decisions.plans:
        if planned.body not in fold.body:
            raise BodyUnknown(
                place=f"plan {planned.name}",
                cause=f"the model has no body {planned.body!r}",
                fix=f"use one of {', '.join(fold.body)}",
            )
    for index, stage in enumerate(decisions.stages):
        _verify_range(index, stage, expected)
        expected = stage.last
        used = decisions.plans_for(index, (call.body.name for call in calls[stage.first : stage.last]))
        for plan in {plan.name: plan for plan in used}.values():
            verify_plan(Same(plan), Same(fold.body[plan.body].graph), stage.mesh)
    if expected != len(calls):
        raise CallsUncovered(
            place="stages",
            cause=f"the last stage ends at call {expected} of {len(calls)}",
            fix="end it at the last call",
        )


def _verify_range(index: int, stage: StagePlan, expected: int) -> None:
    place, cause = f"stage {index}", f"it runs calls {stage.first}..{stage.last}"
    if stage.first > expected:
        raise CallsUncovered(place=place, cause=cause, fix=f"start at call {expected}")
    if stage.first < expected:
        raise CallsRepeated(place=place, cause=cause, fix=f"start at call {expected}")
    if stage.last <= stage.first:
        raise StageEmpty(place=place, cause=cause, fix="give it at least one call, or drop it")


@lru_cache(maxsize=4096)
def verify_plan(planned: Same[BodyPlan], body: Same[Graph], mesh: Mesh) -> None:
    """A body's plan; what was valid once is not checked again."""
    plan, graph = planned.of, body.of
    place = f"plan {plan.name}"
    _verify_compute(place, plan.strategies, plan.states, body, mesh)
    for name in plan.recompute:
        if name not in graph.types:
            raise PlannedValueUnknown(place=place, cause=f"there is no value %{name}", fix="name values of the body")
    params = {param.path: param for param in graph.params}
    for stored in plan.storage:
        if stored.path not in params:
            raise StoredParamUnknown(
                place=place, cause=f"there is no parameter {stored.path!r}", fix="name parameters of the body"
            )
        for placement in dict.fromkeys((stored.params, stored.grads, stored.optimizer)):
            with within(at := f"{place}, {stored.path}"):
                placement.check(graph.types[params[stored.path].value].shape, mesh, at)


@lru_cache(maxsize=4096)
def _verify_compute(
    place: str,
    strategies: tuple[tuple[str, Strategy], ...],
    states: tuple[tuple[str, State], ...],
    body: Same[Graph],
    mesh: Mesh,
) -> None:
    """Check the part of a plan that plans share which differ in storage and recomputation only."""
    graph, facts = body.of, facts_of(body.of)
    for name, strategy in strategies:
        if name not in facts:
            raise PlannedOpUnknown(place=place, cause=f"there is no operator %{name}", fix="name ops of the body")
        with within(f"{place}, %{name}"):
            facts[name].applied(strategy, mesh)
    for name, state in states:
        if name not in graph.types:
            raise PlannedValueUnknown(place=place, cause=f"there is no value %{name}", fix="name values of the body")
        with within(at := f"{place}, %{name}"):
            state.value.check(graph.types[name].shape, mesh, at)


def _repeated(names: Sequence[str]) -> str | None:
    """The first name that appears twice."""
    if len(set(names)) == len(names):
        return None
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
