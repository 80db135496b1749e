"""A file of another framework's settings beside a plan for the same model, cluster and workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.target.capabilities import ANY
from meshwright.planner.answer.exchanged.said import Exchanged, exchanged, lost_to_json
from meshwright.planner.answer.report import rival
from meshwright.planner.exchange.taken import Taken, room_of
from meshwright.planner.plan.types import Plan, Rival
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config, fill
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.search import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A file of settings beside a plan: its price, and what its target can say of the plan.

    - `said` is None where the target cannot say the plan, not even nearly; then `why_not` has the reason.
    """

    taken: Taken
    settings: Rival
    inside: bool
    """Whether the price of the settings is within the plan's interval."""
    config: Config
    prediction: Prediction
    said: Exchanged | None
    why_not: str


def found_of(taken: Taken, ask: Ask, setting: Setting) -> Found:
    """The configuration of a file of settings, with its price. Raises what the model refuses of it."""
    own = taken.with_software(replace(ask, unsaid=frozenset()))
    room = room_of(ask.cluster, setting)
    alone = replace(
        setting, workload=own.workload, target=ANY, modules=(), constraints=Constraints.of(taken.pins(room)), bodies={}
    )
    batch = own.workload.global_batch
    config = alone.settled(fill(taken.pins(room), ranks=room.ranks, global_batch=batch), batch)
    return Found(config, alone.predict(config, batch))


def beside(taken: Taken, found: Found, plan: Plan, ask: Ask, setting: Setting) -> Beside:
    """A file of settings that was priced beside a plan for the same model, cluster and workload."""
    made, why = None, ""
    try:
        made = exchanged(taken.settings.target, plan, ask, setting, plan.prediction)
    except MeshwrightError as error:
        why = f"{error.cause} ({error.code})"
    low, high = plan.prediction.step_time_low_s, plan.prediction.step_time_high_s
    return Beside(
        taken=taken,
        settings=rival(taken.settings.given.place, found, Found(plan.config, plan.prediction)),
        inside=low <= found.step_s <= high,
        config=found.config,
        prediction=found.prediction,
        said=made,
        why_not=why,
    )


def beside_to_json(found: Beside) -> dict[str, Any]:
    """The comparison as docs/exchange.md describes it."""
    settings, said_ = found.settings, found.said
    return {
        "file": settings.name,
        "format": found.taken.settings.target.name,
        "config": found.config.to_json(),
        "predicted": found.prediction.to_json(),
        "slower": settings.slower,
        "inside": found.inside,
        "differences": dict(settings.differences),
        "notes": list(found.taken.settings.notes()),
        "as_said": None
        if said_ is None
        else {
            "config": said_.config.to_json(),
            "step_time_s": said_.prediction.step_time_s,
            "fits": said_.prediction.fits,
            "lost": lost_to_json(said_.lost),
        },
        "why_not": found.why_not,
    }
