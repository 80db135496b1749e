"""A comparison as a person reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.planner.answer.compare import Run, inside, rows
from meshwright.planner.answer.measured.learned import Lesson
from meshwright.planner.answer.traced.beside import STEP, TOKENS
from meshwright.planner.answer.traced.beside import rows as traced_rows
from meshwright.planner.answer.traced.step import WAITING, Measured
from meshwright.planner.answer.traced.tracks import COMMUNICATION, COMPUTE
from meshwright.planner.cli.views.tables import Page, Table, columns
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.plan.words import short

SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "step_time_s": ("step time", seconds),
    "tokens_per_s": ("tokens per second", count),
    "mfu": ("MFU", percent),
    "memory_bytes": ("memory, allocated", nbytes),
}


def show(plan: Plan, measured: Run) -> None:
    """Print it to standard output."""
    page = _begun(plan, measured.steps, measured.skipped, measured.slowest_s)
    page.say(f"{measured.first_loss:.6f} to {measured.last_loss:.6f}", label="loss     ")
    page.blank()
    table = Table("measured beside predicted", columns("", "measured", "predicted", "measured / predicted"))
    for row in rows(plan, measured):
        name, said = SHOWN[row.name]
        found = "not logged" if row.measured is None else said(row.measured)
        table.add(name, found, said(row.predicted), "" if row.ratio is None else f"{row.ratio:.3f}")
    page.table(table)
    page.blank()
    _interval(page, plan, held=inside(plan, measured.step_time_s))
    page.print()


TRACED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    STEP: ("step time", seconds),
    TOKENS: ("tokens per second", count),
    COMPUTE: ("compute", seconds),
    COMMUNICATION: ("communication that nothing hides", seconds),
    WAITING: ("waiting", seconds),
}


def show_traced(plan: Plan, measured: Measured) -> None:
    """Print a traced run beside its plan to standard output."""
    page = _begun(plan, measured.steps, measured.skipped, measured.slowest_s)
    traces = f"{len(measured.ranks)} of {plan.machines.ranks:,} ranks, by {measured.by}; parts are of step"
    page.say(f"{traces} {measured.number}", label="traces   ")
    page.blank()
    table = Table("measured beside predicted", columns("", "measured", "predicted", "measured / predicted"))
    for row in traced_rows(plan, measured):
        name, said = TRACED[row.name]
        found = "" if row.measured is None else said(row.measured)
        table.add(name, found, said(row.predicted), "" if row.ratio is None else f"{row.ratio:.3f}")
    page.table(table)
    page.blank()
    _interval(page, plan, held=inside(plan, measured.step_time_s))
    page.print()


def _begun(plan: Plan, steps: int, skipped: int, slowest_s: float) -> Page:
    """The page with what every comparison begins with: the plan, and how much of the run is compared."""
    page = Page()
    page.say(short(plan.config), label="plan     ")
    left = f", the first {skipped} left out" if skipped else ""
    page.say(f"{steps} step{'s' * (steps > 1)}{left}; the slowest took {seconds(slowest_s)}", label="run      ")
    return page


def _interval(page: Page, plan: Plan, *, held: bool) -> None:
    """Say whether the plan's interval held the step."""
    low, high = seconds(plan.prediction.step_time_low_s), seconds(plan.prediction.step_time_high_s)
    page.say(f"the step is {'inside' if held else 'outside'} of what was predicted: {low} to {high}")


def show_lesson(lesson: Lesson) -> None:
    """Print what a profile has learned."""
    page = Page()
    page.say(f"{lesson.profile}: {lesson.runs} run{'s' * (lesson.runs > 1)} so far", label="learned  ")
    told = f"by it this step took {seconds(lesson.before_s)}, and takes {seconds(lesson.after_s)} now"
    page.say(f"{told}; measured {seconds(lesson.measured_s)}", label="         ")
    page.print()
