"""Trace events of a step: valid by the format, nested, without gaps, and as long as the step is predicted to be."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import pytest

from meshwright.planner.report.facts.timeline import KINDS
from meshwright.planner.report.trace import GROUPS, LINKS, trace_text
from tests.planner.report.checked import timeline
from tests.planner.report.test_timeline import PIPELINES, of, replace_hides, stepped

NS = 1e-3
"""Microseconds: times are written to a nanosecond."""


def endless(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON, and Perfetto refuses it")


KEYS = {"X": {"name", "cat", "ph", "pid", "tid", "ts", "dur"}, "M": {"name", "ph", "pid", "tid", "ts", "args"}}
"""Of each kind of event; slices may have `args`, too."""


def read(text: str, kinds: Collection[str] = KINDS) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a trace has beside its events, and these, each with what the format asks of its kind. Every process and
    thread that has slices is named, once."""
    found = json.loads(text, parse_constant=endless)
    assert set(found) == {"otherData", "displayTimeUnit", "traceEvents"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    events = found["traceEvents"]
    for what, own in (("process_name", ("pid",)), ("thread_name", ("pid", "tid"))):
        named = [tuple(event[key] for key in own) for event in events if event["name"] == what and event["ph"] == "M"]
        assert len(named) == len(set(named))
        assert {tuple(event[key] for key in own) for event in events if event["ph"] == "X"} <= set(named)
    for event in events:
        assert event["ph"] in ("X", "M")
        assert set(event) - {"args"} == KEYS[event["ph"]] - {"args"}
        assert isinstance(event.get("args", {}), dict)
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["cat"] in kinds
        else:
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert set(event["args"]) == ({"sort_index"} if event["name"].endswith("index") else {"name"})
    return found, found["traceEvents"]


def tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, dict[str, Any]]]]:
    """Slices by track, each with its depth; one that overlaps another without lying inside it is refused."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    nested = {}
    for track, own in found.items():
        open_until: list[float] = []
        nested[track] = []
        for event in sorted(own, key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= event["ts"] + NS / 2:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + NS / 2, event
            nested[track].append((len(open_until), event))
            open_until.append(end)
    return nested


@pytest.mark.parametrize("pins", PIPELINES)
def test_every_track_of_a_group_adds_up_to_the_step(small: str, pins: str) -> None:
    step = stepped(small, pins)
    found, events = read(trace_text(of(step), "small.toml"))
    step_us = step.prediction().step_time_s * 1e6
    assert found["otherData"]["step_time_us"] == pytest.approx(step_us)
    own = {tid: slices for (pid, tid), slices in tracks(events).items() if pid == GROUPS}
    assert len(own) == len(step.program.actions)
    for slices in own.values():
        assert sum(one["dur"] for depth, one in slices if depth == 0) == pytest.approx(step_us, abs=NS * len(slices))
        assert max(depth for depth, _ in slices) <= 1
    named = {event["tid"] for event in events if event["name"] == "thread_name" and event["pid"] == GROUPS}
    assert named == set(own)


def test_parts_of_an_action_fill_it() -> None:
    _, events = read(trace_text(timeline(groups=3, microbatches=4), "m"))
    for slices in tracks(events).values():
        assert {one["cat"] for depth, one in slices if depth} == {"forward", "backward", "communication"}
        inside = sum(one["dur"] for depth, one in slices if depth == 1)
        actions = sum(one["dur"] for depth, one in slices if depth == 0 and one["cat"] != "bubble")
        assert inside == pytest.approx(actions)


def test_a_trace_by_hand() -> None:
    """Two groups, one micro-batch: a second forward and two back each, the second group a second later."""
    _, events = read(trace_text(timeline(groups=2, microbatches=1), "m"))
    shown = [
        (one["tid"], one["name"], one["cat"], one["ts"], one["dur"])
        for slices in tracks(events).values()
        for depth, one in slices
        if depth == 0
    ]
    assert shown == [
        (0, "0F0", "forward", 0, 1e6),
        (0, "0B0", "backward", 1e6, 2e6),
        (0, "wait", "bubble", 3e6, 1e6),
        (1, "wait", "bubble", 0, 1e6),
        (1, "1F0", "forward", 1e6, 1e6),
        (1, "1B0", "backward", 2e6, 2e6),
    ]


def test_transfers_beside_compute_have_tracks_of_their_own(small: str) -> None:
    step = replace_hides(stepped(small, "pp=4,dp=2,mbs=1,schedule=1f1b"))
    _, events = read(trace_text(of(step), "m"))
    links = {tid: slices for (pid, tid), slices in tracks(events).items() if pid == LINKS}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == LINKS}
    assert sorted(names.values()) == sorted(
        f"group {a} to group {b}" for a in range(4) for b in range(4) if abs(a - b) == 1
    )
    for slices in links.values():
        assert len(slices) == step.program.microbatches
        assert all(depth == 0 for depth, _ in slices)


def test_a_models_name_is_harmless() -> None:
    name = '</script>"\\\n\ud800'
    found, _ = read(trace_text(timeline(), name).encode("utf-8").decode("utf-8"))
    assert found["otherData"]["model"] == name
