"""A plan in the settings of another framework: what is written, what is lost, and what it costs then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from meshwright import __version__
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.json import decisions_to_json
from meshwright.ir.errors import MeshwrightError, NotExpressible, NotInSettings
from meshwright.ir.target.capabilities import ANY
from meshwright.planner.exchange.files import text_of
from meshwright.planner.exchange.run import config_of, run_of, worded, workload_of
from meshwright.planner.exchange.taken import room_of
from meshwright.planner.exchange.target import REASONS, Lost, Target, projected, said
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import seconds
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting

BEYOND = "beyond names"
COMMENT = 110
"""Characters of a line of comment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A plan in the settings of another framework: its options, what is lost, and what it costs then.

    - `prediction` is of what the target can say; `planned` is the plan's own.
    """

    target: Target
    config: Config
    options: Mapping[str, Any]
    elsewhere: Mapping[str, Any]
    """What the target's scripts say, and not the file."""
    lost: tuple[Lost, ...]
    planned: Prediction
    prediction: Prediction
    comments: tuple[str, ...] = ()
    """What stands above the settings, where their syntax has comments."""

    @property
    def text(self) -> str:
        """The text of the file."""
        return text_of(self.target, self.options, self.comments)


def exchanged(target: Target, plan: Plan, ask: Ask, setting: Setting, planned: Prediction) -> Exchanged:
    """A plan in the settings of a target."""
    room = room_of(ask.cluster, setting)
    run = run_of(plan.config, plan.workload, room)
    beyond = _beyond(plan, setting)
    try:
        projection = projected(target, run, room)
        config = config_of(projection.run, room)
        workload = workload_of(projection.run, plan.workload)
        prediction = priced(config, replace(setting, workload=workload), same=workload.stack == plan.workload.stack)
    except MeshwrightError as error:
        raise NotInSettings(
            place=f"--to {target.name}, {error.place}", cause=f"{error.cause} ({error.code})", fix=error.fix
        ) from error
    found = Exchanged(
        target=target,
        config=config,
        options=said(target, projection.run, room),
        elsewhere={name: getattr(projection.run, name) for name in target.elsewhere},
        lost=(*beyond, *projection.lost),
        planned=planned,
        prediction=prediction,
    )
    return replace(found, comments=_comments(found, plan))


def priced(config: Config, setting: Setting, *, same: bool) -> Prediction:
    """The price of a configuration; `same`: as the setting's target runs it, if that can."""
    alone = replace(setting, modules=(), constraints=Constraints(), bodies={})
    batch = setting.workload.global_batch
    if same:
        try:
            return alone.predict(config, batch)
        except NotExpressible:
            pass
    return replace(alone, target=ANY).predict(config, batch)


def _beyond(plan: Plan, setting: Setting) -> tuple[Lost, ...]:
    """What a plan decides that its names do not say."""
    own = decisions_to_json(plan.decisions)
    try:
        free = replace(setting, constraints=Constraints(), modules=())
        named = decisions_to_json(free.decisions(plan.config, plan.workload.global_batch))
    except MeshwrightError:
        named = {}
    unlike = [name for name in own if own[name] != named.get(name)]
    if not unlike:
        return ()
    return (
        Lost(
            name="decisions",
            was=", ".join(unlike),
            becomes="as names say",
            reason=BEYOND,
            why="of what was decided beyond names its settings say nothing",
        ),
    )


def lost_to_json(lost: tuple[Lost, ...]) -> list[dict[str, str]]:
    """What is lost, as docs/exchange.md describes it."""
    return [
        {"name": one.name, "was": one.was, "becomes": one.becomes, "reason": one.reason, "why": one.why} for one in lost
    ]


def told(one: Lost) -> str:
    """What is lost, in words."""
    return f"{one.name}: {one.was} becomes {one.becomes}; {REASONS[one.reason]}: {one.why}"


def _comments(found: Exchanged, plan: Plan) -> tuple[str, ...]:
    """What stands above the settings: from which plan they are, what they cost, and what they do not say."""
    planned, written = seconds(found.planned.step_time_s), seconds(found.prediction.step_time_s)
    lines = [
        f"Settings for {found.target.called}, written by Meshwright {__version__} from a plan of {plan.model.ref}",
        f"(digest {plan.model.digest}) on {plan.machines.ref}: {plan.config}",
        f"{planned} a step as planned, {written} as {found.target.called} can say it",
    ]
    lines += [f"not said: {told(one)}" for one in found.lost]
    lines += [f"to be said in your script: {name} = {worded(value)}" for name, value in found.elsewhere.items()]
    return tuple(row for line in (*lines, found.target.how) for row in wrap(line, COMMENT))


def exchanged_to_json(found: Exchanged, written: list[str]) -> dict[str, Any]:
    """The export as docs/exchange.md describes it."""
    return {
        "written": written,
        "target": found.target.name,
        "config": found.config.to_json(),
        "options": dict(found.options),
        "elsewhere": {name: worded(value) for name, value in found.elsewhere.items()},
        "lost": lost_to_json(found.lost),
        "planned_step_time_s": found.planned.step_time_s,
        "step_time_s": found.prediction.step_time_s,
        "fits": found.prediction.fits,
    }
