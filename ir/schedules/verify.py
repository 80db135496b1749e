"""Verification of work lists: every piece of work once, and an order in which all of it can run.

`running_order` lets the groups run against each other and writes down who ran when. It is the proof that nothing waits
for ever, and what a simulator needs: with it, times follow in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.errors import WaitCircle, WorkForeign, WorkMiscounted
from meshwright.ir.program.program import Action
from meshwright.ir.schedules.work import BACKWARD, FORWARD, INPUT, WEIGHT, Shape, WorkLists, action_of, derived, encode

_ONCE = {(1, 1, 0, 0), (1, 0, 1, 1)}
"""How often F, B, I and W of one stage and micro-batch may run."""


def verify_actions(actions: tuple[tuple[Action, ...], ...], shape: Shape) -> None:
    """Check that every group does, for each of its stages and micro-batches, exactly one F and then either one B, or
    one I and then one W, and that the lists taken together never wait in a circle."""
    verify_work(encode(actions, shape))


@derived
def verify_work(work: WorkLists) -> None:
    """Check lists of codes, as `verify_actions` does actions."""
    depth = work.shape.depth
    for group, (stages, codes) in enumerate(zip(work.shape.stages, work.lists, strict=True)):
        if not _plainly_once(stages, codes, depth, work.shape.microbatches):
            _verify_counts(group, frozenset(stages), codes, depth, work.shape.microbatches)
    running_order(work)


def _plainly_once(stages: tuple[int, ...], codes: tuple[int, ...], depth: int, microbatches: int) -> bool:
    """Whether the counts are easily seen to be right: there are as many codes as there should be, and of every stage
    all F, and either all B or all I and W."""
    seen, expected = set(codes), 0
    for stage in stages:
        every = [range(4 * stage + kind, 4 * depth * microbatches, 4 * depth) for kind in range(4)]
        needed = (FORWARD, BACKWARD) if every[BACKWARD][0] in seen else (FORWARD, INPUT, WEIGHT)
        if not all(seen.issuperset(every[kind]) for kind in needed):
            return False
        expected += len(needed) * microbatches
    return len(codes) == expected


def _verify_counts(group: int, stages: frozenset[int], codes: tuple[int, ...], depth: int, microbatches: int) -> None:
    counts = [0] * (4 * depth * microbatches)
    for code in codes:
        counts[code] += 1
        if code // 4 % depth not in stages:
            raise WorkForeign(
                place=f"group {group}", cause=f"{action_of(code, depth)} is not its work", fix="remove it"
            )
    for mb in range(microbatches):
        for stage in sorted(stages):
            first = 4 * (mb * depth + stage)
            forward, full, inputs, weights = done = tuple(counts[first : first + 4])
            if done not in _ONCE:
                raise WorkMiscounted(
                    place=f"group {group}",
                    cause=f"stage {stage}, micro-batch {mb}: {forward} F, {full} B, {inputs} I, {weights} W",
                    fix="run each forward once, then B once or I and W once",
                )


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """All actions in an order in which they can run.

    `after` holds for each the 1-based number of the action of another stage whose result it waits for, 0 if there is
    none: a forward waits for the stage before, a B or I for the stage behind. What it waits for in its own group stands
    before it in the group's list.
    """

    codes: tuple[int, ...]
    groups: tuple[int, ...]
    after: tuple[int, ...]


@derived
def running_order(work: WorkLists) -> Order:
    """The order that results when every group runs until it waits, and goes on once its input is made."""
    shape, depth = work.shape, work.shape.depth
    last = depth - 1
    values, gradients = ([0] * (depth * shape.microbatches) for _ in range(2))
    at = [0] * len(work.lists)
    waiting: dict[int, int] = {}
    codes: list[int] = []
    groups: list[int] = []
    after: list[int] = []
    runnable = list(range(len(work.lists) - 1, -1, -1))
    while runnable:
        group = runnable.pop()
        one, index = work.lists[group], at[group]
        while index < len(one):
            code = one[index]
            cell, kind = code >> 2, code & 3
            needed = 0
            if kind == FORWARD:
                if cell % depth:
                    needed = values[cell - 1]
                    if not needed:
                        waiting[2 * cell - 2] = group
                        break
            elif kind in (BACKWARD, INPUT):
                if not values[cell]:
                    break
                if cell % depth != last:
                    needed = gradients[cell + 1]
                    if not needed:
                        waiting[2 * cell + 3] = group
                        break
            elif not gradients[cell]:
                break
            codes.append(code)
            groups.append(group)
            after.append(needed)
            index += 1
            if kind == FORWARD:
                values[cell] = len(codes)
                woken = waiting.pop(2 * cell, None)
            elif kind != WEIGHT:
                gradients[cell] = len(codes)
                woken = waiting.pop(2 * cell + 1, None)
            else:
                woken = None
            if woken is not None:
                runnable.append(woken)
        at[group] = index
    for group, one in enumerate(work.lists):
        if at[group] < len(one):
            raise WaitCircle(
                place=f"group {group}",
                cause=f"{action_of(one[at[group]], depth)} waits for ever",
                fix="order the actions without a circle",
            )
    return Order(tuple(codes), tuple(groups), tuple(after))
