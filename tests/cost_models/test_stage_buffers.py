"""Messages that a group of ranks holds beside what its stages keep, counted for small states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost_models.memory.body import body_memory
from meshwright.cost_models.memory.in_flight import State
from meshwright.cost_models.memory.stage_buffers import StageBuffer, StageBuffers, runtime_of, stage_buffers
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import Program
from tests.cost_models.programs import DENSE, SEQ, program

ONE = StageBuffer(buffers=1000.0, within=200.0, running=300.0, left=40.0, sent=6.0)
OTHER = StageBuffer(buffers=2000.0, within=70.0, running=80.0, left=90.0, sent=13.0)


def state(kind: str, live: tuple[int, int], waiting: tuple[int, int]) -> State:
    return State(kind, 0, live, waiting, (True, True), (False, False))


@pytest.mark.parametrize(
    ("waits", "always", "beside"),
    [
        # the first stage runs a fourth micro-batch behind two in flight and one that waits; of the other one flies.
        # Forward: what it makes is not sent yet; what is in flight is kept too
        ("each", 24000, {"F": 24000 - 3 * 200 - 300 - 70 + 3 * 40 + 90}),
        # backward one more was sent
        ("each", 24000, {"B": 24000 - 3 * 200 - 300 - 70 + 4 * 40 + 90}),
        ("each", 24000, {"I": 24000 - 3 * 200 - 300 - 70 + 4 * 40 + 90}),
        ("each", 24000, {"W": 24000 - 3 * 200 - 300 - 70 + 4 * 40 + 90}),
        # gradients of those that went back: of eight four, and seven
        ("gradients at the end", 24000, {"F": 24000 - 970 + 210 + 4 * 6 + 7 * 13}),
        ("at the end", 8 * (3000 + 130), {"F": 8 * 3130 - 970 + 4 * 6 + 7 * 13}),
        ("at the end", 8 * (3000 + 130), {"B": 8 * 3130 - 970 + 4 * 6 + 7 * 13}),
    ],
)
def test_beside_an_action(waits: str, always: float, beside: dict[str, float]) -> None:
    own = StageBuffers((ONE, OTHER), 8, waits)
    assert own.always == always
    assert own.most == 8 * (1000 + 40 + 6 + 2000 + 90 + 13)
    for kind, expected in beside.items():
        assert own.beside(state(kind, (2, 1), (1, 0)), 0) == expected


def test_no_more_is_sent_back_than_there_are_micro_batches() -> None:
    own = StageBuffers((ONE,), 2, "at the end")
    full = State("F", 0, (3,), (0,), (True,), (True,))
    assert own.beside(full, 0) == 2 * 1040 - 3 * 200 - 300


def made(**names: Any) -> Program:
    return program(DENSE, Degrees(**{"microbatches": 4, **names}))


def of(one: Program, *numbers: int) -> StageBuffers | None:
    assert one.workload is not None
    return stage_buffers(one, numbers, {body.name: body_memory(body, one.workload, True) for body in one.bodies})


VALUE = SEQ * 1024 * 2
"""A micro-batch of one sequence in bf16."""
TABLE = SEQ * 128 * 2
"""One of the two rotary tables, which cross too."""


def test_what_four_stages_pass() -> None:
    """A stage in the middle receives values, tables and gradients, keeps what it made and sends gradients back."""
    one = made(pp=4, schedule="1f1b", microbatches=6)
    first, middle, last = (of(one, number) for number in (0, 1, 3))
    assert first is not None
    assert middle is not None
    assert last is not None
    assert [found.waits for found in (first, middle, last)] == ["each"] * 3
    (begin,), (between,), (end,) = first.stages, middle.stages, last.stages
    assert (begin.buffers, begin.within, begin.running, begin.left, begin.sent) == (VALUE, 0, 0, VALUE, 0)
    assert (between.buffers, between.left, between.sent) == (2 * VALUE + 2 * TABLE, VALUE, VALUE)
    # Of tables alike a stage counts one.
    assert (between.within, between.running) == (VALUE + TABLE, VALUE + TABLE)
    assert (end.buffers, end.left, end.sent) == (VALUE + 2 * TABLE, 0, VALUE)


def test_when_a_schedule_waits_for_its_messages() -> None:
    waits = {
        name: found.waits
        for name, found in (
            ("gpipe", of(made(pp=2, schedule="gpipe"), 0)),
            ("1f1b", of(made(pp=2, schedule="1f1b"), 0)),
            ("zb-h1", of(made(pp=2, schedule="zb-h1"), 0)),
            ("interleaved", of(made(pp=2, vp=2, schedule="interleaved"), 0, 2)),
        )
        if found is not None
    }
    assert waits == {
        "gpipe": "gradients at the end",
        "1f1b": "each",
        "zb-h1": "at the end",
        "interleaved": "at the end",
    }
    single = program(DENSE, Degrees(pp=2, schedule="gpipe", microbatches=1))
    alone = of(single, 0)
    assert alone is not None
    assert alone.waits == "each"


def test_stages_on_the_same_ranks_send_nothing_back() -> None:
    """In a V the second and the third stage of two groups are on the same ranks."""
    found = of(made(pp=2, vp=2, schedule="zbv"), 1, 2)
    assert found is not None
    assert [(one.left, one.sent) for one in found.stages] == [(0, VALUE), (VALUE, 0)]


def test_who_runs_a_pipeline() -> None:
    two = made(pp=2)
    assert runtime_of(two) == "torch"
    assert runtime_of(made()) == "none"
    assert of(made(), 0) is None
    assert runtime_of(replace(two, workload=None)) == "none"
    fused = program(DENSE, Degrees(pp=2, microbatches=4), stack="megatron")
    assert runtime_of(fused) == "none"
    assert runtime_of(program(DENSE, Degrees(pp=2, microbatches=4), stack="torch-compile")) == "torch"
