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

Meshes, states, placements and strategies are the text forms of their types. Reading trusts nothing: a wrong version, a
missing or unknown key and a value of the wrong type are errors with the JSON path as their place, and everything else
is checked by the types themselves. Order is that of the decisions, so that equal decisions give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, TypeVar

from meshwright.ir.adjoint import Strategy
from meshwright.ir.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.errors import MeshwrightError, PlanKeyMissing, PlanKeyUnknown, PlanValue, PlanVersion, nearest
from meshwright.ir.mesh import Mesh
from meshwright.ir.offload import Offload
from meshwright.ir.placement import Placement, State

T = TypeVar("T")

FORMAT_VERSION = 1
KEYS = (
    "format_version",
    "target",
    "style",
    "stages",
    "placements",
    "storage",
    "recompute",
    "offload",
    "schedule",
    "ranks",
)
"""The keys of `plan.json` that decisions are made of; the others say where the plan comes from and what it costs."""


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


def decisions_from_json(data: object) -> Decisions:
    """Rebuild decisions. Raises `PlanVersion`, `PlanKeyMissing`, `PlanKeyUnknown`, `PlanValue`, or what the types of
    the decisions refuse."""
    at = At("plan", data)
    version = at.key("format_version").integer()
    if version != FORMAT_VERSION:
        raise PlanVersion(
            place="plan.format_version",
            cause=f"version {version}; this release reads {FORMAT_VERSION}",
            fix="make the plan again",
        )
    at.keys(*KEYS)
    ranks = at.key("ranks").items()
    stages = at.key("stages").items()
    if len(ranks) != len(stages):
        raise PlanValue(
            place="plan.ranks",
            cause=f"{len(ranks)} lists of ranks for {len(stages)} stages",
            fix="give one list per stage",
        )
    placements = at.key("placements").entries()
    storage = at.key("storage").only(placements).entries()
    recompute = at.key("recompute").only(placements).entries()
    return Decisions(
        plans=tuple(_read_plan(name, one, storage.get(name), recompute.get(name)) for name, one in placements.items()),
        stages=tuple(_read_stage(one, held) for one, held in zip(stages, ranks, strict=True)),
        schedule=_read_schedule(at.key("schedule")),
        target=at.key("target").string(),
        style=at.key("style").string(),
        offload=_read_offload(at.key("offload")),
    )


def _read_offload(at: At) -> Offload:
    return Offload.of(at.strings())


def _read_stage(at: At, ranks: At) -> StagePlan:
    at.keys("first", "last", "mesh", "plans")
    return StagePlan(
        first=at.key("first").integer(),
        last=at.key("last").integer(),
        mesh=at.key("mesh").parsed(Mesh.parse),
        ranks=tuple(rank.integer() for rank in ranks.items()),
        plans=at.key("plans").strings(),
    )


def _read_plan(name: str, at: At, storage: At | None, recompute: At | None) -> BodyPlan:
    at.keys("body", "regather", "first", "states", "strategies")
    stored = storage.entries() if storage else {}
    return BodyPlan(
        name=name,
        body=at.key("body").string(),
        strategies=tuple((op, one.parsed(Strategy.parse)) for op, one in at.key("strategies").entries().items()),
        states=tuple((value, one.parsed(State.parse)) for value, one in at.key("states").entries().items()),
        storage=tuple(_read_storage(path, one) for path, one in stored.items()),
        recompute=recompute.strings() if recompute else (),
        regather=at.key("regather").boolean(),
        first=at.key("first").integer(),
    )


def _read_storage(path: str, at: At) -> Storage:
    at.keys("params", "grads", "optimizer")
    params, grads, optimizer = (at.key(kind).parsed(Placement.parse) for kind in ("params", "grads", "optimizer"))
    return Storage(path, params, grads, optimizer)


def _read_schedule(at: At) -> Schedule:
    at.keys("name", "microbatches", "actions")
    return Schedule(
        name=at.key("name").string(),
        microbatches=at.key("microbatches").integer(),
        actions=tuple(actions.strings() for actions in at.key("actions").items()),
    )


class At:
    """A value of a JSON document and the path to it."""

    def __init__(self, path: str, value: object) -> None:
        self.path = path
        self.value = value

    def refuse(self, wanted: str) -> PlanValue:
        return PlanValue(place=self.path, cause=f"it is {self.value!r:.60}", fix=f"give {wanted}")

    def table(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.refuse("an object")
        return self.value

    def key(self, name: str) -> At:
        table = self.table()
        if name not in table:
            raise PlanKeyMissing(place=self.path, cause=f"there is no {name!r}", fix=f"add {name!r}")
        return At(f"{self.path}.{name}", table[name])

    def keys(self, *known: str) -> None:
        """Must: these keys and no others."""
        for name in known:
            self.key(name)
        self.only(known)

    def only(self, known: Iterable[str]) -> At:
        """Must: no other keys than these."""
        for name in self.table():
            if name not in known:
                near = nearest(name, known)
                raise PlanKeyUnknown(
                    place=self.path,
                    cause=f"{name!r} means nothing here",
                    fix=f"did you mean {near!r}?" if near else "remove it",
                )
        return self

    def entries(self) -> dict[str, At]:
        """The values of an object by key."""
        return {name: At(f"{self.path}.{name}", value) for name, value in self.table().items()}

    def items(self) -> list[At]:
        if not isinstance(self.value, list):
            raise self.refuse("a list")
        return [At(f"{self.path}[{index}]", value) for index, value in enumerate(self.value)]

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self.refuse("a string")
        return self.value

    def strings(self) -> tuple[str, ...]:
        return tuple(item.string() for item in self.items())

    def integer(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.refuse("an integer")
        return self.value

    def number(self) -> float:
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not isfinite(self.value):
            raise self.refuse("a number")
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def parsed(self, parse: Callable[[str], T]) -> T:
        """A text form; what its reader refuses gets our place."""
        text = self.string()
        try:
            return parse(text)
        except MeshwrightError as error:
            raise type(error)(place=f"{self.path} ({error.place})", cause=error.cause, fix=error.fix) from error
