"""The first screen: what the plan is, how long a step takes, what its fullest rank holds, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.report.facts.memory import GroupMemory, fullest
from meshwright.planner.report.facts.summary import Summary
from meshwright.planner.report.page.markup import Markup, breaking, details, join, section, table, tag

NAMES = {
    "matmul": "matrix products", "attention": "attention", "memory-bound": "kernels that are bound by memory",
    "launch": "launches of kernels", "recompute": "computed again", "tensor": "tensor parallelism",
    "context": "context parallelism", "expert": "expert parallelism", "parameters": "gathers of parameters",
    "transfers": "transfers between stages", "bubble": "waiting", "gradients": "reductions of gradients",
    "optimizer": "optimizer", "publish": "gathers of updated parameters", "host": "waiting for the host",
}  # fmt: skip
"""Shares of a step in words. All that is sent is what nothing hides."""


def first(summary: Summary, memory: Sequence[GroupMemory]) -> Markup:
    """The heading of the page and its first section."""
    held = fullest(memory)
    lead = (
        f"One optimizer step of {summary.question} takes {seconds(summary.step_s)}, between {seconds(summary.low_s)} "
        f"and {seconds(summary.high_s)}. {summary.beside}"
    )
    return join(
        (
            tag("h1", f"Plan of {summary.model}"),
            tag("p", f"{count(summary.parameters)} parameters on {summary.cluster}.", class_="quiet"),
            _changed(summary),
            section(
                "plan",
                "The plan in short",
                tag("p", lead, class_="lead"),
                _figures(summary, held),
                tag("div", _words(summary), _shares(summary), class_="columns"),
                *_lists(summary),
            ),
        )
    )


def _changed(summary: Summary) -> Markup:
    if not summary.changed:
        return join(())
    told = "; ".join(summary.changed)
    said = f"Priced again: {told}. What the plan is held against, and what is proved, is as it was planned."
    return tag("p", said, class_="mark", role="note")


def _figures(summary: Summary, held: GroupMemory) -> Markup:
    left = f"{nbytes(held.left_bytes)} left" if held.left_bytes >= 0 else f"short {nbytes(-held.left_bytes)}"
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", more, class_="quiet"))
            for name, value, more in (
                (
                    "step time",
                    seconds(summary.step_s),
                    f"{seconds(summary.low_s)} to {seconds(summary.high_s)}",
                ),
                (
                    "memory of the fullest rank",
                    nbytes(held.peak_bytes),
                    f"of {nbytes(held.capacity_bytes)}, {left}: {held.name}, at the {held.instant}",
                ),
                ("tokens/s per device", count(summary.tokens_per_s_per_gpu), f"MFU {percent(summary.mfu)}"),
                ("gap", *_parted(summary.gap)),
                *([("operator gap", *_parted(summary.operator_gap))] if summary.operator_gap else []),
            )
        ),
        class_="figures",
    )


def _parted(said: str) -> tuple[str, str]:
    """A figure, and what is said of it."""
    figure, _, words = said.partition(": ")
    return figure, words


def _words(summary: Summary) -> Markup:
    return tag(
        "div",
        tag("h3", "What it does"),
        tag("ul", *(tag("li", breaking(line)) for line in summary.words)),
        tag("p", tag("code", breaking(summary.config))),
        tag("p", summary.software, class_="quiet"),
        tag("h3", "How sure that is"),
        tag("p", summary.confidence),
        tag("ul", *(tag("li", f"{name}: {kind}") for name, kind in summary.provenance)),
    )


def _shares(summary: Summary) -> Markup:
    shares = [(name, taken_s) for name, taken_s in summary.shares if taken_s > 0]
    most = max((taken_s for _, taken_s in shares), default=1.0)
    rows = (
        (
            NAMES.get(name, name),
            seconds(taken_s),
            percent(taken_s / summary.step_s),
            tag("span", tag("span", class_="bar blue", style=f"width:{100 * taken_s / most:.1f}%"), class_="track"),
        )
        for name, taken_s in shares
    )
    caption = "seconds on the ranks that end last; what is sent is what nothing hides"
    return tag(
        "div",
        tag("h3", "Where the step goes"),
        table(caption, "wnnw", ("share", "time", "of the step", "of the largest"), rows),
    )


def _lists(summary: Summary) -> Iterator[Markup]:
    if summary.binding:
        yield tag("h3", "What binds")
        yield tag("ul", *(tag("li", breaking(f"{kind}: {what}")) for kind, what in summary.binding))
    if summary.notes:
        yield details("Notes", tag("ul", *(tag("li", note) for note in summary.notes)))
    if summary.truncated:
        yield details("What the search left out", tag("ul", *(tag("li", one) for one in summary.truncated)))
