"""Differences between the decisions of two plans, and what they do to the prediction, share by share.

A is a saved plan, B another one, or pins that change A: `plan diff out/plan.json tp=4,zero=3`. With pins, whatever
follows from them is filled in anew (copies, micro-batches, the schedule where stages change), and the result is priced
on A's cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.json import decisions_to_json
from meshwright.ir.schedules import CUSTOM
from meshwright.planner.answer.report import differences
from meshwright.planner.plan.file import load_plan, workload_to_json
from meshwright.planner.plan.reload import reload
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import KNOBS, NAMES, Config, Pins, fill, parse, read, word

MOST_PATHS = 12
"""Decisions that are named where two plans have the same degrees."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans: its label, decisions and cost."""

    name: str
    config: Config
    decided: dict[str, Any]
    about: dict[str, Any]
    """Model, cluster and workload."""
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Diff:
    """Two plans, and their differences."""

    one: Side
    other: Side
    about: tuple[tuple[str, str, str], ...]
    config: tuple[tuple[str, str, str], ...]
    decided: tuple[tuple[str, str, str], ...]
    """Paths of decisions, where the names above are all the same."""
    shares: tuple[tuple[str, float], ...]


def diff(a: str, b: str) -> Diff:
    """The difference between a saved plan and another one, or the same plan with pins."""
    plan = load_plan(a)
    one = side(a, plan)
    other = changed_by(plan, b) if _is_pins(b) else side(b, load_plan(b))
    config = tuple(_unlike(one.config.to_json(), other.config.to_json(), NAMES))
    return Diff(
        one=one,
        other=other,
        about=tuple(_unlike(one.about, other.about, tuple(one.about))),
        config=config,
        decided=() if config else tuple(islice(_paths("", one.decided, other.decided), MOST_PATHS)),
        shares=differences(other.prediction, one.prediction),
    )


def _is_pins(text: str) -> bool:
    return "=" in text and not os.path.exists(text)  # noqa: PTH110 - Path raises where a name is too long


def side(name: str, plan: Plan) -> Side:
    """A saved plan as a side."""
    about = {"model": f"{plan.model.ref} ({plan.model.digest})", "cluster": plan.machines.ref}
    about |= {"target": plan.decisions.target} | workload_to_json(plan.workload)
    return Side(name, plan.config, decisions_to_json(plan.decisions), about, plan.prediction)


def changed_by(plan: Plan, text: str) -> Side:
    """A saved plan with other pins, as a side."""
    pins = parse([text])
    again = reload(plan)
    space = {"ranks": again.ask.cluster.ranks, "global_batch": plan.workload.global_batch}
    setting = replace(again.setting, constraints=Constraints.of(pins))
    filled = fill(pins.over(kept(plan.config, pins)), **space, place=text)
    config = setting.settled(filled, plan.workload.global_batch)
    decisions = setting.decisions(config, plan.workload.global_batch)
    prediction = setting.predict(config, plan.workload.global_batch)
    return Side(text, config, decisions_to_json(decisions), side("", plan).about, prediction)


def kept(config: Config, pins: Pins) -> Pins:
    """The values of a configuration that these pins leave."""
    given = pins.to_json()
    gone = {name for pin in given for name in KNOBS[pin].refills.split()} - set(given)
    gone |= {"schedule"} if config.schedule == CUSTOM else set()  # which was made for that very plan
    values = {name: value for name, value in config.to_json().items() if name not in gone}
    return read({name: value for name, value in values.items() if value or KNOBS[name].open is None}, "the plan")


def _unlike(one: dict[str, Any], other: dict[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        if one[name] != other[name]:
            yield name, word(one[name]), word(other[name])


def _paths(path: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    """The innermost keys at which two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            yield from _paths(f"{path}.{key}" if path else key, one.get(key, "-"), other.get(key, "-"))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _paths(f"{path}[{index}]", mine, theirs)
    elif one != other:
        yield path, _brief(one), _brief(other)


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def to_json(found: Diff) -> dict[str, Any]:
    """The difference as docs/plan.md describes it."""

    def rows(of: tuple[tuple[str, str, str], ...]) -> dict[str, list[str]]:
        return {name: [mine, theirs] for name, mine, theirs in of}

    return {
        "a": {
            "name": found.one.name,
            "config": found.one.config.to_json(),
            "predicted": found.one.prediction.to_json(),
        },
        "b": {
            "name": found.other.name,
            "config": found.other.config.to_json(),
            "predicted": found.other.prediction.to_json(),
        },
        "about": rows(found.about),
        "config": rows(found.config),
        "decisions": rows(found.decided),
        "step_time_s": found.other.prediction.step_time_s - found.one.prediction.step_time_s,
        "shares": dict(found.shares),
    }
