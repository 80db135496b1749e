"""An explanation as a person reads it."""

from __future__ import annotations

from meshwright.planner.answer.explain import Verdict
from meshwright.planner.cli.views.plans.parts import difference_table
from meshwright.planner.cli.views.plans.plan import SHOWN
from meshwright.planner.cli.views.tables import Page
from meshwright.planner.plan.reload import Reloaded
from meshwright.planner.plan.units import nbytes, seconds
from meshwright.planner.plan.words import in_words, short, told


def show_explained(again: Reloaded, asked: str, verdict: Verdict | None, detail: str = "page") -> None:
    """Print it to standard output; the plan itself in as much detail as is asked for."""
    if verdict is None:
        SHOWN[detail](again.plan, None)
        if again.changed:
            page = Page()
            now, then = seconds(again.prediction.step_time_s), seconds(again.plan.prediction.step_time_s)
            page.say(f"priced again: a step takes {now}; it was planned to take {then}", "bold")
            page.print()
        return
    page = Page()
    page.say(f"{short(again.plan.config)}  {seconds(again.prediction.step_time_s)}", label="plan     ")
    page.say(f"{asked}?  {verdict.word}: {told(verdict.why)}", "bold", label="why not  ")
    other = verdict.rival
    if other is not None and other.config is not None:
        peak = nbytes(other.peak_memory_bytes)
        page.say(f"{short(other.config)}  {seconds(other.step_time_s)}, peak memory {peak}", label="best     ")
        page.blank()
        before = set(in_words(again.plan.config))
        for line in in_words(other.config):
            if line not in before:
                page.say(f"there: {line}")
        page.blank()
        page.table(difference_table("what it takes longer or less for", other.differences))
    page.print()
