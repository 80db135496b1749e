"""A saved plan that was taken up again, as the emitter takes it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.backends.torch_.emit import Subject
from meshwright.planner.plan.reload import Reloaded, program_of
from meshwright.planner.search import emittable


def subject_of(again: Reloaded) -> Subject:
    """A plan that was taken up again, as the emitter takes it."""
    plan = again.plan
    subject = emittable.subject_of(
        again.setting, again.ask.model, plan.config, plan.decisions, program_of(plan, again.setting)
    )
    used = again.prediction.step_time_s * again.prediction.mfu * plan.machines.ranks
    subject = replace(subject, workload=plan.workload)
    return replace(subject, peak_flops=subject.step_flops / used if used else 0.0)
