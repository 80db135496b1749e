"""Other plans: those that a person would write, and other kinds that were priced, with what they lose and win."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.planner.plan.types import Rival
from meshwright.planner.plan.units import nbytes, seconds
from meshwright.planner.plan.words import short
from meshwright.planner.report.page.first import NAMES
from meshwright.planner.report.page.markup import Content, Markup, breaking, details, section, table, tag

KINDS = "wwwnnnw"
"""Of the columns of tables of plans."""


def rivals(baselines: Sequence[Rival], alternatives: Sequence[Rival]) -> Markup:
    """The section on other plans."""
    told = (
        "Seconds of a step are booked on shares that add up to it, so the shares of two plans, one less the other, add "
        "up to the time between them."
    )
    columns = ("plan", "why it lost", "pins", "step time", "times the plan's", "memory", "fits")
    numbered = tuple((one.name or f"alternative {number}", one) for number, one in enumerate(alternatives, 1))
    named = tuple((one.name, one) for one in baselines)
    return section(
        "rivals",
        "Other plans",
        tag("p", told),
        tag("h3", "What a person would write"),
        table("beside what a person would write", KINDS, columns, (_row(*one) for one in named)),
        *(
            [
                tag("h3", "Alternatives"),
                table("alternatives, and why they lost", KINDS, columns, (_row(*one) for one in numbered)),
            ]
            if numbered
            else []
        ),
        *_differences((*named, *numbered)),
    )


def _row(name: str, one: Rival) -> tuple[Content, ...]:
    if one.config is None:
        return name, one.lost, "-", "-", "-", "-", "-"
    fits = "yes" if one.fits else f"no, short {nbytes(one.short_bytes)} on stage {one.short_stage}"
    return (
        name,
        one.lost,
        breaking(short(one.config)),
        seconds(one.step_time_s),
        f"{one.slower:.3f}",
        nbytes(one.peak_memory_bytes),
        fits,
    )


def _differences(plans: Sequence[tuple[str, Rival]]) -> Iterator[Markup]:
    """What each of them takes longer or less for, if there is anything."""
    unlike = [(name, shares) for name, one in plans if (shares := [share for share in one.differences if share[1]])]
    if unlike:
        yield details("What each takes longer or less for", *(_difference(*one) for one in unlike))


def _difference(name: str, shares: Sequence[tuple[str, float]]) -> Markup:
    most = max(abs(more_s) for _, more_s in shares)
    rows = (
        (NAMES.get(share, share), f"{'+' if more_s > 0 else '-'}{seconds(abs(more_s))}", _bar(more_s, most))
        for share, more_s in shares
    )
    return table(
        f"{name}: seconds more (+) or less (-) than the plan", "wnw", ("share", "time", "of the largest"), rows
    )


def _bar(more_s: float, most: float) -> Markup:
    colour = "orange" if more_s > 0 else "teal"
    inner = tag("span", class_=f"bar {colour}", style=f"width:{100 * abs(more_s) / most:.1f}%")
    return tag("span", inner, class_="track")
