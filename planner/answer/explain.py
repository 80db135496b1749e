"""Explanations: a saved plan in words, and why it is not another one.

    plan explain out/plan.json                      what it is, what it costs, what it was held against
    plan explain out/plan.json --why-not tp=4,pp=2  the best plan that has these, and what that would cost

"Why not" is a question to the search: these pins take the place of what was asked of their names, and the best plan
then is held against the saved one, share by share. Where there is none, the answer is what the model or the target
refuse, or by how much the nearest one does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from meshwright.ir.errors import MeshwrightError
from meshwright.planner.answer.remedies import reasons
from meshwright.planner.answer.report import rival, shortest
from meshwright.planner.answer.solve import Solved, Stop, solve
from meshwright.planner.plan.file import FILE, rival_to_json
from meshwright.planner.plan.reload import Reloaded
from meshwright.planner.plan.types import Rival
from meshwright.planner.plan.units import nbytes, percent, seconds
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Pins, fill, word
from meshwright.planner.search.phases import Told, untold
from meshwright.planner.search.search import Found

SAME = 1e-9
"""Relative difference of step times below which plans are as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The reason why a plan does not have these pins: a word, a sentence, and the best or the nearest plan that has
    them, if any."""

    word: str
    """`slower`, `as fast`, `faster`, `does not fit`, `cannot be` or `unknown`."""
    why: str
    rival: Rival | None


def why_not(
    again: Reloaded,
    pins: Pins,
    stop: Stop | None = None,
    told: Told = untold,
    modules: tuple[ModulePin, ...] = (),
) -> Verdict:
    """Search the plans that have these pins, and compare the best with the plan."""
    asked = again.asked.pinned(pins).with_modules(modules)
    solved = solve(again.ask, again.setting, asked, stop, told)
    if solved.best is not None:
        return _slower(again, solved.best)
    if not solved.complete:
        return Verdict(word="unknown", why="the search was interrupted before anything that fits was found", rival=None)
    if solved.search.emission and solved.search.emission.passed:
        return Verdict(word="cannot be", why=reasons(solved.search.emission.passed), rival=None)
    nearest = closest(solved)
    refused = refusal(solved, pins)
    if refused and nearest is None:
        return Verdict(word="cannot be", why=refused, rival=None)
    if nearest is None:
        return Verdict(word="cannot be", why="no plan can have these together, beside what was asked for", rival=None)
    stage, short = shortest(nearest.prediction)
    return Verdict(
        word="does not fit",
        why=f"of all plans with it, the one that lacks least is short {nbytes(short)} on stage {stage}",
        rival=rival(pins_text(pins, modules), nearest, again.found),
    )


def _slower(again: Reloaded, best: Found) -> Verdict:
    beside = rival("", best, again.found)
    more_s = best.step_s - again.found.step_s
    if abs(more_s) <= SAME * best.step_s:
        return Verdict(word="as fast", why="it takes as long", rival=beside)
    share = percent(abs(more_s) / again.found.step_s)
    how = "longer" if more_s > 0 else "less"
    return Verdict(
        word="slower" if more_s > 0 else "faster",
        why=f"the best plan with it takes {seconds(abs(more_s))} ({share}) {how}: {beside.lost}",
        rival=beside,
    )


def closest(solved: Solved) -> Found | None:
    """The configuration that lacks least memory, of all that were priced."""
    found: Iterable[Found] = solved.search.found.values()
    return min(found, key=lambda one: (shortest(one.prediction)[1], one.step_s, str(one.config)), default=None)


def refusal(solved: Solved, pins: Pins) -> str:
    """The objection of model, batch or target to these pins with the rest filled in; empty if there is none."""
    space = solved.search.space
    try:
        filled = fill(pins, ranks=space.ranks, global_batch=space.global_batch)
        config = solved.setting.settled(filled, space.global_batch)
        solved.setting.decisions(config, space.global_batch)
    except MeshwrightError as error:
        return f"{error.cause} ({error.code}); {error.fix}"
    return ""


def pins_text(pins: Pins, modules: Iterable[ModulePin] = ()) -> str:
    """Pins as --fix takes them."""
    named = (f"{name}={word(value)}" for name, value in pins.to_json().items())
    return ",".join((*named, *(pin.text for pin in modules)))


def to_json(again: Reloaded, pins: Pins, verdict: Verdict | None, modules: Iterable[ModulePin] = ()) -> dict[str, Any]:
    """The explanation as docs/plan.md describes it."""
    return {
        "plan": {"file": FILE, "config": again.plan.config.to_json(), "step_time_s": again.prediction.step_time_s},
        "changed": list(again.changed),
        "planned_step_time_s": again.plan.prediction.step_time_s,
        "shares": dict(again.prediction.shares),
        "binding_constraints": [{"kind": one.kind, "what": one.what} for one in again.plan.binding],
        "why_not": {
            "pins": pins.to_json(),
            "modules": [pin.text for pin in modules],
            "verdict": verdict.word,
            "why": verdict.why,
            "rival": rival_to_json(verdict.rival) if verdict.rival else None,
        }
        if verdict
        else None,
    }
