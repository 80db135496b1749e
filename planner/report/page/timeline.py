"""The step in time: a lane for each group of ranks, of large steps the first and the last of both groups and time.

Drawn are at most `LANES` lanes and about `SLICES` slices: of more lanes the first and the last half, of more slices
those of the beginning and of the end of the step, as much time of each as there is room for. What lies between is said.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.ir.decisions.scan import ranges_text
from meshwright.planner.plan.units import percent, seconds
from meshwright.planner.plan.words import rows_alike
from meshwright.planner.report.facts.timeline import KINDS, Lane, Slice, Timeline
from meshwright.planner.report.page.colours import KINDS as COLOURS
from meshwright.planner.report.page.markup import (
    Markup,
    details,
    drawing,
    label,
    legend,
    num,
    scrolling,
    section,
    table,
    tag,
)

LANES, SLICES = 16, 640
WIDTH, LEFT, RIGHT, TOP = 1200.0, 130.0, 20.0, 30.0
ROW, BAR = 30.0, 24.0
GAP = 60.0
"""Pixels of the time that is not drawn."""
TICKS = 8
STRAGGLING = 0.002
"""A share of the step below which a wait is not told."""
WIDE_ENOUGH = 7.0
"""Pixels of a digit."""

NAMES = {
    "recompute": "computed again", "forward": "forward", "backward": "backward: gradients of inputs",
    "weights": "backward: gradients of weights", "communication": "communication that nothing hides",
    "optimizer": "optimizer and end of the step", "host": "waiting for the host", "bubble": "waiting (bubble)",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that is drawn: from 0 to `head_s`, and from `tail_s` to `end_s`; all of it where the two meet."""

    head_s: float
    tail_s: float
    end_s: float

    @property
    def whole(self) -> bool:
        return self.head_s >= self.tail_s

    def spans(self) -> tuple[tuple[float, float], ...]:
        return ((0.0, self.end_s),) if self.whole else ((0.0, self.head_s), (self.tail_s, self.end_s))

    @property
    def scale(self) -> float:
        """Pixels of a second."""
        room = WIDTH - LEFT - RIGHT - (0 if self.whole else GAP)
        return room / sum(end - start for start, end in self.spans())

    def x(self, at_s: float) -> float:
        """The place of an instant that is drawn."""
        if self.whole or at_s <= self.head_s:
            return LEFT + at_s * self.scale
        return LEFT + self.head_s * self.scale + GAP + (at_s - self.tail_s) * self.scale


def window_of(lanes: Sequence[Lane], end_s: float) -> Window:
    """As much of the beginning and of the end as there is room for."""
    slices = sorted((one for lane in lanes for one in lane.slices), key=lambda one: (one.start_s, one.end_s))
    if len(slices) <= SLICES:
        return Window(head_s=end_s, tail_s=0.0, end_s=end_s)
    ends = sorted(one.end_s for one in slices)
    head_s, tail_s = slices[SLICES // 2].start_s, ends[-SLICES // 2]
    return Window(head_s=head_s, tail_s=tail_s, end_s=end_s)


def shown_lanes(lanes: Sequence[Lane]) -> tuple[tuple[Lane, ...], tuple[Lane, ...]]:
    """The first and the last lanes, as far as there is room."""
    if len(lanes) <= LANES:
        return tuple(lanes), ()
    return tuple(lanes[: LANES // 2]), tuple(lanes[-LANES // 2 :])


def timeline(step: Timeline) -> Markup:
    """The section on time."""
    first, last = shown_lanes(step.lanes)
    lanes = (*first, *last)
    window = window_of(lanes, step.end_s)
    used = {part.kind for lane in step.lanes for one in lane.slices for part in one.parts}
    return section(
        "time",
        "The step in time",
        tag("p", _about(step)),
        *(tag("p", said, class_="quiet") for said in _left_out(step, first, last, window)),
        legend(((COLOURS[kind], NAMES[kind]) for kind in KINDS if kind in used), "timeline", "what is done"),
        _drawing(step, first, last, window),
        details("The step of every group in figures", _table(step)),
    )


def _about(step: Timeline) -> str:
    groups = "One group of ranks runs" if len(step.lanes) == 1 else f"{len(step.lanes):,} groups of ranks run"
    order = f", schedule {step.schedule}" if len(step.lanes) > 1 else ""
    several = f"{step.microbatches:,} micro-batches" if step.microbatches > 1 else "one micro-batch"
    rolls = " Groups begin the next step without waiting for each other." if step.rolling else ""
    slow = f" In the last {seconds(step.straggling_s)} all wait for the slowest of many ranks." if _drags(step) else ""
    return (
        f"{groups} {several}{order}. A number is the micro-batch. In an action the parts are in an order of "
        f"convention; what is known of them is how long they take.{rolls}{slow}"
    )


def _drags(step: Timeline) -> bool:
    """Whether that wait is to be seen."""
    return step.straggling_s > STRAGGLING * step.step_s


def _left_out(step: Timeline, first: Sequence[Lane], last: Sequence[Lane], window: Window) -> Iterator[str]:
    """What is not drawn, in words."""
    if last:
        between = step.lanes[len(first) : -len(last)]
        yield (
            f"Groups {between[0].group} to {between[-1].group} are not drawn: {len(between):,} groups, "
            f"between those that are first and last in the pipeline."
        )
    if not window.whole:
        drawn = {
            one.microbatch
            for lane in (*first, *last)
            for one in lane.slices
            if one.start_s < window.head_s or one.end_s > window.tail_s
        }
        unseen = ranges_text([one for one in range(step.microbatches) if one not in drawn]).replace("..", " to ")
        yield (
            f"From {seconds(window.head_s)} to {seconds(window.tail_s)} nothing is drawn: "
            f"{percent((window.tail_s - window.head_s) / window.end_s)} of the step"
            + (f", and with it all of micro-batches {unseen}." if unseen else ".")
        )


def _drawing(step: Timeline, first: Sequence[Lane], last: Sequence[Lane], window: Window) -> Markup:
    rows, y = list[Markup](), TOP
    for index, lane in enumerate((*first, *last)):
        if last and index == len(first):
            hidden = len(step.lanes) - len(first) - len(last)
            rows.append(label(LEFT + 6, y + 16, f"{hidden:,} groups between are not drawn", class_="quiet"))
            y += ROW
        rows += _lane(lane, y, window)
        y += ROW
    rows = [*_axis(window, y), *rows]
    if not window.whole:
        x = LEFT + window.head_s * window.scale
        rows.append(tag("rect", x=x, y=TOP - 4, width=GAP, height=y - TOP + 4, class_="gap"))
        rows.append(label(x + GAP / 2, TOP + 12, "…", anchor="middle", class_="strong"))
    told = f"{len(first) + len(last)} lanes of {seconds(step.step_s)} each; the table below has their figures."
    made = drawing("timeline", "What groups of ranks do in a step", told, WIDTH, y + 8, *rows)
    return scrolling(made, "lanes of the step")


def _axis(window: Window, bottom: float) -> Iterator[Markup]:
    """Instants above the lanes, with lines through them."""
    step_s = _round(sum(end - start for start, end in window.spans()) / TICKS)
    for start, end in window.spans():
        number = -int(-start // step_s)
        while number * step_s <= end * (1 + 1e-9):
            x = window.x(min(number * step_s, end))
            yield tag("path", d=f"M{num(x)} {num(TOP - 6)}V{num(bottom)}", class_="grid")
            yield label(x, TOP - 10, seconds(number * step_s) if number else "0", anchor="middle", class_="quiet")
            number += 1


def _round(at_least_s: float) -> float:
    """A round number of seconds."""
    power = 1.0
    while power > at_least_s:
        power /= 10
    while power * 10 <= at_least_s:
        power *= 10
    return next(power * times for times in (1, 2, 5, 10) if power * times >= at_least_s * (1 - 1e-9))


def _lane(lane: Lane, y: float, window: Window) -> Iterator[Markup]:
    yield label(LEFT - 8, y + 12, f"group {lane.group}", anchor="end")
    yield label(LEFT - 8, y + 23, _stages(lane), anchor="end", class_="quiet")
    starts = [one.start_s for one in lane.slices]
    for start, end in window.spans():
        begin = max(0, bisect_right(starts, start) - 1)
        for one in lane.slices[begin : bisect_left(starts, end)]:
            if one.end_s > start:
                yield _slice(one, y, window, start, end)


def _stages(lane: Lane) -> str:
    text = ranges_text(lane.stages).replace("..", "-")
    several = "stages" if len(lane.stages) > 1 else "stage"
    return f"{several} {text}" if len(text) < 12 else f"{len(lane.stages)} stages"


def _slice(one: Slice, y: float, window: Window, start: float, end: float) -> Markup:
    """A slice, as far as it is between two instants, as one group with its parts."""
    at, made = one.start_s, list[Markup]()
    for part in one.parts:
        left, right = max(at, start), min(at + part.seconds, end)
        at += part.seconds
        if right > left:
            x, width = window.x(left), (right - left) * window.scale
            made.append(
                tag(
                    "path",
                    d=f"M{num(x)} {num(y)}h{num(width)}v{num(BAR)}h{num(-width)}z",
                    class_=f"part edge {COLOURS[part.kind]}",
                )
            )
    x, right = window.x(max(one.start_s, start)), window.x(min(one.end_s, end))
    text = str(one.microbatch) if one.microbatch >= 0 else ""
    if text and right - x > WIDE_ENOUGH * len(text) + 3:
        made.append(label((x + right) / 2, y + 16, text, anchor="middle", class_="on"))
    return tag("g", tag("title", _told(one)), *made)


def _told(one: Slice) -> str:
    """A slice in words."""
    if one.microbatch < 0:
        return f"{one.name}: {seconds(one.seconds)} from {seconds(one.start_s)} on"
    parts = ", ".join(f"{part.kind} {seconds(part.seconds)}" for part in one.parts)
    return f"{one.name}: {seconds(one.seconds)} from {seconds(one.start_s)} on ({parts})"


def _table(step: Timeline) -> Markup:
    rows = []
    for lane in step.lanes:
        found = lane.by_kind()
        shown = [seconds(found[kind]) if found[kind] else "-" for kind in KINDS]
        rows.append((f"{len(lane.ranks):,}", *shown, percent(found["bubble"] / step.step_s)))
    columns = ("group", "ranks", *KINDS, "waiting")
    caption = "seconds of a step by group; neighbours with the same figures are one row"
    return table(caption, "w" + "n" * (len(columns) - 1), columns, ((number, *row) for number, row in rows_alike(rows)))
