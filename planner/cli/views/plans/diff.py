"""Two plans side by side, as a person reads them."""

from __future__ import annotations

from rich.console import Console

from meshwright.cost_models.prediction import Prediction
from meshwright.planner.answer.diff import Diff
from meshwright.planner.cli.views.plans.plan import difference_table
from meshwright.planner.cli.views.tables import new_console, new_table
from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.plan.words import in_words


def show_diff(found: Diff) -> None:
    """Print it to standard output."""
    console = new_console()
    console.print(f"a  {found.one.name}")
    console.print(f"b  {found.other.name}")
    _rows(console, "not the same question", found.about)
    _rows(console, "decided otherwise", found.config or found.decided)
    if not found.config and not found.decided:
        console.print("\nthey decide the same")
    mine, theirs = in_words(found.one.config), in_words(found.other.config)
    for name, lines, others in (("a", mine, theirs), ("b", theirs, mine)):
        for line in lines:
            if line not in others:
                console.print(f"{name}: {line}")
    console.print()
    table = new_table("predicted", "", "a", "b", "b - a")
    for row in _predicted(found.one.prediction, found.other.prediction):
        table.add_row(*row)
    console.print(table)
    console.print()
    console.print(difference_table("what b takes longer or less for", found.shares))


def _rows(console: Console, title: str, rows: tuple[tuple[str, str, str], ...]) -> None:
    if rows:
        table = new_table(title, "", "a", "b")
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)


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
