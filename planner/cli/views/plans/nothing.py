"""The answer where nothing fits, as a person reads it."""

from __future__ import annotations

from meshwright.planner.answer.relax import Nothing
from meshwright.planner.cli.views.tables import Page, Table, Way, number, text
from meshwright.planner.plan.units import nbytes, seconds
from meshwright.planner.plan.words import short


def show_nothing(nothing: Nothing) -> None:
    """Print the configuration that lacks least, and what would help, to standard output."""
    page = Page()
    page.say("nothing fits", "bold")
    if nothing.nearest is not None:
        stage, lack = nothing.short
        memory = nothing.nearest.prediction.stages[stage].memory
        needed, capacity = nbytes(memory.peak_bytes), nbytes(memory.capacity_bytes)
        page.say(f"what lacks least is short {nbytes(lack)} on stage {stage}: {needed} of {capacity}")
        page.say(short(nothing.nearest.config), label="  ")
    if nothing.relaxations:
        page.blank()
        page.table(_helps(nothing))
    else:
        page.say("no single change that was tried helps: constraints, margin, batch, sequence, hosts")
    page.print()


def _helps(nothing: Nothing) -> Table:
    table = Table(
        "what would help, each tried",
        (
            text("", 3, Way.DROP),
            text("change", 4, least=20),
            number("step time"),
            number("peak memory", 2),
            text("with", 1, Way.BELOW),
        ),
    )
    for one in nothing.relaxations:
        memory = nbytes(one.found.prediction.peak_memory_bytes)
        table.add(one.kind, one.what, seconds(one.found.step_s), memory, short(one.found.config))
    return table
