"""A timeline as trace events, for Perfetto (ui.perfetto.dev) and chrome://tracing.

In: a `Timeline`. Out: the JSON object format of the trace-event format (Google, "Trace Event Format", 2016):

    process 1   groups of ranks: a thread each, with slices that follow one another from 0 to the step time; an action
                holds one slice for each of its parts
    process 2   transfers between groups that run beside compute: a thread for each ordered pair of groups

A measured step (`answer.traced`) stands beside it as processes 11, 12, …, one for each rank, on the same clock.

Slices are complete events (`ph` X) with `ts` and `dur` in microseconds; names of processes and threads are metadata
events (`ph` M). Categories (`cat`) are the kinds of `timeline`: forward, recompute, backward, weights, communication,
optimizer, host, bubble. `args` of a part has its seconds by share of the step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from meshwright import __version__
from meshwright.ir.decisions.scan import ranges_text
from meshwright.planner.answer.traced.step import US, Measured
from meshwright.planner.answer.traced.tracks import nested
from meshwright.planner.report.facts.timeline import Part, Slice, Timeline

GENERATOR = "meshwright trace"
"""By which a trace that was written here is known again."""

GROUPS, LINKS, MEASURED = 1, 2, 11
"""Processes; of what was measured, the first."""

Event = dict[str, Any]


def trace_text(step: Timeline, model: str, measured: Measured | None = None) -> str:
    """The trace of a step as text, an event a line; with a measured one beside it, if there is one."""
    head: Event = {"generator": f"{GENERATOR} {__version__}", "model": model, "step_time_us": _us(step.step_s)}
    shown = trace_events(step)
    if measured is not None:
        head["measured"] = {
            "by": measured.by,
            "step": measured.number,
            "step_time_us": _us(measured.step_time_s),
            "one_clock": measured.one_clock,
        }
        shown = chain(map(_predicted, shown), measured_events(measured))
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in shown)
    return f'{{"otherData": {json.dumps(head)},\n"displayTimeUnit": "ms",\n"traceEvents": [\n{events}\n]}}\n'


def trace_events(step: Timeline) -> Iterator[Event]:
    """The events of a step: names first, then slices, track by track."""
    yield _name("process_name", GROUPS, 0, "groups of ranks")
    for lane in step.lanes:
        yield _name("thread_name", GROUPS, lane.group, _track(lane.stages, lane.ranks))
        yield _sorted(GROUPS, lane.group)
    links = sorted({(one.source, one.target) for one in step.transfers})
    if links:
        yield _name("process_name", LINKS, 0, "transfers beside compute")
    for number, (source, target) in enumerate(links):
        yield _name("thread_name", LINKS, number, f"group {source} to group {target}")
        yield _sorted(LINKS, number)
    for lane in step.lanes:
        for one in lane.slices:
            yield from _slice(one, lane.group)
    for moved in step.transfers:
        thread = links.index((moved.source, moved.target))
        yield _complete(moved.name, "communication", LINKS, thread, moved.start_s, moved.end_s)


def _predicted(event: Event) -> Event:
    """An event that stands beside measured ones."""
    named = event["name"] == "process_name"
    return event | {"args": {"name": f"predicted: {event['args']['name']}"}} if named else event


def measured_events(measured: Measured) -> Iterator[Event]:
    """The events of a measured step, which begins at 0 as the predicted one does: a process for each rank, with its
    step, and a thread for each of its tracks; one more for what crosses what else is on it."""
    for process, rank in enumerate(measured.ranks, MEASURED):
        yield _name("process_name", process, 0, f"measured: {rank.name}")
        yield _name("thread_name", process, 0, "step")
        yield _sorted(process, 0)
        several = len({track.process for track in rank.tracks}) > 1
        tracks = [row for track in rank.tracks for row in nested(track)]
        for thread, track in enumerate(tracks, 1):
            yield _name("thread_name", process, thread, f"{track.process}, {track.thread}" if several else track.thread)
            yield _sorted(process, thread)
        end_us = rank.start_us + rank.step_us
        yield _complete(f"step {measured.number}", "step", process, 0, rank.start_us / US, end_us / US)
        for thread, track in enumerate(tracks, 1):
            for span in track.spans:
                yield _complete(span.name, span.kind, process, thread, span.start_us / US, span.end_us / US)


def _track(stages: tuple[int, ...], ranks: tuple[int, ...]) -> str:
    several = "stages" if len(stages) > 1 else "stage"
    known = ranges_text(ranks)
    shown = known if len(known) < 40 else f"{len(ranks):,} from {min(ranks)} on"
    return f"{several} {ranges_text(stages)}: ranks {shown}"


def _slice(one: Slice, thread: int) -> Iterator[Event]:
    """A slice, and its parts inside of it where there are several."""
    told: Event = {"stage": one.stage, "micro-batch": one.microbatch} if one.microbatch >= 0 else {}
    if len(one.parts) == 1:
        told |= _shares(one.parts[0])
    main = next((part.kind for part in one.parts if part.kind != "communication"), "communication")
    yield _complete(one.name, main, GROUPS, thread, one.start_s, one.end_s, told)
    at_s = one.start_s
    for part in one.parts if len(one.parts) > 1 else ():
        begin_s, at_s = at_s, min(at_s + part.seconds, one.end_s)
        yield _complete(part.kind, part.kind, GROUPS, thread, begin_s, at_s, _shares(part))


def _shares(part: Part) -> Event:
    """Microseconds of a part by share of the step."""
    return {share: _us(seconds) for share, seconds in part.shares}


def _complete(
    name: str, kind: str, process: int, thread: int, start_s: float, end_s: float, args: Event | None = None
) -> Event:
    """A complete event. Its ends are rounded, not what it takes, so that what follows without a gap still does."""
    start, end = _us(start_s), _us(end_s)
    made = {"name": name, "cat": kind, "ph": "X", "pid": process, "tid": thread, "ts": start}
    return {**made, "dur": round(end - start, 3), **({"args": args} if args else {})}


def _us(seconds: float) -> float:
    """Microseconds, to a nanosecond."""
    return round(seconds * US, 3)


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _sorted(process: int, thread: int) -> Event:
    order = {"sort_index": thread}
    return {"name": "thread_sort_index", "ph": "M", "pid": process, "tid": thread, "ts": 0, "args": order}
