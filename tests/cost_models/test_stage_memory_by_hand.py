"""What a stage of three calls holds at every kind of action, added up by hand from round summaries of its calls.

`a`, `b` and `c` run one after another; most is asked of `b`, which has a neighbour on each side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.memory.body import BodyMemory
from meshwright.cost_models.memory.fullest import Fullest, Mix
from meshwright.cost_models.memory.in_flight import State
from meshwright.cost_models.memory.liveness import PassMemory
from meshwright.cost_models.memory.stage import Parts, StageMemory, Way
from meshwright.ir.target.workload import STACKS, Workload

NOTHING = Fullest(Mix())
PASSES = PassMemory(
    kept=Mix(),
    shared=(),
    entered=(),
    left=(),
    forward=NOTHING,
    backward=NOTHING,
    first=NOTHING,
    inputs=None,
    weight_kept=0.0,
    captured=0.0,
    beside_waiting=0.0,
    beyond=0.0,
    offloaded=0.0,
    entering_gradients=0.0,
)
EMPTY = BodyMemory(
    passes=PASSES,
    unit=0.0,
    message=0.0,
    message_routed=0.0,
    unit_gradients=0.0,
    summed=0.0,
    travelling=0.0,
    travelling_last=0.0,
    piece=0.0,
    pooled=False,
    returned=0.0,
    unit_kept=False,
    stays=False,
    cast_ahead=0.0,
    parameters=0.0,
    gradients=0.0,
    pooled_gradients=0.0,
    optimizer=0.0,
    host_state=0.0,
    stepped=0.0,
    left_behind=0.0,
    buckets=0.0,
    cut=False,
    stepping=0.0,
    slots=(),
    untrained=(),
    units=frozenset(),
    products=(),
)
TABLE, BATCH, STREAM, OTHER = (("f32", (size,), "") for size in (1, 2, 3, 4))
"""Storages, by what tells them apart."""
SLOT = (("w", 1.0, 1.0, 1.0),)
PLAIN = Way()


def made(own: Mapping[str, Any], **passes: Any) -> BodyMemory:
    return replace(EMPTY, passes=replace(PASSES, **passes), **own)


A = made(
    {"unit": 11.0, "message": 6.0, "unit_gradients": 13.0, "travelling": 17.0, "pooled": True}
    | {"gradients": 19.0, "pooled_gradients": 3.0, "slots": SLOT},
    kept=Mix(activations=100.0, logits=1.0),
    offloaded=40.0,
    shared=((TABLE, 500.0), (BATCH, 900.0)),
    left=((STREAM, 8.0),),
    captured=2.0,
    weight_kept=70.0,
    beside_waiting=10.0,
    beyond=1.0,
)
B = made(
    {"unit": 31.0, "message": 26.0, "unit_gradients": 33.0, "summed": 37.0, "travelling": 41.0, "piece": 43.0}
    | {"pooled": True, "gradients": 47.0, "pooled_gradients": 5.0, "slots": SLOT},
    kept=Mix(activations=200.0, logits=2.0),
    shared=((TABLE, 500.0),),
    entered=((STREAM, 8.0), (OTHER, 9.0)),
    forward=Fullest(Mix(1.0, 2.0, 3.0, 4.0)),
    backward=Fullest(Mix(5.0, 6.0, 7.0, 8.0), recomputing=True),
    first=Fullest(Mix(50.0, 60.0, 70.0, 80.0)),
    inputs=Fullest(Mix(15.0, 16.0, 17.0, 18.0)),
    entering_gradients=53.0,
    captured=4.0,
    weight_kept=80.0,
    beside_waiting=95.0,
    beyond=2.0,
)
C = made(
    {"unit": 61.0, "message": 56.0, "travelling": 71.0, "pooled": True, "gradients": 67.0, "pooled_gradients": 7.0},
    kept=Mix(activations=300.0),
    captured=8.0,
    weight_kept=90.0,
    beside_waiting=120.0,
    beyond=4.0,
)
HIDING = replace(STACKS["torch"], hides=("parameters",), piecewise=False, style="eager")
TORCH = Workload(global_batch=1, seq=1, stack=HIDING)


def stage(*calls: BodyMemory, repeats: int = 1, way: Way = PLAIN, workload: Workload = TORCH) -> StageMemory:
    """One run of these calls, over and over."""
    names = tuple(str(index) for index in range(len(calls)))
    run = SimpleNamespace(programs=names, repeats=repeats)
    stages: Any = SimpleNamespace(runs=(run,))
    return StageMemory(stages, dict(zip(names, calls, strict=True)), workload, frozenset([BATCH]), way)


def told(parts: Parts) -> tuple[str, float, dict[str, float]]:
    return parts.instant, parts.apart, {name: size for name, size in parts.sizes.items() if size}


BEFORE = {"activations": 560.0, "logits": 1.0, "staging": 40.0}
"""Before `b`: the table, what `a` keeps on the device, and what it keeps on the host, on its way."""


@pytest.mark.parametrize(
    ("change", "first", "back", "gathered", "apart"),
    [
        # its unit and the message that it came in
        ({}, True, False, 31 + 26, 26),
        ({}, False, False, 31 + 26, 26),
        ({"pooled": False}, False, False, 31 + 26, 0),
        # a unit that stays up to the backward pass is of no one call; it comes behind a backward pass, or first
        ({"unit_kept": True}, False, False, 0, 0),
        ({"unit_kept": True}, False, True, 26, 26),
        ({"unit_kept": True}, True, False, 26, 26),
        # what stays for all micro-batches comes once
        ({"stays": True}, False, True, 31, 0),
        ({"stays": True}, True, True, 31 + 26, 26),
    ],
)
def test_a_forward_pass_while_it_runs(
    change: dict[str, Any], first: bool, back: bool, gathered: float, apart: float
) -> None:
    own = stage(A, replace(B, **change), C)
    found = own.forward_at(own.positions[1], first, back)
    assert told(found) == (
        "loss",
        apart,
        {"activations": 561, "logits": 5, "staging": 40, "recomputed": 2, "transient": 3}
        | ({"gathered": gathered} if gathered else {}),
    )


def test_a_forward_pass_may_be_fullest_at_its_start() -> None:
    """The message before it is still there, six bytes, when little is made."""
    little = replace(B, pooled=False, passes=replace(B.passes, forward=NOTHING))
    own = stage(A, little, C)
    assert told(own.forward_at(own.positions[1], True, False)) == (
        "forward end",
        0,
        BEFORE | {"gathered": 31 + 26 + 6},
    )
    silent = replace(TORCH, stack=replace(HIDING, hides=()))
    quiet = stage(A, little, C, workload=silent)
    assert told(quiet.forward_at(quiet.positions[1], True, False))[2] == BEFORE | {"gathered": 31}
    first = own.forward_at(own.positions[0], True, False)
    assert told(first) == ("forward end", 6, {"activations": 500, "gathered": 11 + 6})
    last = own.forward_at(own.positions[2], False, False)
    assert told(last) == (
        "forward end",
        56,
        {"activations": 560 + 192, "logits": 3, "staging": 40, "gathered": 61 + 56},
    )


RUNNING = {"activations": 565.0, "logits": 9.0, "staging": 40.0, "recomputed": 6.0, "transient": 7.0}
FIRST = {"activations": 610.0, "logits": 81.0, "staging": 40.0, "recomputed": 60.0, "transient": 70.0}


@pytest.mark.parametrize(
    ("change", "graded", "apart", "instant", "sizes"),
    [
        # summed before it is scattered, beside the unit, the message for `a` and what `c` has sent
        ({}, True, 6, "backward", BEFORE | {"transient": 53 + 37, "gathered": 31 + 6 + 71 + 33}),
        ({"pooled": False}, True, 0, "backward", BEFORE | {"transient": 90, "gathered": 141}),
        ({"unit_kept": True}, True, 0, "backward", BEFORE | {"transient": 90, "gathered": 71 + 33}),
        # nothing is summed: it runs, or sets out
        ({"summed": 0.0}, True, 6, "loss", RUNNING | {"gathered": 31 + 6 + 71 + 43}),
        # the gradients of `c` are there by now
        ({}, False, 6 + 7, "loss", FIRST | {"gradients": 67, "gathered": 31 + 6 + 71 + 43}),
        # its own as soon as they are made, where no unit sends them
        (
            {"summed": 0.0, "unit_gradients": 0.0, "piece": 0.0, "entering_gradients": 5300.0},
            False,
            6 + 7 + 5,
            "backward",
            BEFORE | {"gradients": 67 + 47, "transient": 5300, "gathered": 41 + 6},
        ),
        (
            {"summed": 0.0, "entering_gradients": 5300.0},
            False,
            6 + 7,
            "backward",
            BEFORE | {"gradients": 67, "transient": 5300, "gathered": 33 + 41 + 6},
        ),
        (
            {"summed": 0.0, "entering_gradients": 5300.0, "pooled": False, "unit_gradients": 0.0},
            False,
            7 + 5,
            "backward",
            BEFORE | {"gradients": 114, "transient": 5300, "gathered": 47},
        ),
        # half of its message is of experts, which set out before the rest
        ({"summed": 0.0, "message_routed": 13.0}, True, 6, "loss", RUNNING | {"gathered": 31 + 6 + 20.5 + 43}),
        (
            {"summed": 0.0, "message_routed": 13.0, "entering_gradients": 5300.0},
            True,
            6,
            "backward",
            BEFORE | {"transient": 5300, "gathered": 37 + 6},
        ),
    ],
)
def test_a_backward_pass(
    change: dict[str, Any], graded: bool, apart: float, instant: str, sizes: dict[str, float]
) -> None:
    entering = change.get("entering_gradients", 53.0)
    words = {name: value for name, value in change.items() if name != "entering_gradients"}
    own = stage(A, replace(B, passes=replace(B.passes, entering_gradients=entering), **words), C)
    assert told(own.backward_at(own.positions[1], graded, False, False)) == (instant, apart, sizes)


def test_while_experts_run_the_rest_of_the_call_after_travels() -> None:
    """A quarter of its 56 bytes of messages are of experts: 53.25 of 71 are not."""
    routed = replace(B.passes, backward=replace(B.passes.backward, routed=True))
    own = stage(
        replace(A, message_routed=2.0),
        replace(B, summed=0.0, message_routed=13.0, passes=routed),
        replace(C, message_routed=14.0),
    )
    found = own.backward_at(own.positions[1], True, False, False)
    assert found.sizes["gathered"] == 31 + 4 + 53.25 + 43
    assert found.apart == 4


def test_units_that_stayed_are_given_back_call_by_call() -> None:
    """Ten bytes of `c` are gone while `b` runs, and twenty of `b` behind that."""
    calls = [
        replace(one, returned=size, summed=summed)
        for one, size, summed in ((A, 30.0, 0.0), (B, 20.0, 0.0), (C, 10.0, 0.0))
    ]
    own = stage(*calls)
    assert own.backward_at(own.positions[1], True, False, False).sizes["gathered"] == 31 + 6 + 71 + 43 - 10
    large = replace(calls[1], passes=replace(B.passes, entering_gradients=5300.0))
    own = stage(calls[0], large, calls[2])
    assert own.backward_at(own.positions[1], True, False, False).sizes["gathered"] == 33 + 41 + 6 - 10 - 20
    summing = stage(calls[0], replace(large, summed=37.0), calls[2])
    assert summing.backward_at(summing.positions[1], True, False, False).sizes["gathered"] == 31 + 6 + 71 + 33 - 10
    assert own.backward_at(own.positions[0], True, False, False).sizes["gathered"] == 11 + 0 + 41 - 30


@pytest.mark.parametrize(("runtime", "sums"), [("none", 600.0), ("emitted", 1200.0)])
def test_behind_the_last_pass_gradients_set_out_that_were_added_up(runtime: Any, sums: float) -> None:
    calls = (A, replace(B, summed=0.0, travelling_last=600.0), replace(C, travelling_last=500.0))
    own = stage(*calls, way=Way(runtime=runtime))
    assert own.sums_last
    position = own.positions[1]
    assert told(own.backward_at(position, True, False, True))[2] == BEFORE | {
        "transient": 53 + sums,
        "gathered": 33 + 41 + 6,
    }
    busy = replace(calls[1], passes=replace(B.passes, backward=Fullest(Mix(transient=9000.0))))
    own = stage(A, busy, calls[2], way=Way(runtime=runtime))
    found = own.backward_at(own.positions[1], True, False, True)
    assert found.sizes["gathered"] == 31 + 6 + 71 + 500 + 43
    assert own.backward_at(own.positions[1], True, False, False).sizes["gathered"] == 31 + 6 + 71 + 43
    assert not stage(*calls, way=Way(runtime="torch")).sums_last
    assert not stage(A, B, C).sums_last


CAST = tuple(replace(one, message=0.0) for one in (A, B, C))
"""Units that are cast of what every rank stores whole: 11, 31 and 61 bytes."""


def test_torchs_pipelines_leave_what_units_cast() -> None:
    """Up to the next forward pass of each; the backward pass behind one finds all of it."""
    own = stage(*CAST, way=Way(runtime="torch"))
    assert own.stays_cast == 103
    position = own.positions[1]
    assert own.forward_at(position, False, True).sizes["gathered"] == 31 + 61
    assert own.forward_at(position, False, False).sizes["gathered"] == 31
    quick = replace(CAST[1], summed=0.0)
    own = stage(CAST[0], quick, CAST[2], way=Way(runtime="torch"))
    assert own.backward_at(own.positions[1], True, True, False).sizes["gathered"] == 103 + 71 + 43
    assert own.backward_at(own.positions[1], True, False, False).sizes["gathered"] == 31 + 61 + 71 + 43
    assert stage(*CAST).stays_cast == 0
    assert stage(*CAST, way=Way(runtime="emitted")).stays_cast == 0
    assert stage(CAST[0], B, CAST[2], way=Way(runtime="torch")).stays_cast == 0
    assert stage(CAST[0], replace(CAST[1], unit_kept=True), way=Way(runtime="torch")).stays_cast == 0


def test_gradients_made_apart_linger_before_they_are_cast() -> None:
    """133 elements' bytes in four are half as many in two."""
    casts = replace(TORCH, precision="bf16")
    states = casts.states
    assert states.casts
    way = Way(runtime="torch", apart=True)
    assert stage(A, B, C, way=way, workload=casts).lingers == 133 * states.used / states.gradient
    for other in (replace(way, begins=True), replace(way, apart=False), replace(way, runtime="emitted")):
        assert stage(A, B, C, way=other, workload=casts).lingers == 0


def test_what_a_stage_keeps_in_all() -> None:
    """The table once, and the batch not at all; `b` finds eight bytes where `a` left them; forty wait on the host."""
    own = stage(A, B, C)
    assert own.shared == 500
    assert own.kept == {"activations": 500 + 60 + 192 + 300, "logits": 3}
    assert (own.kept_bytes, own.offloaded) == (1055, 40)
    assert (own.gradients, own.pooled_gradients, own.captured, own.weight_kept) == (133, 15, 14, 240)
    assert own.pooled_messages == 26 + 56
    assert stage(A, B, C, workload=replace(TORCH, stack=replace(HIDING, hides=()))).pooled_messages == 0
    assert stage(replace(A, message=900.0), replace(B, pooled=False), C).pooled_messages == 900


def test_what_waits_for_gradients_of_weights() -> None:
    """Of `c`, which has no weights, four bytes are let go, and of `b` two behind its own; fourteen are gradients."""
    own = stage(A, B, C)
    assert own.beyond() == 4 + 2
    assert own.waiting_bytes == 1052 - 6 + 14
    # 10, then 95 - 70, then 120 - 70 - 80
    assert told(own.weights) == ("backward", 0, {"activations": 1060, "transient": 25})
    begins = stage(A, B, C, way=Way(begins=True))
    assert begins.waiting_bytes == begins.kept_bytes == 1055
    fused = replace(TORCH, stack=replace(HIDING, style="fused"))
    assert stage(A, B, C, workload=fused).waiting_bytes == 240
    assert told(stage(A, B, C, workload=fused).weights) == ("backward", 0, {"activations": 240})
    assert stage(C, A, workload=TORCH).beyond() == 1
    assert stage(C, C, repeats=3).beyond() == 24


def test_what_repeats_made_apart_let_go() -> None:
    """Of two calls, over and over, each round lets seventy and eighty go before the next."""
    late = replace(B, passes=replace(B.passes, beside_waiting=100.0))
    own = stage(replace(A, passes=replace(A.passes, beside_waiting=60.0)), late, repeats=3)
    assert own.weights.sizes["transient"] == 60
    assert stage(A, late, repeats=2).weights.sizes["transient"] == 30


def test_while_gradients_of_inputs_are_made_all_that_is_kept_stays() -> None:
    """What `c` keeps is there, with the eight bytes that it captured; `b` reads its unit."""
    own = stage(A, B, C)
    found = own.inputs_at(own.positions[1], Fullest(Mix(15.0, 16.0, 17.0, 18.0)))
    assert told(found) == (
        "loss",
        0,
        {
            "activations": 560 + 15 + 300 + 8,
            "logits": 1 + 18,
            "recomputed": 16,
            "transient": 17,
            "gathered": 31,
        },
    )
    assert told(own.inputs) == told(found)
    plain = own.inputs_at(own.positions[2], NOTHING)
    assert told(plain) == ("backward", 0, {"activations": 752, "logits": 3, "gathered": 61})


def state(kind: str, *, live: int = 0, waiting: int = 0, graded: bool = False, back: bool = False) -> State:
    return State(kind, 0, (live,), (waiting,), (graded,), (back,))


def test_which_instant_an_action_is() -> None:
    own = stage(A, B, C)
    fresh, later = own.forward(True, False), own.forward(False, False)
    assert own.action(state("F"), 0, False) is fresh
    for busy in (state("F", live=1), state("F", waiting=1), state("F", graded=True)):
        assert own.action(busy, 0, False) is later
    assert own.action(state("F", live=1, back=True), 0, False) is own.forward(False, True)
    assert own.action(state("B"), 0, False) is own.backward(False, False)
    assert own.action(state("B"), 0, True) is own.backward(True, False)
    assert own.action(state("B", graded=True, back=True), 0, False) is own.backward(True, True)
    assert own.action(state("I"), 0, False) is own.inputs
    assert own.action(state("W"), 0, False) is own.weights
    begins = stage(A, B, C, way=Way(begins=True))
    assert told(begins.action(state("I"), 0, False)) == ("backward", 0, begins.kept)
    assert begins.action(state("W", graded=True), 0, False) is begins.backward(True, False)
    fused = stage(A, B, C, workload=replace(TORCH, stack=replace(HIDING, style="fused")))
    assert fused.action(state("I"), 0, False) is fused.backward(True, False)


def test_the_last_pass_of_a_step_is_the_one_with_nothing_in_flight() -> None:
    own = stage(A, replace(B, travelling_last=600.0), C)
    assert own.action(state("B", graded=True), 0, False) is own.backward(True, False, True)
    for busy in (state("B", live=1, graded=True), state("B", waiting=1, graded=True)):
        assert own.action(busy, 0, False) is own.backward(True, False, False)


def test_the_fullest_call_counts_in_the_compute_stream() -> None:
    """What lies in other streams' pools is no part of it: of `c` 56 bytes do."""
    own = stage(A, B, C)
    found = max((own.forward_at(at, True, False) for at in own.positions), key=lambda parts: parts.total - parts.apart)
    assert told(own.forward(True, False)) == told(found)
    assert found.own == found.total - found.apart


@pytest.mark.parametrize("repeats", [5, 6, 9])
def test_repeats_are_stepped_over_in_the_middle(repeats: int) -> None:
    """Two calls of 100 and 200 bytes: before the second call of the last repeat all repeats but one are kept, and the
    first call; of gradients, captured values and units behind a call those of the calls after it."""
    first = made({"unit": 3.0, "gradients": 10.0, "pooled_gradients": 2.0, "returned": 7.0}, kept=Mix(100.0, 0, 0, 1.0))
    second = made(
        {"unit": 5.0, "gradients": 30.0, "pooled_gradients": 4.0, "returned": 9.0}, kept=Mix(200.0, 0, 0, 2.0)
    )
    first = replace(first, passes=replace(first.passes, captured=1.0))
    second = replace(second, passes=replace(second.passes, captured=6.0, left=((STREAM, 8.0),)))
    first = replace(first, passes=replace(first.passes, entered=((STREAM, 8.0),)))
    own = stage(first, second, repeats=repeats, way=Way(runtime="torch"))
    assert len(own.positions) == 8
    begin, end = own.positions[1], own.positions[-1]
    assert begin.before == {"activations": 100, "logits": 1}
    assert end.before == {"activations": 292 * (repeats - 1) + 100, "logits": 3 * repeats - 2}
    assert own.kept == {"activations": 300 * repeats - 8 * (repeats - 1), "logits": 3 * repeats}
    assert (begin.gradients_after, end.gradients_after) == (40 * (repeats - 1), 0)
    assert (begin.pooled_after, end.pooled_after) == (6 * (repeats - 1), 0)
    assert (begin.returned, end.returned) == (16 * (repeats - 1), 0)
    assert (begin.units_after, end.units_after) == (8 * (repeats - 1), 0)
    assert (begin.captured_after, end.captured_after) == (7 * (repeats - 1), 0)
    middle = own.positions[4]  # of the last repeat but one
    assert middle.gradients_after == 30 + 40
    assert middle.kept_with == 292 * (repeats - 2) + 100
