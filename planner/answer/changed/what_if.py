"""What would change an answer: the same question with a changed cluster or workload, and the plan kept there.

    arguments -> Changed: a change, and the changed question, read and checked before anything is searched
    Changed, the answer -> WhatIf

A changed question is a question like any other: its plan is the one that asking it alone finds, and is kept as such for
the next run. Beside it stands the plan *kept*: the decisions of the answer, lowered and priced in the changed setting.
So one sees how much a change brings by itself, and how much more by another plan.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.toml import write as write_toml
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import Decisions, verify_decisions
from meshwright.ir.errors import ChangeImpossible, MeshwrightError, within
from meshwright.ir.schedules import CUSTOM
from meshwright.ir.target.workload import traced_in
from meshwright.planner.answer.changed.outcome import cost, outcome, plan_in_short, reason
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.solve import Stop, parts
from meshwright.planner.plan.file import workload_to_json
from meshwright.planner.plan.types import Plan
from meshwright.planner.question import pricing
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.changed.changes import OPTION, Change, read_change
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.phases import Told, untold


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A change, and the question that it makes of another one."""

    change: Change
    ask: Ask
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The plan of the answer in a changed setting: its decisions, their price, and the cluster that they are for, which
    may be a part of what is there; or why it cannot be kept."""

    decisions: Decisions | None = None
    prediction: Prediction | None = None
    cluster: Cluster | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WhatIf:
    """A changed question and its answer, beside the answer to the question itself. As text it is one line.

    - `before` is that answer; None where nothing fits.
    - `plan` is None where nothing fits, or nothing can be had; then `why` says so.
    """

    change: Change
    ask: Ask
    before: Plan | None
    plan: Plan | None
    why: str
    kept: Kept

    @property
    def same(self) -> bool:
        """Whether the plan is the one that is kept."""
        if self.plan is None or self.before is None or self.kept.cluster is None:
            return False
        alike = self.plan.decisions == self.kept.decisions and self.plan.config.batch == self.before.config.batch
        return alike and self.plan.machines.toml == write_toml(self.kept.cluster)

    @property
    def idle(self) -> int:
        """The hosts that the plan kept has no use for."""
        return self.ask.cluster.hosts - self.kept.cluster.hosts if self.kept.cluster else 0

    @property
    def ratio(self) -> float | None:
        """The step of the plan over that of the answer."""
        return self._over(self.plan.prediction if self.plan else None)

    @property
    def kept_ratio(self) -> float | None:
        """The step of the plan kept over that of the answer."""
        return self._over(self.kept.prediction)

    @property
    def beyond(self) -> bool | None:
        """Whether the step lies beyond the interval of the answer's."""
        if self.plan is None or self.before is None:
            return None
        said = self.before.prediction
        return not said.step_time_low_s <= self.plan.prediction.step_time_s <= said.step_time_high_s

    def _over(self, prediction: Prediction | None) -> float | None:
        if prediction is None or self.before is None:
            return None
        return prediction.step_time_s / self.before.prediction.step_time_s

    def __repr__(self) -> str:
        said = self.why if self.plan is None else str(self.plan)
        ratio = "" if self.ratio is None else f", {self.ratio:.3f} of the step before"
        return f"WhatIf({self.change.text}{ratio}: {said})"

    def to_json(self) -> dict[str, Any]:
        """The changed answer as docs/plan.md describes it."""
        cluster = self.ask.cluster
        return {
            "change": self.change.text,
            "cluster": {"ref": self.ask.cluster_reference, "hosts": cluster.hosts, "ranks": cluster.ranks},
            "workload": workload_to_json(self.plan.workload if self.plan else self.ask.workload),
            "plan": plan_in_short(self.plan) if self.plan else None,
            "same": self.same,
            "why": self.why,
            "ratio": self.ratio,
            "beyond": self.beyond,
            "kept": cost(self.kept.prediction) | {"ratio": self.kept_ratio} if self.kept.prediction else None,
            "kept_why": self.kept.why,
        }


def read_changed(args: Namespace, texts: list[str]) -> list[Changed]:
    """The changed questions of a command line; what cannot be asked is refused here."""
    found = []
    for text in texts:
        change = read_change(text)
        made = change.of(args)
        with within(f"{OPTION} {text}"):
            ask, asked = read_asked(made)
        found.append(Changed(change=change, ask=replace(ask, given=getattr(args, "given", None)), asked=asked))
    return found


def what_ifs(
    args: Namespace, changes: list[Changed], before: Plan | None, setting: Setting, stop: Stop, told: Told = untold
) -> Iterator[WhatIf]:
    """The answers to changed questions, one by one, until that is interrupted; `setting` is that of the question."""
    for one in changes:
        if stop.interrupted:
            return
        stop.begin(args.time_limit)
        yield _what_if(args, one, before, setting, stop, told)


def _what_if(args: Namespace, one: Changed, before: Plan | None, setting: Setting, stop: Stop, told: Told) -> WhatIf:
    def of_this(phase: str, search: Any = None) -> None:
        told(f"what if {one.change.text}, {phase}", search)

    ask, own = one.ask.loaded(setting)
    found = outcome(Question.of(args, ask, own, one.asked), stop, of_this, args.time_limit)
    kept = Kept() if before is None else keep(before, ask, own, one.asked)
    return WhatIf(change=one.change, ask=ask, before=before, plan=found.plan, why=found.why, kept=kept)


# The plan kept -------------------------------------------------------------------------------------------------------


def keep(plan: Plan, ask: Ask, setting: Setting, asked: Asked) -> Kept:
    """A plan priced in another setting of its model."""
    try:
        part = _its_part(plan, ask, setting)
        own = replace(setting, modules=asked.modules, constraints=asked.constraints)
        if part != ask.cluster:
            own = replace(own, ranks=part.ranks, price=pricing.price_of(part, ask.profile))
        fold, batch = own.fold(plan.config), own.workload.global_batch
        decisions = _of_batch(plan, batch)
        verify_decisions(decisions, fold)
        decisions = own.allowed(decisions, fold)
        price = own.price(own.lowered(fold, decisions, batch))
        return Kept(decisions=decisions, prediction=price, cluster=part)
    except MeshwrightError as error:
        return Kept(why=reason(error))


def _its_part(plan: Plan, ask: Ask, setting: Setting) -> Cluster:
    """The cluster, or the part of it, that has as many devices as the plan is for. Raises what keeps the plan from
    being one of this setting's model."""
    before, now = traced_in(plan.workload.precision), traced_in(setting.workload.precision)
    if before != now:
        raise _impossible(f"it is for operators of the model in {before}, and these are of {now}")
    whole, *some = parts(ask.cluster)
    if plan.machines.ranks == whole.ranks:
        return whole
    names = [pool.name for pool in plan.machines.cluster().pools]
    for part in some:
        if part.ranks == plan.machines.ranks and names == [pool.name for pool in part.pools]:
            return part
    raise _impossible(f"it is for {plan.machines.ranks:,} devices, and there are {whole.ranks:,}")


def _of_batch(plan: Plan, batch: int) -> Decisions:
    """The decisions of a plan for another global batch: micro-batches are as large, and more or fewer."""
    schedule, planned = plan.decisions.schedule, plan.workload.global_batch
    number, left = divmod(schedule.microbatches * batch, planned)
    if number == schedule.microbatches and not left:
        return plan.decisions
    if left or not number:
        each = planned // schedule.microbatches
        raise _impossible(f"{batch:,} sequences are no whole micro-batches of its {each:,}")
    if schedule.name == CUSTOM:
        raise _impossible(f"its schedule is made for {schedule.microbatches} micro-batches")
    return replace(plan.decisions, schedule=replace(schedule, microbatches=number))


def _impossible(cause: str) -> ChangeImpossible:
    return ChangeImpossible(place="the plan kept", cause=cause, fix="plan anew")
