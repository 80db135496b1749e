"""How a model scales, as a person reads it: a row for each number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshwright.planner.answer.changed.scale import Scaling, Size
from meshwright.planner.cli.views.tables import Page, Table, number, text
from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.plan.words import short
from meshwright.planner.question.changed.sizes import STRONG

NONE = "-"


def show(found: Scaling, written: Sequence[Path], *, brief: bool) -> None:
    """Print the table to standard output, and in which question it answers."""
    page = Page()
    if not brief and found.sizes:
        ask = found.sizes[0].ask
        kept = "the same global batch" if found.scaling == STRONG else "as many sequences for each GPU"
        workload = f"{ask.workload.seq:,} tokens a sequence in {ask.workload.precision}"
        page.say(f"{ask.model}, {workload}; {found.scaling} scaling: {kept}", label="asked   ")
        page.blank()
    page.table(scale_table(found))
    for one in found.sizes:
        if one.plan is None:
            page.say(f"{one.ranks:,} GPU{'s' * (one.ranks > 1)}: {one.why}")
    for path in written:
        page.whole(f"written: {path}")
    page.print()


def scale_table(found: Scaling) -> Table:
    """Sizes: the plan, its step, what it does in a second, how that compares with the smallest size that fits."""
    shown = Table(
        "",
        (
            number("GPUs"),
            number("batch", 1),
            text("plan", 2, least=16),
            number("step time"),
            number("tokens/s", 3),
            number("tokens/s/GPU", 6),
            number("efficiency"),
            number("memory", 5),
            number("gap", 4),
        ),
    )
    for one in found.sizes:
        shown.add(f"{one.ranks:,}", f"{one.ask.workload.global_batch:,}", *_cells(found, one))
    return shown


def _cells(found: Scaling, one: Size) -> tuple[str, ...]:
    plan, efficiency = one.plan, found.efficiency(one)
    if plan is None:
        return "none", NONE, NONE, NONE, NONE, NONE, NONE
    return (
        short(plan.config),
        seconds(plan.prediction.step_time_s),
        count(one.tokens_per_s or 0.0),
        count(one.tokens_per_s_per_gpu or 0.0),
        NONE if efficiency is None else percent(efficiency),
        nbytes(plan.prediction.peak_memory_bytes),
        percent(max(0.0, plan.bounds.gap)) if plan.bounds.proved else "unknown",
    )
