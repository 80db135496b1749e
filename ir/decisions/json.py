"""Decisions as JSON: the part of `plan.json` that alone rebuilds a plan.

    format_version   1
    target, style    strings
    stages           [{"first", "last", "mesh": "dp=2@rail tp=4", "plans": [names]}, …]
    placements       {plan: {"body", "regather", "states": {value: state}, "strategies": {op: strategy}}, …}
    storage          {plan: {parameter path: {"params", "grads", "optimizer"}}, …}       for plans that say so
    recompute        {plan: [values], …}                                                  likewise
    offload          [kinds]                                                              such as "activations:4"
    schedule         {"name", "microbatches", "actions": [[…], …]}
    ranks            [[…] per stage]

Meshes, states, placements and strategies are the text forms of their types. Reading trusts nothing: `DecisionsTable`
says which keys there are and what each may be, errors have the path of the key as their place, and everything else is
checked by the types themselves. Order is that of the decisions, so that equal decisions give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import (
    MeshwrightError,
    PlanKeyMissing,
    PlanKeyUnknown,
    PlanValue,
    PlanVersion,
    nearest,
)
from meshwright.ir.files.schema import Count, Form, Most, OneOf, Parsed, Table, Text, Tuple, Whole
from meshwright.ir.limits import GLOBAL_BATCH, LAYERS, RANKS
from meshwright.ir.schedules import CUSTOM, SCHEDULES
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.target.workload import STYLES

FORMAT_VERSION = 1


# Writing -------------------------------------------------------------------------------------------------------------


def decisions_to_json(decisions: Decisions) -> dict[str, Any]:
    """Decisions as plain lists, dictionaries, strings and numbers."""
    return {
        "format_version": FORMAT_VERSION,
        "target": decisions.target,
        "style": decisions.style,
        "stages": [
            {"first": stage.first, "last": stage.last, "mesh": str(stage.mesh), "plans": list(stage.plans)}
            for stage in decisions.stages
        ],
        "placements": {plan.name: _placements(plan) for plan in decisions.plans},
        "storage": {plan.name: _storage(plan) for plan in decisions.plans if plan.storage},
        "recompute": {plan.name: list(plan.recompute) for plan in decisions.plans if plan.recompute},
        "offload": list(decisions.offload.words),
        "schedule": {
            "name": decisions.schedule.name,
            "microbatches": decisions.schedule.microbatches,
            "actions": [list(actions) for actions in decisions.schedule.actions],
        },
        "ranks": [list(stage.ranks) for stage in decisions.stages],
    }


def _placements(plan: BodyPlan) -> dict[str, Any]:
    return {
        "body": plan.body,
        "regather": plan.regather,
        "first": plan.first,
        "states": {value: str(state) for value, state in plan.states},
        "strategies": {op: str(strategy) for op, strategy in plan.strategies},
    }


def _storage(plan: BodyPlan) -> dict[str, Any]:
    return {
        item.path: {"params": str(item.params), "grads": str(item.grads), "optimizer": str(item.optimizer)}
        for item in plan.storage
    }


# Reading -------------------------------------------------------------------------------------------------------------


class StageTable(Table):
    """One pipeline stage."""

    first: Whole
    last: Count
    mesh: Annotated[Mesh, Parsed(Mesh.parse)]
    plans: Tuple[Text]


class PlacementsTable(Table):
    """The plan of one body."""

    body: Text
    regather: bool
    first: Whole
    states: dict[Text, Annotated[State, Parsed(State.parse)]]
    strategies: dict[Text, Annotated[Strategy, Parsed(Strategy.parse)]]


class StorageTable(Table):
    """The storage of one parameter."""

    params: Annotated[Placement, Parsed(Placement.parse)]
    grads: Annotated[Placement, Parsed(Placement.parse)]
    optimizer: Annotated[Placement, Parsed(Placement.parse)]


class ScheduleTable(Table):
    """The schedule."""

    name: Annotated[str, OneOf((*SCHEDULES, CUSTOM))]
    microbatches: Annotated[Count, Most(GLOBAL_BATCH)]
    actions: Tuple[Tuple[Text]]


class DecisionsTable(Table):
    """The keys of `plan.json` that make up decisions; the others say what they are for, and what they cost."""

    format_version: Count
    target: Text
    style: Annotated[str, OneOf(STYLES)]
    stages: Annotated[Tuple[StageTable], Most(LAYERS)]
    placements: dict[Text, PlacementsTable]
    storage: dict[Text, dict[Text, StorageTable]]
    recompute: dict[Text, Tuple[Text]]
    offload: Tuple[Text]
    schedule: ScheduleTable
    ranks: Tuple[Annotated[Tuple[Annotated[Whole, Most(RANKS)]], Most(RANKS)]]


KEYS = tuple(DecisionsTable.model_fields)

FORM: Form[DecisionsTable] = Form(
    table=DecisionsTable,
    broken=PlanValue,
    missing=PlanKeyMissing,
    unknown=PlanKeyUnknown,
    value=PlanValue,
)


def decisions_from_json(data: object, place: str = "plan") -> Decisions:
    """Rebuild decisions. Raises `PlanVersion`, `PlanKeyMissing`, `PlanKeyUnknown`, `PlanValue`, or what the types of
    the decisions refuse."""
    check_version(data, place)
    return decisions_of(FORM.read(data, place), place)


def check_version(data: object, place: str) -> None:
    """Check the version, which says what all other keys mean."""
    version = data.get("format_version") if isinstance(data, dict) else None
    if type(version) is int and version != FORMAT_VERSION:
        raise PlanVersion(
            place=f"{place}: format_version",
            cause=f"format {version}; this release reads {FORMAT_VERSION}",
            fix="make the plan again, or use the release that made it",
        )


def decisions_of(table: DecisionsTable, place: str) -> Decisions:
    """The decisions of a checked table."""
    if len(table.ranks) != len(table.stages):
        raise PlanValue(
            place=f"{place}: ranks",
            cause=f"{len(table.ranks)} lists of ranks for {len(table.stages)} stages",
            fix="give one list per stage",
        )
    for key, given in (("storage", table.storage), ("recompute", table.recompute)):
        _only(given, table.placements, f"{place}: {key}")
    try:
        return Decisions(
            plans=tuple(_plan(name, one, table) for name, one in table.placements.items()),
            stages=tuple(
                StagePlan(first=one.first, last=one.last, mesh=one.mesh, ranks=held, plans=one.plans)
                for one, held in zip(table.stages, table.ranks, strict=True)
            ),
            schedule=Schedule(**dict(table.schedule)),
            target=table.target,
            style=table.style,
            offload=Offload.of(table.offload),
        )
    except MeshwrightError as error:
        raise type(error)(place=f"{place}: {key_of(error.place)}", cause=error.cause, fix=error.fix) from error


def key_of(place: str) -> str:
    """The key of the place at which decisions are refused."""
    kind, _, rest = place.partition(" ")
    name, comma, inside = rest.partition(", ")
    keys = {"stage": f"stages[{name}]", "plan": f"placements.{name}", "plans": "placements"}
    return f"{keys[kind]}{comma}{inside}" if kind in keys else place


def _plan(name: str, one: PlacementsTable, table: DecisionsTable) -> BodyPlan:
    stored = table.storage.get(name, {})
    return BodyPlan(
        name=name,
        body=one.body,
        strategies=tuple(one.strategies.items()),
        states=tuple(one.states.items()),
        storage=tuple(Storage(path, held.params, held.grads, held.optimizer) for path, held in stored.items()),
        recompute=table.recompute.get(name, ()),
        regather=one.regather,
        first=one.first,
    )


def _only(given: Iterable[str], known: Iterable[str], place: str) -> None:
    """Check that plans exist."""
    for name in given:
        if name not in known:
            near = nearest(name, known)
            raise PlanKeyUnknown(
                place=f"{place}.{name}",
                cause="there is no such plan",
                fix=f"did you mean {near!r}?" if near else "remove it",
            )
