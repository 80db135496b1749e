"""Folds by hand: which calls a small one makes, how it is wired, and what it is when written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright.ir.errors import FoldBroken, FoldInstances, FoldPort, MeshwrightError
from meshwright.ir.graph.fold import (
    Body,
    Fold,
    FromInput,
    FromPrevious,
    FromSegment,
    Segment,
    joined,
    shortened,
    unfolded,
)
from meshwright.ir.graph.graph import Graph
from meshwright.ir.graph.text import graph_text, parse_fold, parse_graph

TEXT = """fold
  input %t: i64[2]
  input %m: f32[2]
  body embed
    input %t: i64[2]
    param %w: f32[4, 8] = "w"
    frozen %f: f32[8] = "f"
    %h: f32[2, 8] = embedding(%t, %w) @emb <m.py:1>
    %r: f32[2] = rope(%t, %f) no_grad
    output %h, %r
  body a
    input %x: f32[2, 8]
    input %r: f32[2]
    param %w: f32[8, 8] = "q.w"
    buffer %n: f32[] = "n"
    %y: f32[2, 8], %c: f32[] = one(%x, %w, %r) {k=1} @q <m.py:2>
    update "n" = %c by mean
    output %y
  body b
    input %x: f32[2, 8]
    input %m: f32[2]
    %s: f32[2] = first(%x, %m)
    %y: f32[2, 8] = view(%x) alias=0
    output %s, %y
  body head
    input %x: f32[2, 8]
    input %early: f32[2, 8]
    param %w: f32[4, 8] = "w", "head.w"
    frozen %f: f32[8] = "f"
    %l: f32[] = loss(%x, %early, %w, %f)
    output %x, %l
    loss %l
  segment 0 glue embed x 1
    paths ""
    entry %t
    wire 0
  segment 1 a, b x 3
    paths "l."[0..5]
    entry previous.0, segment 0[0].1
    wire 0 previous.1, segment 0[0].1
    wire 1 previous.0, %m
  segment 2 glue head x 1
    paths ""
    entry previous.1, segment 1[0].0
    wire 0
  output segment 2[0].0, previous.1, segment 1[1].0
  loss 1
"""
FOLD = parse_fold(TEXT)


def test_calls_run_through_every_period_in_turn() -> None:
    assert [(one.segment, one.position, one.repeat, one.body.name, one.path, one.period) for one in FOLD.calls()] == [
        (0, 0, 0, "embed", "", 1),
        (1, 0, 0, "a", "l.0", 2),
        (1, 1, 0, "b", "l.1", 2),
        (1, 0, 1, "a", "l.2", 2),
        (1, 1, 1, "b", "l.3", 2),
        (1, 0, 2, "a", "l.4", 2),
        (1, 1, 2, "b", "l.5", 2),
        (2, 0, 0, "head", "", 1),
    ]
    rope, mask = FromSegment(0, 0, 1), FromInput("m")
    assert [one.sources for one in FOLD.calls()] == [
        (FromInput("t"),),
        (FromPrevious(0), rope),
        (FromPrevious(0), mask),
        (FromPrevious(1), rope),
        (FromPrevious(0), mask),
        (FromPrevious(1), rope),
        (FromPrevious(0), mask),
        (FromPrevious(1), FromSegment(1, 0, 0)),
    ]
    assert FOLD.instances == ("l.0", "l.1", "l.2", "l.3", "l.4", "l.5")
    assert [(one.repeats, one.calls) for one in FOLD.segments] == [(1, 1), (3, 6), (1, 1)]
    assert [FOLD.count(name) for name in ("embed", "a", "b", "head", "c")] == [1, 3, 3, 1, 0]
    twice = replace(FOLD.segments[1], period=("b", "b"))
    assert [one.period.count("b") * one.repeats for one in (FOLD.segments[1], twice)] == [3, 6]


def test_trained_parameters_of_one_name_are_tied_frozen_ones_are_not() -> None:
    assert FOLD.tied == (("w", ((0, "w"), (7, "w"))),)


def test_paths_join_where_there_are_two() -> None:
    assert [joined(*one) for one in (("a", "b"), ("", "b"), ("a", ""), ("", ""))] == ["a.b", "b", "a", ""]


def test_a_shorter_fold_keeps_the_first_repeats() -> None:
    assert [one.paths for one in shortened(FOLD, 2).segments] == [("",), ("l.0", "l.1", "l.2", "l.3"), ("",)]
    assert shortened(FOLD, 3) == FOLD


UNFOLDED = """graph
  input %t: i64[2]
  input %m: f32[2]
  param %p.w: f32[4, 8] = "w"
  frozen %p.f: f32[8] = "f"
  param %"p.l.0.q.w": f32[8, 8] = "l.0.q.w"
  buffer %p.l.0.n: f32[] = "l.0.n"
  param %"p.l.2.q.w": f32[8, 8] = "l.2.q.w"
  buffer %p.l.2.n: f32[] = "l.2.n"
  %c0.h: f32[2, 8] = embedding(%t, %p.w) @emb <m.py:1>
  %c0.r: f32[2] = rope(%t, %p.f) no_grad
  %c1.y: f32[2, 8], %c1.c: f32[] = one(%c0.h, %p.l.0.q.w, %c0.r) {k=1} @l.0.q <m.py:2>
  %c2.s: f32[2] = first(%c1.y, %m) @l.1
  %c2.y: f32[2, 8] = view(%c1.y) @l.1 alias=0
  %c3.y: f32[2, 8], %c3.c: f32[] = one(%c2.y, %p.l.2.q.w, %c0.r) {k=1} @l.2.q <m.py:2>
  %c4.s: f32[2] = first(%c3.y, %m) @l.3
  %c4.y: f32[2, 8] = view(%c3.y) @l.3 alias=0
  %c5.l: f32[] = loss(%c4.y, %c3.y, %p.w, %p.f)
  update "l.0.n" = %c1.c by mean
  update "l.2.n" = %c3.c by mean
  output %c4.y, %c5.l, %c4.s
  loss %c5.l
"""


def test_a_fold_written_out() -> None:
    """Two repeats, written by hand: values by their call, parameters once, each under the first name it was met by."""
    made = unfolded(shortened(FOLD, 2))
    assert graph_text(made.graph) == graph_text(parse_graph(UNFOLDED))
    assert made.names[4] == {"x": "c3.y", "m": "m", "s": "c4.s", "y": "c4.y"}
    assert made.names[5] == {"x": "c4.y", "early": "c3.y", "w": "p.w", "f": "p.f", "l": "c5.l"}
    assert unfolded(replace(shortened(FOLD, 2), loss=None)).graph.loss is None


def segment(at: int, **changed: object) -> Fold:
    segments = list(FOLD.segments)
    segments[at] = replace(segments[at], **changed)  # type: ignore[arg-type]
    return replace(FOLD, segments=tuple(segments))


LAYER, HEAD = FOLD.segments[1], FOLD.segments[2]
REFUSED: dict[str, tuple[Callable[[], object], type[MeshwrightError], str, str]] = {
    "no period": (lambda: Segment((), ("a",), (), ()), FoldInstances, "segment ()", "1 instances of a period of 0"),
    "no path": (lambda: segment(1, paths=()), FoldInstances, "segment ('a', 'b')", "0 instances of a period of 2"),
    "half a period": (
        lambda: segment(1, paths=("l.0",)), FoldInstances, "segment ('a', 'b')", "1 instances of a period of 2",
    ),
    "a wiring short": (lambda: segment(1, wires=LAYER.wires[:1]), FoldBroken, "segment ('a', 'b')", "1 wirings"),
    "a wiring more": (lambda: segment(2, wires=((), ())), FoldBroken, "segment ('head',)", "2 wirings"),
    "a body twice": (
        lambda: replace(FOLD, bodies=(*FOLD.bodies, FOLD.bodies[1])), FoldBroken, "fold",
        "bodies ['embed', 'a', 'b', 'head', 'a'], used ['a', 'b', 'embed', 'head']",
    ),
    "a body that nothing runs": (
        lambda: replace(FOLD, bodies=(*FOLD.bodies, Body("c", Graph({}, (), (), (), ())))), FoldBroken, "fold",
        "bodies ['embed', 'a', 'b', 'head', 'c'], used ['a', 'b', 'embed', 'head']",
    ),
    "a path twice": (
        lambda: segment(1, paths=("l.0", "l.1", "l.0", "l.2")), FoldInstances, "fold",
        "a module path is used by two instances",
    ),
    "a source short": (
        lambda: segment(2, entry=HEAD.entry[:1]), FoldBroken, "segment 2, head", "1 sources for 2 inputs",
    ),
    "another type": (
        lambda: segment(2, entry=(FromPrevious(1), FromPrevious(0))), FoldPort, "segment 2, head, input %early",
        "previous.0 is f32[2], not f32[2, 8]",
    ),
    "an input of another type": (
        lambda: segment(0, entry=(FromInput("m"),)), FoldPort, "segment 0, embed, input %t",
        "input m is f32[2], not i64[2]",
    ),
    "a later call of another type": (
        lambda: segment(1, wires=((FromPrevious(0), FromSegment(0, 0, 1)), LAYER.wires[1])), FoldPort,
        "segment 1, a, input %x", "previous.0 is f32[2], not f32[2, 8]",
    ),
    "a second of the period of another type": (
        lambda: segment(1, wires=(LAYER.wires[0], (FromPrevious(0), FromSegment(0, 0, 0)))), FoldPort,
        "segment 1, b, input %m", "segment 0[0].0 is f32[2, 8], not f32[2]",
    ),
    "nothing before": (
        lambda: segment(0, entry=(FromPrevious(0),)), FoldBroken, "segment 0", "no such source: previous.0",
    ),
    "no such input": (lambda: segment(0, entry=(FromInput("u"),)), FoldBroken, "segment 0", "no such source: input u"),
    "its own segment": (
        lambda: segment(2, entry=(FromPrevious(1), FromSegment(2, 0, 0))), FoldBroken, "segment 2",
        "no such source: segment 2[0].0",
    ),
    "a segment before the first": (
        lambda: segment(2, entry=(FromPrevious(1), FromSegment(-2, 0, 0))), FoldBroken, "segment 2",
        "no such source: segment -2[0].0",
    ),
    "a position before the first": (
        lambda: segment(2, entry=(FromPrevious(1), FromSegment(1, -2, 0))), FoldBroken, "segment 2",
        "no such source: segment 1[-2].0",
    ),
    "an output before the first": (
        lambda: segment(2, entry=(FromPrevious(-1), FromSegment(1, 0, 0))), FoldBroken, "segment 2",
        "no such source: previous.-1",
    ),
    "no such output": (
        lambda: replace(FOLD, outputs=(FromPrevious(2),)), FoldBroken, "segment 3", "no such source: previous.2",
    ),
}  # fmt: skip


def test_folds_that_do_not_fit_together_are_refused() -> None:
    for name, (made, kind, place, cause) in REFUSED.items():
        with pytest.raises(kind) as refusal:
            made()
        assert (refusal.value.place, refusal.value.cause) == (place, cause), name


def test_one_repeat_needs_no_wire_for_the_next() -> None:
    """The first call of a period that runs once has only its entry; others have their wires all the same."""
    once = segment(1, paths=("l.0", "l.1"), wires=((), LAYER.wires[1]))
    assert [one.path for one in once.calls()] == ["", "l.0", "l.1", ""]
    with pytest.raises(FoldBroken, match="0 sources for 2 inputs"):
        segment(1, paths=("l.0", "l.1"), wires=(LAYER.wires[0], ()))
