"""Pipeline schedules made to measure: for the seconds of every stage, transfers, and room for activations.

    Job -> list scheduling under several rules, and given orders -> local search on the best -> Answer, with a bound

    job.py      what is to be ordered, timed by the simulator (`cost_models.schedule`); does it fit
    greedy.py   list scheduling that never gets stuck for memory
    moves.py    local search along the longest path
    floor.py    what no order undercuts, by formula
    exact.py    an integer program that proves how good an order of a small job is

Named schedules are made for stages that take equally long and forwards that take as long as input and weight gradients.
Real stages are uneven: embedding and head, layers that do not divide, different devices. Here the numbers decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.planner.scheduling.floor import floor_s, group_floor_s
from meshwright.planner.scheduling.greedy import RULES, listed
from meshwright.planner.scheduling.job import Job, Lists, Ordered, all_fit, as_job, in_halves, ordered
from meshwright.planner.scheduling.moves import LEAST, Budget, improved, shaken

__all__ = [
    "Answer",
    "Budget",
    "Job",
    "Lists",
    "Ordered",
    "all_fit",
    "as_job",
    "floor_s",
    "group_floor_s",
    "in_halves",
    "ordered",
    "schedule",
]


WORK = 200_000
"""Actions that are timed, unless told otherwise: about 0.3 CPU-s (two cores, 2026-11)."""

LISTING = 4
"""What list scheduling takes for an action, in actions that are timed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The best order that was found, and a lower bound on all orders."""

    best: Ordered
    floor_s: float

    @property
    def proved(self) -> bool:
        """Whether nothing is better."""
        return self.best.step_s <= self.floor_s * (1 + 2 * LEAST)


def schedule(job: Job, starts: Iterable[Lists] = (), budget: Budget | None = None) -> Answer | None:
    """Order the actions of a job. The answer is not worse than any of `starts` that fits; the budget, `WORK` unless
    given, limits the work. None if nothing fits."""
    budget = budget or Budget(WORK)
    least_s = floor_s(job)
    given = [as_job(job, lists) for lists in starts]
    found = [one for lists in given if all_fit(job, lists) and (one := ordered(job, lists))]
    for rule in RULES:
        if any(one.step_s <= least_s * (1 + LEAST) for one in found):
            break
        if not budget.spend(LISTING * job.size) and found:
            break
        lists = listed(job, rule)
        if lists is not None and lists not in {one.lists for one in found} and all_fit(job, lists):
            one = ordered(job, lists)
            found += [one] if one else []
    found.sort(key=lambda one: one.worth)
    if not found:
        return None
    best = found[0]
    for one in found:
        if best.step_s <= least_s * (1 + LEAST):
            break
        best = min(best, improved(job, one, budget, least_s), key=lambda one: one.worth)
    return Answer(shaken(job, best, budget, least_s), least_s)
