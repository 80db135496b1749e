"""Settings of other frameworks in Python: a plan as a framework can say it, with its price."""

from __future__ import annotations

from pathlib import Path

from meshwright.planner.answer.exchanged.said import Exchanged, exchanged
from meshwright.planner.exchange.files import target_named
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.plan.types import Plan


def settings(plan: Plan | str | Path, framework: str, *, model: str | None = None) -> Exchanged:
    """A plan in the settings of another framework, as `plan emit --to` writes it.

    Its `text` is the file's, `lost` is what the framework cannot say, and `prediction` the price of what it can say;
    `model` says where the model is, if it has moved.
    """
    again = reload(plan if isinstance(plan, Plan) else load_plan(plan), model)
    return exchanged(
        target_named(framework, f"settings {framework}"), again.plan, again.ask, again.setting, again.prediction
    )
