"""Two plans side by side, as a person reads them."""

from __future__ import annotations

from meshwright.cost_models.prediction import Prediction
from meshwright.planner.answer.diff import Diff
from meshwright.planner.cli.views.plans.parts import difference_table
from meshwright.planner.cli.views.tables import Page, Table, number, text
from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.plan.words import in_words


def show_diff(found: Diff) -> None:
    """Print it to standard output."""
    page = Page()
    page.say(found.one.name, label="a  ")
    page.say(found.other.name, label="b  ")
    _rows(page, "not the same question", found.about)
    _rows(page, "decided otherwise", found.config or found.decided)
    if not found.config and not found.decided:
        page.blank()
        page.say("they decide the same")
    mine, theirs = in_words(found.one.config), in_words(found.other.config)
    for name, lines, others in (("a", mine, theirs), ("b", theirs, mine)):
        for line in lines:
            if line not in others:
                page.say(f"{name}: {line}")
    page.blank()
    table = Table("predicted", (text("", 2), number("a"), number("b"), number("b - a", 1)))
    for row in _predicted(found.one.prediction, found.other.prediction):
        table.add(*row)
    page.table(table)
    page.blank()
    page.table(difference_table("what b takes longer or less for", found.shares))
    page.print()


def _rows(page: Page, title: str, rows: tuple[tuple[str, str, str], ...]) -> None:
    if rows:
        table = Table(title, (text("", 1, least=20), text("a", 2, least=10), text("b", 3, least=10)))
        for row in rows:
            table.add(*row)
        page.blank()
        page.table(table)


def _predicted(one: Prediction, other: Prediction) -> list[tuple[str, str, str, str]]:
    more_s = other.step_time_s - one.step_time_s
    more = other.peak_memory_bytes - one.peak_memory_bytes
    sign, grew = "-" if more_s < 0 else "+", "-" if more < 0 else "+"
    change = f"{sign}{seconds(abs(more_s))} ({sign}{percent(abs(more_s) / one.step_time_s)})"
    return [
        ("step time", seconds(one.step_time_s), seconds(other.step_time_s), change),
        ("tokens/s/GPU", count(one.tokens_per_s_per_gpu), count(other.tokens_per_s_per_gpu), ""),
        ("MFU", percent(one.mfu), percent(other.mfu), ""),
        (
            "peak memory",
            nbytes(one.peak_memory_bytes),
            nbytes(other.peak_memory_bytes),
            f"{grew}{nbytes(abs(more))}" if more else "",
        ),
        ("fits", "yes" if one.fits else "no", "yes" if other.fits else "no", ""),
    ]
