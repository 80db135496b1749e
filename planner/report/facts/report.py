"""A report as data: everything that a page about a plan shows, from the plan as it is priced now."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.step import Step
from meshwright.cost_models.traffic import loads
from meshwright.planner.plan.reload import Reloaded, program_of
from meshwright.planner.plan.types import Rival
from meshwright.planner.report.facts.memory import GroupMemory, memory_of
from meshwright.planner.report.facts.placements import BodyUse, placements_of
from meshwright.planner.report.facts.priced import Priced, priced_of
from meshwright.planner.report.facts.summary import Summary, summary_of
from meshwright.planner.report.facts.timeline import Timeline, timeline_of
from meshwright.planner.report.facts.traffic import Traffic, traffic_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A plan, as a page shows it."""

    summary: Summary
    timeline: Timeline
    memory: tuple[GroupMemory, ...]
    traffic: Traffic
    placements: tuple[BodyUse, ...]
    priced: tuple[Priced, ...]
    baselines: tuple[Rival, ...]
    alternatives: tuple[Rival, ...]


def step_of(again: Reloaded) -> Step:
    """The priced step of a reloaded plan."""
    evaluate = Evaluator(again.ask.cluster, again.ask.profile)
    return evaluate.step(program_of(again.plan, again.setting))


def timeline(again: Reloaded, step: Step | None = None) -> Timeline:
    """The timeline of a reloaded plan."""
    schedule = again.plan.decisions.schedule.name
    return timeline_of(step or step_of(again), again.prediction.step_time_s, schedule)


def report_of(again: Reloaded) -> Report:
    """The report on a reloaded plan."""
    plan, prediction, step = again.plan, again.prediction, step_of(again)
    groups = plan.decisions.groups
    received = loads(step.program, step.prices.cluster, step.ledgers, step.workload)
    return Report(
        summary=summary_of(plan, prediction, again.changed),
        timeline=timeline(again, step),
        memory=memory_of(prediction, [groups.index(stage.ranks) for stage in plan.decisions.stages]),
        traffic=traffic_of(received, step.program, step.prices.cluster),
        placements=placements_of(plan.decisions, again.setting.fold(plan.config)),
        priced=priced_of(plan, prediction),
        baselines=plan.baselines,
        alternatives=plan.alternatives,
    )
