"""What a group of ranks holds beside the action that it runs, at every instant that may be its fullest: the moments of
`meshwright.ir.schedules`, without the micro-batch of the action itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.program.program import Program
from meshwright.ir.schedules import Moment, WorkLists, derived, moments, work_of


@dataclass(frozen=True, slots=True)
class State:
    """The contents of memory beside an action: micro-batches in flight, those that wait for weight gradients, whether
    there are gradients yet, and whether the last action before was no forward, for each of the group's stages in the
    order of their numbers."""

    kind: str
    stage: int
    live: tuple[int, ...]
    waiting: tuple[int, ...]
    graded: tuple[bool, ...]
    back: tuple[bool, ...]


def states_of(program: Program) -> tuple[tuple[State, ...], ...]:
    """The states of every group of ranks."""
    return _states(work_of(program))


@derived
def _states(work: WorkLists) -> tuple[tuple[State, ...], ...]:
    return tuple(
        tuple(_of(moment, stages) for moment in found)
        for found, stages in zip(moments(work), work.shape.stages, strict=True)
    )


def _of(moment: Moment, stages: tuple[int, ...]) -> State:
    own = stages.index(moment.stage)
    live, waiting = list(moment.live), list(moment.pending)
    (waiting if moment.kind == "W" else live)[own] -= 1
    return State(moment.kind, moment.stage, tuple(live), tuple(waiting), moment.graded, moment.back)
