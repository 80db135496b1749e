"""Runs of all kinds, and settings read back: what tests of every target share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from meshwright.ir.names import CONTEXT
from meshwright.ir.names.stages import shared
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS
from meshwright.planner.exchange.files import read_text_of, text_of
from meshwright.planner.exchange.options import Given
from meshwright.planner.exchange.run import FIELDS, Room, Run, settled
from meshwright.planner.exchange.target import Target, meant, said
from meshwright.planner.exchange.targets.megatron_overlaps import flags, known_of

ROOM = Room(ranks=64, per_host=8, layers=24)
AGAIN = ("none", "full", "selective", "selective:core_attn+layernorm", "selective_op", "full_layers:1", "full_layers:3")
OFFLOAD = ("none", "optimizer", "activations", "activations:2", "optimizer+activations:1")


@st.composite
def runs(draw: Any, of: Room | None = None) -> tuple[Run, Room]:
    """A run of 24 layers on 64 ranks, or of other sizes, and its room."""
    room = of or replace(ROOM, experts=draw(st.booleans()))
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    tp = pick(*_parts(room.ranks, 1, 2, 4, 8))
    pp = pick(*_parts(room.ranks // tp, 1, 2, 4))
    cp = pick(*_parts(room.ranks // (tp * pp), 1, 2))
    dp = room.ranks // (tp * pp * cp)
    vp = pick(1, 2) if 1 < pp <= room.layers // 2 else 1
    names = [n for n, own in SCHEDULES.items() if (own.vee or own.several if vp > 1 else not own.vee)]
    schedule = pick(*names) if pp > 1 else "1f1b"
    microbatches = pick(1, 2, 4) * (2 * pp if pp > 1 else 1)
    stages = shared(room.layers, pp * vp, "spread") if pp > 1 else ()
    if stages and pick(0, 1):
        stages = (stages[0] - 1, *stages[1:-1], stages[-1] + 1)
    elif stages and (room.layers + 2) % (pp * vp) == 0 and pick(0, 1):
        stages = shared(room.layers, pp * vp, "ends")
    ep = pick(1, 2, 4) if room.experts else 1
    ep = ep if dp * cp * tp % (ep * tp) == 0 else 1
    copies = dp * cp
    run = Run(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=pick(1, tp), vp=vp, zero=pick(0, 1, 2, 3),
        shard=pick(0, *(n for n in (2, 4, 8) if copies % n == 0)), regather=pick(True, False), mbs=pick(1, 2, 4),
        microbatches=microbatches, schedule=schedule, stages=stages, sp=pick(True, False), context=pick(*CONTEXT),
        zigzag=pick(True, False), recompute=pick(*AGAIN), offload=pick(*OFFLOAD), seq=4096, precision=pick(*PRECISIONS),
        optimizer=pick(*OPTIMIZERS), stack=STACKS[pick(*STACKS)], recipe=pick(*RECIPES),
    )  # fmt: skip
    return settled(run, room), room


def _parts(whole: int, *sizes: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if whole % size == 0)


def read_back(target: Target, run: Run, room: Room) -> dict[str, Any]:
    """What the settings of a run mean, by way of the text of their file."""
    text = text_of(target, said(target, run, room), ("of a test", "two lines\n of 'words' \"quoted\""))
    given = Given(place=target.file, entries=read_text_of(target, text, target.file))
    meant(target, given, replace(room, layers=0))  # before the model is known
    return meant(target, given, room)


def completed(target: Target, found: dict[str, Any], run: Run, room: Room) -> Run:
    """The run that was read back, with what the file leaves to ranks, batches and scripts."""
    missing = {name for name in FIELDS if name not in found}
    assert missing <= {"dp", "microbatches", *target.elsewhere}
    if "global_batch" in found:
        assert found["global_batch"] == run.global_batch
    known = {name: found.get(name, getattr(run, name)) for name in FIELDS}
    again = settled(Run(**known), room)
    if again.stack.style == run.stack.style and flags(again.stack, known_of(run)) == flags(run.stack, known_of(run)):
        again = replace(again, stack=run.stack)  # they differ in overlaps of which the run makes no use
    return again
