"""Traces of profilers: what torch.profiler's `export_chrome_trace` and JAX's `jax.profiler.trace` write.

Both are trace events in JSON (Google, "Trace Event Format", 2016), packed or not. Read is what a plan is held against:

    steps    torch: annotations `ProfilerStep#N`, which `prof.step()` makes under a schedule; on a device, where it has
             them too. JAX: what `jax.profiler.StepTraceAnnotation` marks with a `step_num`, or a device's own steps
    tracks   streams of devices, with their kernels and copies; where there is no device, threads with operators (torch)
             or with what XLA runs (JAX)
    rank     torch: as `distributedInfo` has it

Anything else (Python's frames, calls of the driver, flows) is passed over. What is no such trace, has no steps, or
nothing that ran in them is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from meshwright.ir.errors import TraceUnreadable
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import GZIP, Unreadable, read_unpacked
from meshwright.ir.limits import TRACE_BYTES
from meshwright.planner.answer.traced.tracks import Span, Track, in_order

BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{")
TORCH_STEP = re.compile(r"ProfilerStep#([0-9]{1,15})")
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
OPERATOR = "cpu_op"
ANNOTATION, ON_DEVICE_TOO = "user_annotation", "gpu_user_annotation"
GLOO = "gloo:"
"""Annotations of gloo's collectives, which are no operators."""
DEVICE = "/device:"
XLA_STEPS = "Steps"
XLA_RUNS = re.compile(r"XLA Ops|Stream|tf_XLA")
"""Threads of a JAX trace on which something runs; others of a device repeat it by module or by source."""
XLA_WAITS = re.compile(r"::|^end: |wait for completion")
"""Marks of XLA's runtime on its threads, which are no work."""
MARK_STEPS = """mark steps: with torch, profile(schedule=…) and prof.step() after each step; with JAX,
with jax.profiler.StepTraceAnnotation("train", step_num=n):"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A trace of one process.

    - `steps` by number: begin and end, in microseconds of the trace's clock.
    - `base_us` is what its clock began at, on the clock of the host; None where that is not said.
    """

    place: str
    by: str
    """`torch` or `jax`."""
    rank: int | None
    steps: Mapping[int, tuple[float, float]]
    tracks: tuple[Track, ...]
    base_us: float | None
    on_device: bool
    """Whether tracks are of devices."""


def looks_like_a_trace(start: bytes) -> bool:
    """Whether a file that begins so may be a trace: an object of JSON or a list of them, or packed."""
    return start.startswith(GZIP) or BEGINS.match(start) is not None


def read_trace(path: str | Path) -> Traced:
    """Read the trace of a file."""
    place = str(path)
    try:
        text = read_unpacked(path, TRACE_BYTES)
    except Unreadable as error:
        raise TraceUnreadable(
            place=place, cause=error.cause, fix=f"{did_you_mean(path)}name the file that a profiler wrote"
        ) from None
    return trace_of(text, place)


def trace_of(text: str, place: str) -> Traced:
    """The trace that a text has."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        cause = "it is empty" if not text.strip() else f"it is not JSON: {error}"
        raise TraceUnreadable(place=place, cause=cause, fix="copy the whole file, as the profiler wrote it") from None
    head = found if isinstance(found, dict) else {"traceEvents": found}
    events = head.get("traceEvents")
    if not isinstance(events, list):
        fix = "give what export_chrome_trace of torch.profiler, or jax.profiler.trace, wrote"
        raise TraceUnreadable(place=place, cause="it has no list of traceEvents", fix=fix)
    spans = [one for one in map(_event, events) if one is not None]
    threads, processes = _names(events, "thread_name"), _names(events, "process_name")
    by_torch = any(one.category in (OPERATOR, *ON_DEVICE) for one in spans)
    traced = (_of_torch if by_torch else _of_jax)(head, spans, processes, threads, place)
    if not traced.steps:
        raise TraceUnreadable(place=place, cause="no step is marked in it", fix=MARK_STEPS)
    if not any(track.spans for track in traced.tracks):
        fix = "profile ProfilerActivity.CPU, and CUDA where there is one"
        raise TraceUnreadable(place=place, cause="nothing that ran is in it", fix=fix)
    return traced


# Events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Event:
    """A complete event: what ran, where and when."""

    span: Span
    category: str
    process: object
    thread: object
    step: object
    """The number that marks it as a step, if it has one."""


def _event(event: Any) -> _Event | None:
    """A complete event, as far as it has a name and times that are numbers."""
    if not isinstance(event, dict) or event.get("ph") != "X":
        return None
    name, start, lasts = event.get("name"), event.get("ts"), event.get("dur", 0)
    if not isinstance(name, str) or not _is_time(start) or not _is_time(lasts) or lasts < 0:
        return None
    told = event.get("args")
    step = told.get("step_num") if isinstance(told, dict) else None
    span = Span(name, float(start), float(start) + float(lasts))
    return _Event(span, str(event.get("cat", "")), _key(event.get("pid")), _key(event.get("tid")), step)


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _key(value: object) -> object:
    """The number or name of a process or a thread."""
    return value if isinstance(value, int | str) else str(value)


def _names(events: list[Any], what: str) -> dict[tuple[object, object], str]:
    """Names of threads, or of processes (thread 0), as metadata events give them."""
    found: dict[tuple[object, object], str] = {}
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "M" and event.get("name") == what:
            told = event.get("args")
            if isinstance(told, dict) and isinstance(told.get("name"), str):
                thread = 0 if what == "process_name" else _key(event.get("tid"))
                found[_key(event.get("pid")), thread] = told["name"]
    return found


Names = Mapping[tuple[object, object], str]


def _tracks(spans: Iterator[_Event], processes: Names, threads: Names) -> tuple[Track, ...]:
    """Spans by where they ran, in the order of the names of these places."""
    found: dict[tuple[object, object], list[Span]] = defaultdict(list)
    for one in spans:
        if one.span.end_us > one.span.start_us:
            found[one.process, one.thread].append(one.span)
    tracks = (
        Track(
            processes.get((process, 0), f"process {process}"),
            threads.get((process, thread), f"thread {thread}"),
            in_order(own),
        )
        for (process, thread), own in found.items()
    )
    return tuple(sorted(tracks, key=lambda track: (track.process, track.thread)))


def _steps(marks: Iterator[tuple[int, Span]]) -> dict[int, tuple[float, float]]:
    """Steps by number; one that several places mark lasts from the first to the last."""
    found: dict[int, tuple[float, float]] = {}
    for number, span in marks:
        start, end = found.get(number, (math.inf, -math.inf))
        if span.end_us > span.start_us:
            found[number] = min(start, span.start_us), max(end, span.end_us)
    return dict(sorted(found.items()))


# Of torch and of JAX -------------------------------------------------------------------------------------------------


def _of_torch(head: Mapping[str, Any], spans: list[_Event], processes: Names, threads: Names, place: str) -> Traced:
    on_device = any(one.category in ON_DEVICE for one in spans)

    def runs(one: _Event) -> bool:
        if on_device:
            return one.category in ON_DEVICE
        return one.category == OPERATOR or (one.category == ANNOTATION and one.span.name.startswith(GLOO))

    marks = [(one.category, int(found[1]), one.span) for one in spans if (found := TORCH_STEP.fullmatch(one.span.name))]
    where = ON_DEVICE_TOO if any(kind == ON_DEVICE_TOO for kind, _, _ in marks) else ANNOTATION
    group = head.get("distributedInfo")
    rank = group.get("rank") if isinstance(group, dict) else None
    base = head.get("baseTimeNanoseconds")
    return Traced(
        place=place,
        by="torch",
        rank=rank if isinstance(rank, int) and rank >= 0 else None,
        steps=_steps((number, span) for kind, number, span in marks if kind == where),
        tracks=_tracks(filter(runs, spans), processes, threads),
        base_us=float(base) / 1e3 if _is_time(base) else None,
        on_device=on_device,
    )


def _of_jax(_: Mapping[str, Any], spans: list[_Event], processes: Names, threads: Names, place: str) -> Traced:
    devices = {process for (process, _), name in processes.items() if name.startswith(DEVICE)}
    on_device = any(one.process in devices for one in spans)

    def runs(one: _Event) -> bool:
        thread = threads.get((one.process, one.thread), "")
        here = one.process in devices if on_device else True
        return here and bool(XLA_RUNS.search(thread)) and not XLA_WAITS.search(one.span.name)

    own = [
        (int(one.span.name), one.span)
        for one in spans
        if threads.get((one.process, one.thread)) == XLA_STEPS and re.fullmatch("[0-9]{1,15}", one.span.name)
    ]
    told = [(int(one.step), one.span) for one in spans if re.fullmatch("[0-9]{1,15}", str(one.step))]  # type: ignore[call-overload]
    return Traced(
        place=place,
        by="jax",
        rank=None,
        steps=_steps(iter(own or told)),
        tracks=_tracks(filter(runs, spans), processes, threads),
        base_us=None,
        on_device=on_device,
    )
