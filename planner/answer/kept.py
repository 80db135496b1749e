"""Questions and their answers: those of earlier runs, else by a search.

    Question -> Plan: as `plan.json` holds it, from the store
             -> Solved -> Plan: kept, for the next run

A question is the same where all that an answer follows from is: the model by what the store knows of it, the cluster by
its file, the workload, what was asked for, the numbers that prices are made of, and this package itself. What a time
limit, or somebody, cut short is not kept.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from meshwright.cost_models.hardware.toml import write
from meshwright.cost_models.profile import digest as profile_digest
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.files.store import key_of
from meshwright.ir.frontends.remembered import Remembered
from meshwright.planner.answer.report import plan_of
from meshwright.planner.answer.solve import Solved, Stop, solve
from meshwright.planner.plan.file import plan_text, read_plan
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.phases import Told, untold


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

    @staticmethod
    def of(args: Namespace, ask: Ask, setting: Setting, asked: Asked) -> Question:
        """The question of a command line, once its model is loaded."""
        return Question(ask=ask, setting=setting, asked=asked, objective=args.objective, top=args.top)

    def answer(self, stop: Stop, told: Told = untold, *, limited: bool = False) -> Plan | Solved:
        """The answer, or the search that found none. What a limit or an interrupt may have cut short is not kept."""
        if (plan := self.known()) is not None:
            return plan
        with stop.watching():
            solved = solve(self.ask, self.setting, self.asked, stop, told, self.objective)
        if solved.best is None:
            return solved
        plan = plan_of(solved, self.top)
        if not limited and not stop.interrupted:
            self.keep(plan)
        return plan

    def known(self) -> Plan | None:
        """The answer of an earlier run."""
        text = self.ask.store.get(self.key) if self.ask.store is not None and self.key else None
        if not isinstance(text, str):
            return None
        try:
            return read_plan(text, "what was kept")
        except MeshwrightError:  # of another form
            return None

    def known_lack(self) -> str | None:
        """Why an earlier run found that nothing fits; None where none did."""
        said = self.ask.store.get(self.lack_key) if self.ask.store is not None and self.key else None
        return said if isinstance(said, str) else None

    def keep_lack(self, why: str) -> None:
        """Keep that nothing fits, as a whole search found."""
        if self.ask.store is not None and self.key:
            self.ask.store.put(self.lack_key, why)

    @property
    def lack_key(self) -> str:
        return key_of("lack", self.key)

    def keep(self, plan: Plan) -> None:
        """Keep an answer that was found without a limit."""
        if self.ask.store is not None and self.key:
            self.ask.store.put(self.key, plan_text(plan))
