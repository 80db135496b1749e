"""A profile as a person reads it: of which machine, when, what was measured, and the best rates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime

from meshwright.cost_models.measured.measured import Measured
from meshwright.cost_models.measured.several import Difference
from meshwright.planner.cli.views.tables import new_console, new_table
from meshwright.planner.plan.units import bytes_per_s, flops_per_s, nbytes, percent, seconds


def show(found: Measured, path: str) -> None:
    """Print to standard output."""
    console = new_console()
    console.print(f"{path}: profile {found.name}, of {found.made} ({age(found)})", style="bold")
    console.print(f"{found.identity.device}: {found.identity}")
    if found.forced:
        console.print("something else was running while it was measured (--force)")
    console.print()
    shown = new_table("kernels, by ranks at work", "ranks", "cases", "best product", "memory", "launch", "in a step")
    for one in found.busy:
        cases = len(one.products) + len(one.attention) + len(one.streams)
        best = max(one.peak_flops_per_s(dtype) for dtype in one.dtypes)
        in_step = f"x {one.scale:.2f}" + f" + {one.cold_s_per_byte * 1e9:.2f} ns/B" * (one.cold_s_per_byte > 0)
        rates = flops_per_s(best), bytes_per_s(one.bytes_per_s), seconds(one.launch_s), in_step
        shown.add_row(str(one.ranks), str(cases), *rates)
    console.print(shown)
    console.print(f"hull: {found.busy[-1].hull()}")
    console.print()
    for spread in found.spreads:
        ends = f"{spread.low:.2f} to {spread.high:.2f}"
        console.print(f"plans of {spread.family}: steps take {ends} times what is predicted ({spread.plans} measured)")
    if found.learned:
        runs = f"{len(found.learned)} run{'s' * (len(found.learned) > 1)}"
        console.print(f"learned from {runs} of plans, the last one of {found.learned[-1].made} (plan compare --learn)")
    if found.curves:
        shown = new_table("collectives", "kind", "ranks", "library", "from", "to", "least", "rate of the largest")
        for curve in found.curves:
            (least, quickest_s), (most, longest_s) = curve.points[0], curve.points[-1]
            sizes = nbytes(least), nbytes(most), seconds(quickest_s), bytes_per_s(most / longest_s)
            shown.add_row(curve.kind, str(curve.ranks), curve.libraries[0], *sizes)
        console.print(shown)
        console.print(f"compute beside collectives: slower by {percent(found.slowdown)} of what these take alone")


def show_differences(one: Measured, other: Measured, found: Sequence[Difference]) -> None:
    """Print how two profiles differ."""
    console = new_console()
    console.print(f"a  {row(one.name, one)}")
    console.print(f"b  {row(other.name, other)}")
    shown = new_table("seconds of b over those of a", "what", "ranks", "in both", "mean", "least", "largest")
    for each in found:
        ratios = (f"{ratio:.2f}" for ratio in (each.mean, each.least, each.largest))
        shown.add_row(each.what, str(each.ranks), str(each.count), *ratios)
    console.print(shown if found else "nothing was measured in both")


def row(path: str, found: Measured) -> str:
    """A profile in one line."""
    return f"{path}: {found.name}, {found.identity.device}, {found.made} ({age(found)}), {found.identity}"


def age(found: Measured) -> str:
    """The days since a profile was measured."""
    days = (datetime.now(UTC).date() - date.fromisoformat(found.made)).days
    return "today" if days <= 0 else "1 day ago" if days == 1 else f"{days:,} days ago"
