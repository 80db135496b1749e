"""A profile as a person reads it: of which machine, when, what was measured, and the best rates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime

from meshwright.cost_models.measured.measured import Measured
from meshwright.cost_models.measured.several import Difference
from meshwright.planner.cli.views.tables import Page, Table, columns
from meshwright.planner.plan.units import bytes_per_s, flops_per_s, nbytes, percent, seconds


def show(found: Measured, path: str) -> None:
    """Print to standard output."""
    page = Page()
    page.say(f"{path}: profile {found.name}, of {found.made} ({age(found)})", "bold")
    page.say(f"{found.identity.device}: {found.identity}")
    if found.forced:
        page.say("something else was running while it was measured (--force)")
    page.blank()
    shown = Table(
        "kernels, by ranks at work", columns("ranks", "cases", "best product", "memory", "launch", "in a step")
    )
    for one in found.busy:
        cases = len(one.products) + len(one.attention) + len(one.streams)
        best = max(one.peak_flops_per_s(dtype) for dtype in one.dtypes)
        in_step = f"x {one.scale:.2f}" + f" + {one.cold_s_per_byte * 1e9:.2f} ns/B" * (one.cold_s_per_byte > 0)
        rates = flops_per_s(best), bytes_per_s(one.bytes_per_s), seconds(one.launch_s), in_step
        shown.add(str(one.ranks), str(cases), *rates)
    page.table(shown)
    page.say(f"hull: {found.busy[-1].hull()}")
    page.blank()
    for spread in found.spreads:
        ends = f"{spread.low:.2f} to {spread.high:.2f}"
        page.say(f"plans of {spread.family}: steps take {ends} times what is predicted ({spread.plans} measured)")
    if found.learned:
        runs = f"{len(found.learned)} run{'s' * (len(found.learned) > 1)}"
        page.say(f"learned from {runs} of plans, the last one of {found.learned[-1].made} (plan compare --learn)")
    if found.curves:
        heads = columns("kind", "ranks", "library", "from", "to", "least", "rate of the largest")
        shown = Table("collectives", heads)
        for curve in found.curves:
            (least, quickest_s), (most, longest_s) = curve.points[0], curve.points[-1]
            sizes = nbytes(least), nbytes(most), seconds(quickest_s), bytes_per_s(most / longest_s)
            shown.add(curve.kind, str(curve.ranks), curve.libraries[0], *sizes)
        page.table(shown)
        page.say(f"compute beside collectives: slower by {percent(found.slowdown)} of what these take alone")
    page.print()


def show_differences(one: Measured, other: Measured, found: Sequence[Difference]) -> None:
    """Print how two profiles differ."""
    page = Page()
    page.say(f"a  {row(one.name, one)}")
    page.say(f"b  {row(other.name, other)}")
    shown = Table("seconds of b over those of a", columns("what", "ranks", "in both", "mean", "least", "largest"))
    for each in found:
        ratios = (f"{ratio:.2f}" for ratio in (each.mean, each.least, each.largest))
        shown.add(each.what, str(each.ranks), str(each.count), *ratios)
    if found:
        page.table(shown)
    else:
        page.say("nothing was measured in both")
    page.print()


def row(path: str, found: Measured) -> str:
    """A profile in one line."""
    return f"{path}: {found.name}, {found.identity.device}, {found.made} ({age(found)}), {found.identity}"


def age(found: Measured) -> str:
    """The days since a profile was measured."""
    days = (datetime.now(UTC).date() - date.fromisoformat(found.made)).days
    return "today" if days <= 0 else "1 day ago" if days == 1 else f"{days:,} days ago"
