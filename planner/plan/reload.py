"""Reloading a saved plan: from its decisions, on its own model and cluster or on others.

The model is loaded and held against the plan's; the cluster is the one that the plan tells, or another; the decisions
are lowered as they stand, and priced. What has changed, or is not what the plan says, is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.json import key_of
from meshwright.ir.errors import MeshwrightError, ModulePinUnmet, PinUnmet, PlanBroken, PlanOfAnotherCluster
from meshwright.ir.files.documents import differences, shown, spelled
from meshwright.ir.files.store import usual
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Program
from meshwright.ir.target.capabilities import ANY
from meshwright.planner.plan.schema import NEAR
from meshwright.planner.plan.types import Machines, Model, Plan, blocks_of, changes, same_model
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.held import check_constraints
from meshwright.planner.question.module_pins import check_held, resolved
from meshwright.planner.question.pins import Pins
from meshwright.planner.question.pricing import Setting, target_of
from meshwright.planner.search.search import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """A saved plan with its model, fold, program and prices.

    - `prediction` is of today's cluster and profile; `changed` says what is not as it was planned for.
    """

    plan: Plan
    ask: Ask
    asked: Asked
    setting: Setting
    prediction: Prediction
    changed: tuple[str, ...]

    @property
    def found(self) -> Found:
        """The plan as a search would report it."""
        return Found(self.plan.config, self.prediction)


def reload(plan: Plan, model: str | None = None, cluster: str | None = None) -> Reloaded:
    """Reload a plan, for its own model and cluster unless others are named."""
    machines = plan.machines.cluster() if cluster is None else read_cluster(cluster)
    _same_ranks(plan, machines)
    workload, modules = plan.workload, plan.bounds.modules
    asked = Asked(Constraints(plan.bounds.only, plan.bounds.never), modules=modules)
    ask = Ask(
        model=plan.model.ref if model is None else model,
        cluster_reference=plan.machines.ref if cluster is None else cluster,
        cluster=machines,
        workload=workload,
        global_batch=workload.global_batch,
        target=target_of(plan.decisions.target),
        pins=Pins(),
        seed=plan.provenance.seed,
        profile=plan.provenance.prices(),
        modules=modules,
        store=usual(),
    )
    setting = ask.setting()
    fold = setting.folds.first(plan.config.batch).fold
    _same(plan, Model.of(ask.model, fold, setting.folds.source.config))
    program = program_of(plan, setting)
    _does_what_it_says(plan, setting.fold(plan.config), setting)
    prediction = setting.price(program)
    changed = changes(plan, Machines.of(ask.cluster_reference, machines)) or _misjudged(plan, prediction)
    return Reloaded(plan=plan, ask=ask, asked=asked, setting=setting, prediction=prediction, changed=changed)


def on_target(again: Reloaded, name: str) -> Reloaded:
    """The plan for another target, lowered and priced for it, if the target can have its decisions."""
    target = target_of(name)
    decisions = replace(again.plan.decisions, target=name)
    setting = replace(again.setting, target=target, bodies={})
    if target is not ANY:
        target.check(decisions, setting.fold(again.plan.config), setting.workload)
    plan = replace(again.plan, decisions=decisions)
    return replace(again, plan=plan, setting=setting, prediction=setting.price(program_of(plan, setting)))


def program_of(plan: Plan, setting: Setting) -> Program:
    """The program of a plan's decisions. A name that the model lacks, or a refusal, is reported at its key."""
    lowering, fold = setting.target.lowering().for_stack(plan.workload.stack), setting.fold(plan.config)
    try:
        return lower(fold, plan.decisions, lowering, replace(plan.workload), setting.bodies)
    except MeshwrightError as error:
        raise PlanBroken(
            place=f"plan.json: {key_of(error.place)}", cause=f"{error.cause} ({error.code})", fix=error.fix
        ) from error


def _same(plan: Plan, model: Model) -> None:
    """Check that the model is the one that the plan describes."""
    same_model(plan, model)
    said, found = plan.model.parameters, model.parameters
    if said != found or dict(plan.model.tensors) != dict(model.tensors):  # traces have them in orders of their own
        raise PlanBroken(
            place=f"plan.json: model.{'tensors' if said == found else 'parameters'}",
            cause="it is not what the model of this digest has" + f", {found:,}" * (said != found),
            fix="make the plan again",
        )


def _misjudged(plan: Plan, found: Prediction) -> tuple[str, ...]:
    """Warnings where a plan's figures are not those of its decisions: another version of torch traced the model
    otherwise, or someone changed one of both."""
    for path, said, now in differences(plan.prediction.to_json(), found.to_json(), near=NEAR):
        return (f"predicted.{spelled(path)} is {shown(said)} in plan.json, and {shown(now)} by its decisions",)
    return ()


def _does_what_it_says(plan: Plan, fold: Fold, setting: Setting) -> None:
    """Check that the stages run what the plan says, and that the decisions do what was asked of names and modules."""
    for index, (said, found) in enumerate(zip(plan.blocks, blocks_of(plan.decisions, fold), strict=True)):
        if dict(said) != dict(found):
            raise PlanBroken(
                place=f"plan.json: stages[{index}].blocks",
                cause=f"its calls are {', '.join(f'{number} {name}' for name, number in found)}",
                fix="make the plan again",
            )
    constraints, modules = Constraints(plan.bounds.only, plan.bounds.never), plan.bounds.modules
    try:
        check_held(plan.decisions, fold, modules)
        check_constraints(plan.decisions, fold, constraints, setting.target, resolved(modules, fold))
    except (ModulePinUnmet, PinUnmet) as error:
        where = "modules" if isinstance(error, ModulePinUnmet) else "only"
        raise PlanBroken(
            place=f"plan.bounds.space.{where}, {error.place}", cause=f"{error.cause} ({error.code})", fix=error.fix
        ) from error


def _same_ranks(plan: Plan, cluster: Cluster) -> None:
    if plan.machines.ranks != cluster.ranks:
        raise PlanOfAnotherCluster(
            place=f"a cluster of {cluster.ranks} ranks",
            cause=f"the plan is for {plan.machines.ranks}",
            fix="plan for this cluster, or name one of as many",
        )
