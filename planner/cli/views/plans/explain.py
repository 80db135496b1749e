"""An explanation as a person reads it."""

from __future__ import annotations

from meshwright.planner.answer.explain import Verdict
from meshwright.planner.cli.views.plans.plan import difference_table, show
from meshwright.planner.cli.views.tables import new_console
from meshwright.planner.plan.reload import Reloaded
from meshwright.planner.plan.units import nbytes, seconds
from meshwright.planner.plan.words import in_words


def show_explained(again: Reloaded, asked: str, verdict: Verdict | None) -> None:
    """Print it to standard output."""
    console = new_console()
    if verdict is None:
        show(again.plan)
        if again.changed:
            now, then = seconds(again.prediction.step_time_s), seconds(again.plan.prediction.step_time_s)
            console.print(f"priced again: a step takes {now}; it was planned to take {then}", style="bold")
        return
    console.print(f"plan     {again.plan.config}  {seconds(again.prediction.step_time_s)}")
    console.print(f"why not  {asked}?  {verdict.word}: {verdict.why}", style="bold")
    if verdict.rival is None or verdict.rival.config is None:
        return
    other = verdict.rival
    peak = nbytes(other.peak_memory_bytes)
    console.print(f"best     {other.config}  {seconds(other.step_time_s)}, peak memory {peak}")
    console.print()
    before = set(in_words(again.plan.config))
    for line in in_words(verdict.rival.config):
        if line not in before:
            console.print(f"there: {line}")
    console.print()
    console.print(difference_table("what it takes longer or less for", other.differences))
