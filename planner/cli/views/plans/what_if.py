"""What would change an answer, as a person reads it: a row for each changed question, beside the answer."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planner.answer.changed.what_if import WhatIf
from meshwright.planner.cli.views.tables import Page, Table, Way, number, text
from meshwright.planner.plan.units import count, nbytes, seconds
from meshwright.planner.plan.words import short


def show_what_ifs(found: Sequence[WhatIf]) -> None:
    """Print the table to standard output, below the answer."""
    page = Page()
    page.lines.append(("", ""))
    page.table(what_if_table(found))
    for one in found:
        for said in _told(one):
            page.say(f"{one.change.text}: {said}")
    page.print()


def what_if_table(found: Sequence[WhatIf]) -> Table:
    """Changed questions: the plan then, its step over the answer's, and what the answer's plan takes there."""
    shown = Table(
        "what if",
        (
            text("change", 4, least=14),
            text("plan then", 5, least=14),
            number("step time"),
            number("ratio"),
            text("interval", 6, Way.DROP),
            number("memory", 3),
            number("plan kept"),
            number("ratio", 2),
            number("tokens/s/GPU", 1),
        ),
    )
    for one in found:
        kept = one.kept.prediction
        shown.add(
            one.change.text,
            *_plan(one),
            "-" if kept is None else seconds(kept.step_time_s),
            _ratio(one.kept_ratio),
            "-" if one.plan is None else count(one.plan.prediction.tokens_per_s_per_gpu),
        )
    return shown


def _plan(one: WhatIf) -> tuple[str, ...]:
    """The plan of a changed question, its step, the ratio, whether that is beyond the answer's interval, and memory."""
    if one.plan is None:
        return "none", "-", "-", "", "-"
    predicted = one.plan.prediction
    interval = "" if one.beyond is None else "beyond" if one.beyond else "inside"
    name = "the same" if one.same else short(one.plan.config)
    return name, seconds(predicted.step_time_s), _ratio(one.ratio), interval, nbytes(predicted.peak_memory_bytes)


def _ratio(found: float | None) -> str:
    return "-" if found is None else f"{found:.3f}"


def _told(one: WhatIf) -> list[str]:
    """What the row has no room for."""
    said = [one.why] if one.why else []
    kept = one.kept.prediction
    if one.kept.why:
        said.append(f"the plan cannot be kept: {one.kept.why}")
    if one.idle and not one.same:
        said.append(f"the plan kept leaves {one.idle:,} of {one.ask.cluster.hosts:,} hosts idle")
    if kept is not None and not kept.fits:
        lacks = max(stage.memory.lacks_bytes for stage in kept.stages)
        said.append(f"the plan kept does not fit: short {nbytes(lacks)}")
    if kept is not None and kept.fits and one.plan is not None:
        gained_s = one.plan.prediction.step_time_s - kept.step_time_s
        if gained_s > 0:
            said.append(f"the plan kept is {seconds(gained_s)} faster than what was found there")
    return said
