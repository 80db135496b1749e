"""The outcome of one question of several: its plan, or in a sentence why there is none, so that the others go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.relax import nearest
from meshwright.planner.answer.remedies import refused
from meshwright.planner.answer.report import shortest
from meshwright.planner.answer.solve import Solved, Stop
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import nbytes
from meshwright.planner.search.phases import Told


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, or why there is none."""

    plan: Plan | None
    why: str = ""


def outcome(question: Question, stop: Stop, told: Told, time_limit: float | None) -> Outcome:
    """The answer to a question; that nothing fits is kept for the next run, too."""
    if (why := question.known_lack()) is not None:
        return Outcome(None, why)
    try:
        found = question.answer(stop, told, limited=time_limit is not None)
        if isinstance(found, Plan):
            return Outcome(found)
        if (error := refused(found, time_limit)) is not None:
            return Outcome(None, reason(error))
    except MeshwrightError as error:
        return Outcome(None, reason(error))
    why = _lack(found)
    question.keep_lack(why)
    return Outcome(None, why)


def reason(error: MeshwrightError) -> str:
    """A refusal in a sentence."""
    return f"{error.cause} ({error.code})"


def _lack(solved: Solved) -> str:
    """By how much nothing fits. Must: a complete search."""
    found = nearest(solved)
    if found is None:
        return "nothing fits"
    stage, short = shortest(found.prediction)
    return f"nothing fits: what lacks least is short {nbytes(short)} on stage {stage} ({found.config})"


def plan_in_short(plan: Plan) -> dict[str, Any]:
    """A plan by its configuration, and what it costs."""
    return {"config": plan.config.to_json(), **cost(plan.prediction), "gap": plan.bounds.gap}


def cost(predicted: Prediction) -> dict[str, Any]:
    """What a plan costs."""
    return {
        "step_time_s": predicted.step_time_s,
        "step_time_low_s": predicted.step_time_low_s,
        "step_time_high_s": predicted.step_time_high_s,
        "tokens_per_s_per_gpu": predicted.tokens_per_s_per_gpu,
        "peak_memory_bytes": predicted.peak_memory_bytes,
        "fits": predicted.fits,
    }
