"""What a group of ranks holds beside the action that it runs, at every instant that may be its fullest.

`meshwright.ir.schedules.moments` says how many micro-batches of each stage wait for their backward pass, or for their
weight gradients alone. Gradients complicate it: where they exist only from a stage's first backward pass on, an instant
with all micro-batches in flight has none yet, and the one after has them and a micro-batch less. Either may be fuller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.ir.program import Program
from meshwright.ir.schedules import Moment, WorkLists, derived, moments, work_of


@dataclass(frozen=True, slots=True)
class State:
    """What is held beside an action: micro-batches in flight, those that wait for weight gradients, and whether there
    are gradients yet, for each of the group's stages in the order of their numbers."""

    kind: str
    stage: int
    live: tuple[int, ...]
    waiting: tuple[int, ...]
    graded: tuple[bool, ...]


def states_of(program: Program) -> tuple[tuple[State, ...], ...]:
    """For every group of ranks."""
    return _states(work_of(program))


@derived
def _states(work: WorkLists) -> tuple[tuple[State, ...], ...]:
    return tuple(
        tuple(dict.fromkeys(state for moment in found for state in _of(moment, stages, work.shape.microbatches)))
        for found, stages in zip(moments(work), work.shape.stages, strict=True)
    )


def _of(moment: Moment, stages: tuple[int, ...], microbatches: int) -> Iterator[State]:
    own = stages.index(moment.stage)
    held = [live + pending for live, pending in zip(moment.live, moment.pending, strict=True)]
    live, waiting = list(moment.live), list(moment.pending)
    if moment.kind == "W":
        waiting[own] -= 1
    else:
        live[own] -= 1
    graded = tuple(count < microbatches for count in held)
    yield State(moment.kind, moment.stage, tuple(live), tuple(waiting), graded)
    if not all(graded) and microbatches > 1:
        late = [not has and count > 0 for count, has in zip(waiting, graded, strict=True)]
        after = tuple(count - gone for count, gone in zip(waiting, late, strict=True))
        later = tuple(
            max(0, count - (not has and not gone)) for count, has, gone in zip(live, graded, late, strict=True)
        )
        yield State(moment.kind, moment.stage, later, after, (True,) * len(stages))
