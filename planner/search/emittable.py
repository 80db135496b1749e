"""Whether code is written for a plan: the guard of what a search answers.

    Setting, configuration, decisions -> Subject -> emitted in memory -> nothing, or the refusal

A search asks before anything becomes its answer (`Search.written`), so what is answered can be emitted, and what is
refused leaves the search as it was: the next best is looked for, with the same proof. What a refusal holds for besides
(`planner.search.masks`) is left out from then on. Only what would be the answer is asked about; the model is watched
once for all of it (`Folds.calls_tried`), and its code is printed and thrown away.

Where no plan at all could be emitted, for the model has no file or the workload a stack or precision that no code is
written for, there is nothing to choose: the search goes on as if there were no guard, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.backends.door import Backend, backend
from meshwright.backends.subject import Subject
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.apart import apart
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.calls import Calls
from meshwright.ir.program.program import Program
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import LEAST_BATCH, Setting
from meshwright.planner.search.masks import Masks

NOWHERE = Path()
"""The folder of code that is not kept."""


def subject_of(
    setting: Setting, calls: Calls, config: Config, decisions: Decisions, program: Program | None = None
) -> Subject:
    """A plan as the emitter takes it; `calls` are those of the setting's model."""
    fold = setting.fold(config)
    fold, spelled = (fold, decisions) if setting.target.names_numbers else apart(fold, decisions)
    if program is None or spelled is not decisions:
        program = setting.lowered(fold, spelled, setting.workload.global_batch)
    return Subject(
        fold=fold,
        decisions=spelled,
        program=program,
        workload=setting.workload,
        calls=calls,
        config=str(config),
    )


@dataclass(frozen=True, slots=True)
class Passed:
    """A plan that would have been the answer, and why no code is written for it."""

    config: Config
    prediction: Prediction
    refusal: MeshwrightError


@dataclass(slots=True)
class Emission:
    """Knowledge about the code of one search's plans."""

    backend: Backend
    setting: Setting
    model: str
    passed: list[Passed] = field(default_factory=list)
    outright: tuple[MeshwrightError, ...] | None = None
    masks: Masks = field(default_factory=Masks)
    known: dict[Config, tuple[Decisions, MeshwrightError | None]] = field(default_factory=dict)
    """What was answered of a configuration and the plan that it meant last."""

    @staticmethod
    def of(setting: Setting, model: str) -> Emission | None:
        """The guard of a search; None where its target has no runtime."""
        found = backend(setting.target.target)
        return Emission(found, setting, model) if found is not None else None

    def refused(self) -> tuple[MeshwrightError, ...]:
        """Refusals that hold for all plans, found once."""
        if self.outright is None:
            self.outright = tuple(self._outright())
        return self.outright

    def _outright(self) -> Iterator[MeshwrightError]:
        setting = self.setting
        try:
            self.backend.check_software(setting.workload, setting.target.target, setting.workload.stack.style)
            self.backend.check_model(setting.folds.calls(self.model, LEAST_BATCH))
        except MeshwrightError as refusal:
            yield refusal
        yield from setting.target.unwritten(setting.workload, setting.folds.first(LEAST_BATCH).fold)

    def refusal(self, config: Config, decisions: Decisions) -> MeshwrightError | None:
        """The refusal of a plan's code beyond those that hold for all; None if it is emitted."""
        if self.refused():
            return None
        before = self.known.get(config)
        if before is None or before[0] != decisions:
            before = self.known[config] = decisions, self._refusal(config, decisions)
        return before[1]

    def _refusal(self, config: Config, decisions: Decisions) -> MeshwrightError | None:
        try:
            calls = self.setting.folds.calls_tried(self.model, config.batch)
            subject = subject_of(self.setting, calls, config, decisions)
            self.backend.emit(subject, NOWHERE)
        except MeshwrightError as refusal:
            return refusal
        return None

    def writes(self, config: Config, decisions: Decisions, prediction: Prediction) -> bool:
        """Whether a plan is emitted; one that is not is noted as passed over."""
        refusal = self.refusal(config, decisions)
        if refusal is not None:
            self.passed.append(Passed(config, prediction, refusal))
        return refusal is None

    def writes_config(self, config: Config, prediction: Prediction) -> bool:
        """Whether a configuration, as its names mean it, is emitted; if it is not, those that have the same of what
        that depends on are not either."""
        refusal = self.masks.of(self.setting.ran(config)) or self.refusal(
            config, self.setting.decisions(config, self.setting.workload.global_batch)
        )
        if refusal is not None:
            self.passed.append(Passed(config, prediction, refusal))
            self.masks.note(self.setting.ran(config), refusal)
        return refusal is None

    def notes(self) -> Iterator[str]:
        """Notes on an answer where no plan can be emitted."""
        for one in self.refused():
            yield f"plan emit refuses this plan ({one.code}), {one.place}: {one.cause}; {one.fix}"


def by_code(passed: Iterable[Passed]) -> dict[str, list[Passed]]:
    """The plans that were passed over, by the codes of their refusals, in order."""
    found: dict[str, list[Passed]] = {}
    for one in passed:
        found.setdefault(one.refusal.code, []).append(one)
    return found
