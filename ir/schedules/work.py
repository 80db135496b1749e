"""Work lists: the actions of every group of ranks in order, as whole numbers.

A list entry is one action (F, B, I or W of one stage on one micro-batch). Large schedules have 10⁵ of them, and a
search makes, checks and simulates hundreds of schedules a second, so they are held as codes

    code = 4 · (micro-batch · stages + stage) + kind        kind: F 0, B 1, I 2, W 3

`code // 4` is the *cell* of an action (one stage on one micro-batch) and `code % (4 · stages)` its *class* (one stage
and kind, whatever the micro-batch). `Action` is the same thing for people and programs; `encode` and `decode` lead from
one to the other and nothing else does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from meshwright.ir.errors import ActionSyntax, ScheduleImpossible, WorkForeign
from meshwright.ir.program.program import Action

KINDS = "FBIW"
FORWARD, BACKWARD, INPUT, WEIGHT = range(4)

_CODE = {kind: code for code, kind in enumerate(KINDS)}

_ACTION = re.compile(r"^(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)$")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a schedule: the stages of each group, in order, and the number of micro-batches."""

    stages: tuple[tuple[int, ...], ...]
    microbatches: int

    @property
    def depth(self) -> int:
        """The number of stages."""
        return 1 + max(stage for stages in self.stages for stage in stages)

    def group_of(self) -> list[int]:
        """The group of every stage."""
        found = [0] * self.depth
        for group, stages in enumerate(self.stages):
            for stage in stages:
                found[stage] = group
        return found


@dataclass(frozen=True, slots=True, eq=False)
class WorkLists:
    """For each group of a shape, the codes of its actions in order. Equal only to itself; what is `derived` from it
    lives as long as it does."""

    shape: Shape
    lists: tuple[tuple[int, ...], ...]
    known: dict[Callable[[WorkLists], Any], Any] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """How many actions there are."""
        return sum(map(len, self.lists))


R = TypeVar("R")


def derived(make: Callable[[WorkLists], R]) -> Callable[[WorkLists], R]:
    """A function of work lists that is called once for each, and remembered with them."""

    @wraps(make)
    def once(work: WorkLists) -> R:
        if make not in work.known:
            work.known[make] = make(work)
        found: R = work.known[make]
        return found

    return once


def encode(actions: Sequence[Iterable[Action]], shape: Shape) -> WorkLists:
    """The lists as codes. Entries that compute nothing (transfers, sync, step) are left out: a transfer starts when
    its value is made, wherever it stands in the list. Must: one list per group, and only stages and micro-batches that
    exist."""
    if len(actions) != len(shape.stages):
        raise ScheduleImpossible(
            place="schedule",
            cause=f"{len(actions)} action lists for {len(shape.stages)} groups of ranks",
            fix="give every group one list",
        )
    depth = shape.depth
    lists = []
    for group, one in enumerate(actions):
        codes = []
        for action in one:
            kind = _CODE.get(action.kind)
            if kind is None:
                continue
            if not (0 <= action.stage < depth and 0 <= action.microbatch < shape.microbatches):
                raise WorkForeign(place=f"group {group}", cause=f"{action} is not its work", fix="remove it")
            codes.append(4 * (action.microbatch * depth + action.stage) + kind)
        lists.append(tuple(codes))
    return WorkLists(shape, tuple(lists))


def decode(work: WorkLists) -> tuple[tuple[Action, ...], ...]:
    """The lists as actions."""
    depth = work.shape.depth
    return tuple(tuple(action_of(code, depth) for code in one) for one in work.lists)


def action_of(code: int, depth: int) -> Action:
    """The action of a code, where there are `depth` stages."""
    cell, kind = divmod(code, 4)
    microbatch, stage = divmod(cell, depth)
    return Action(KINDS[kind], stage, microbatch)


def parse_action(text: str) -> Action:
    """Read ``0F3``: stage 0, forward, micro-batch 3."""
    found = _ACTION.match(text)
    if not found:
        raise ActionSyntax(place=f"action {text!r}", cause="cannot read it", fix="write such as 0F3, 1B0, 2I1, 2W1")
    return Action(found["kind"], int(found["stage"]), int(found["microbatch"]))
