"""A comparison as a person reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.planner.answer.compare import Run, inside, rows
from meshwright.planner.answer.measured.learned import Lesson
from meshwright.planner.cli.views.tables import new_console, new_table
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import count, nbytes, percent, seconds

SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "step_time_s": ("step time", seconds),
    "tokens_per_s": ("tokens per second", count),
    "mfu": ("MFU", percent),
    "memory_bytes": ("memory, allocated", nbytes),
}


def show(plan: Plan, measured: Run) -> None:
    """Print it to standard output."""
    console = new_console()
    console.print(f"plan     {plan.config}")
    left = f", the first {measured.skipped} left out" if measured.skipped else ""
    slowest = f"the slowest took {seconds(measured.slowest_s)}"
    console.print(f"run      {measured.steps} step{'s' * (measured.steps > 1)}{left}; {slowest}")
    console.print(f"loss     {measured.first_loss:.6f} to {measured.last_loss:.6f}")
    console.print()
    table = new_table("measured beside predicted", "", "measured", "predicted", "measured / predicted")
    for row in rows(plan, measured):
        name, text = SHOWN[row.name]
        found = "not logged" if row.measured is None else text(row.measured)
        table.add_row(name, found, text(row.predicted), "" if row.ratio is None else f"{row.ratio:.3f}")
    console.print(table)
    low, high = seconds(plan.prediction.step_time_low_s), seconds(plan.prediction.step_time_high_s)
    console.print()
    console.print(
        f"the step is {'inside' if inside(plan, measured) else 'outside'} of what was predicted: {low} to {high}"
    )


def show_lesson(lesson: Lesson) -> None:
    """Print what a profile has learned."""
    console = new_console()
    console.print(f"learned  {lesson.profile}: {lesson.runs} run{'s' * (lesson.runs > 1)} so far")
    told = f"by it this step took {seconds(lesson.before_s)}, and takes {seconds(lesson.after_s)} now"
    console.print(f"         {told}; measured {seconds(lesson.measured_s)}")
