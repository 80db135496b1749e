"""Explanations in Python: a plan in words, and why it is not another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.ir.errors import PinValue
from meshwright.ir.sharding.shares import shares_of
from meshwright.planner.answer import explain as answer
from meshwright.planner.answer.explain import Verdict, pins_text
from meshwright.planner.api.asking import Wish, words
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import Reloaded, reload
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import seconds
from meshwright.planner.plan.words import in_words
from meshwright.planner.question.module_pins import ModulePin, apart
from meshwright.planner.question.pins import Pins, parse


@dataclass(frozen=True, repr=False)
class Explanation:
    """A plan that was priced again, and the verdict on another one, if that was asked for. Its text is for people."""

    again: Reloaded
    pins: Pins
    modules: tuple[ModulePin, ...]
    verdict: Verdict | None

    @property
    def plan(self) -> Plan:
        return self.again.plan

    def to_json(self) -> dict[str, Any]:
        """The explanation as `plan explain --json` prints it."""
        return answer.to_json(self.again, self.pins, self.verdict, self.modules)

    def __str__(self) -> str:
        lines = [str(self.plan), *in_words(self.plan.config, shares_of(self.plan.decisions))]
        lines += [f"{one.kind}: {one.what}" for one in self.plan.binding]
        lines += [f"changed: {one}" for one in self.again.changed]
        if self.verdict is not None:
            lines.append(f"why not {pins_text(self.pins, self.modules)}? {self.verdict.word}: {self.verdict.why}")
            if self.verdict.rival is not None and self.verdict.rival.config is not None:
                lines.append(f"best with it: {self.verdict.rival.config}, {seconds(self.verdict.rival.step_time_s)}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(
    plan: Plan | str | Path, *, why_not: Wish = None, model: str | None = None, cluster: str | None = None
) -> Explanation:
    """Explain a plan, as `plan explain` does: what it is, and why it does not have other pins, if some are given.

    `model` says where the model is, if it has moved; `cluster` names another one of as many devices.
    """
    plain, modules = apart({"fix": words(why_not)})
    pins = parse(plain["fix"])
    if why_not is not None and not pins.to_json() and not modules:
        raise PinValue(place="why_not", cause="it names no pin", fix="give {'tp': 4}, for instance")
    again = reload(plan if isinstance(plan, Plan) else load_plan(plan), model, cluster)
    verdict = answer.why_not(again, pins, modules=modules) if why_not is not None else None
    return Explanation(again, pins, modules, verdict)
