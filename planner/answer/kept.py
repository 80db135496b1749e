"""Answers of earlier runs to the same question.

    Question -> Plan: as `plan.json` holds it, from the store

A question is the same where all that an answer follows from is: the model by what the store knows of it, the cluster by
its file, the workload, what was asked for, the numbers that prices are made of, and this package itself. What a time
limit, or somebody, cut short is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost_models.hardware.toml import write
from meshwright.cost_models.profile import digest as profile_digest
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.files.store import key_of
from meshwright.ir.frontends.remembered import Remembered
from meshwright.planner.plan.file import plan_text, read_plan
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pricing import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that an answer follows from."""

    ask: Ask
    """As it is once the model is loaded."""
    setting: Setting
    asked: Asked
    objective: str
    top: int

    @property
    def key(self) -> str:
        """A digest of the question; empty where the model is loaded every time."""
        source, ask = self.setting.folds.source, self.ask
        model = source.digest if isinstance(source, Remembered) else ""
        if not model:
            return ""
        machines = ask.cluster_reference, write(ask.cluster)
        prices = ask.profile.name, profile_digest(ask.profile.measured)
        asked = self.asked, ask.modules, ask.notes, self.objective, self.top, ask.seed
        return key_of("answer", model, ask.model, machines, ask.workload, ask.target.target, prices, asked)

    def known(self) -> Plan | None:
        """The answer of an earlier run."""
        store, key = self.ask.store, self.key
        text = store.get(key) if store and key else None
        if not isinstance(text, str):
            return None
        try:
            return read_plan(text, "what was kept")
        except MeshwrightError:  # of another form
            return None

    def keep(self, plan: Plan) -> None:
        """Keep an answer that was found without a limit."""
        store, key = self.ask.store, self.key
        if store and key:
            store.put(key, plan_text(plan))
