"""What a group holds while it works: how many micro-batches of each of its stages wait for their backward, of which
stages there are gradients, and which ones went back last.

A forward leaves saved tensors. A full backward frees all of them. An input gradient frees what only it reads; what the
weight gradient reads waits on. The first backward or weight gradient of a stage leaves its gradients, which stay; a
runtime may keep parameters gathered from a stage's backward to its next forward, or gather them for a forward anew only
behind a backward (`back`). So at every instant a group holds, per stage, `live` micro-batches with everything saved and
`pending` ones with only what W reads, and its memory is

    sum over stages of live · saved + pending · saved for W + graded · gradients + back · parameters
    + what the running action needs

which is greatest at one of the moments returned here, whatever the (non-negative) sizes: those whose counts no other
moment of the same action kind and stage exceeds or equals throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from meshwright.ir.schedules.work import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT, WorkLists, derived


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """While a group runs an action of this kind and stage, it holds this many micro-batches of each of its stages, in
    the order of the shape; that of the running action is counted (as live in F, B and I, as pending in W). And it has
    the gradients of the stages that are `graded`, which an action before this one left. The last action before this one
    on the stages that are `back` was no forward."""

    kind: str
    stage: int
    live: tuple[int, ...]
    pending: tuple[int, ...]
    graded: tuple[bool, ...]
    back: tuple[bool, ...]

    @property
    def held(self) -> int:
        """Stage micro-batches that are not quite done."""
        return sum(self.live) + sum(self.pending)


@derived
def moments(work: WorkLists) -> tuple[tuple[Moment, ...], ...]:
    """The greatest moments of every group, in order."""
    return tuple(moments_of(work, group) for group in range(len(work.lists)))


def moments_of(work: WorkLists, group: int) -> tuple[Moment, ...]:
    """The greatest moments of one group."""
    found = _by_group(work)
    if group not in found:
        found[group] = _moments(work, group)
    return found[group]


@derived
def _by_group(work: WorkLists) -> dict[int, tuple[Moment, ...]]:
    """Moments by group, of those that were asked for so far."""
    return {}


def peak(work: WorkLists) -> tuple[int, ...]:
    """The most stage micro-batches that every group holds at once."""
    return tuple(max(moment.held for moment in found) for found in moments(work))


def _moments(work: WorkLists, group: int) -> tuple[Moment, ...]:
    """Moments as packed counts, `width` bits each with a spare bit on top: adding and comparing all of them is then one
    operation, and a schedule's steady state one entry of a set."""
    stages, depth = work.shape.stages[group], work.shape.depth
    width = work.shape.microbatches.bit_length() + 1
    fields = 4 * len(stages)
    unit = {stage: 1 << (width * at) for at, stage in enumerate(stages)}
    shift = width * len(stages)
    classes = 4 * depth
    enter, leave = [0] * classes, [0] * classes
    for stage, one in unit.items():
        enter[4 * stage + FORWARD] = one
        leave[4 * stage + BACKWARD] = -one
        leave[4 * stage + INPUT] = (one << shift) - one
        leave[4 * stage + WEIGHT] = -(one << shift)
    change = [entered + left for entered, left in zip(enter, leave, strict=True)]
    actions = [code % classes for code in work.lists[group]]
    changes = [change[of] for of in actions]
    for at, of in _turns(actions, stages):
        one = unit[of // 4] << (3 * shift)
        changes[at] += -one if of % 4 == FORWARD else one
    for stage, one in unit.items():
        changes[_first_graded(actions, stage)] += one << (2 * shift)
    before = accumulate(changes, initial=0)
    seen: list[set[int]] = [set() for _ in range(classes)]
    for of, held in set(zip(actions, before, strict=False)):
        seen[of].add(held + enter[of])
    spare = sum(1 << (width * (field + 1) - 1) for field in range(fields))
    found = []
    for of, states in enumerate(seen):
        for state in _greatest(states, spare):
            counts = [state >> (width * field) & ((1 << width) - 1) for field in range(fields)]
            live, pending, *flags = (tuple(counts[at : at + len(stages)]) for at in range(0, fields, len(stages)))
            graded, back = (tuple(map(bool, one)) for one in flags)
            found.append(Moment(KINDS[of % 4], of // 4, live, pending, graded, back))
    return tuple(sorted(found))


def _turns(actions: list[int], stages: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Actions that go another way than the one before them on their stage, with their places. The first one, a forward,
    does not."""
    forwards = {4 * stage + FORWARD for stage in stages}
    goes = dict.fromkeys(stages, True)
    for at, of in enumerate(actions):
        forward = of in forwards
        if goes[of // 4] is not forward:
            goes[of // 4] = forward
            yield at, of


def _first_graded(actions: list[int], stage: int) -> int:
    """The place of the action that first leaves gradients of a stage."""
    return min(actions.index(of) for of in (4 * stage + BACKWARD, 4 * stage + WEIGHT) if of in actions)


def _greatest(states: set[int], spare: int) -> list[int]:
    """Moments that no other one exceeds or equals in every field: none of the spare bits is borrowed."""
    kept: list[int] = []
    for state in sorted(states, reverse=True):
        if all(((other | spare) - state) & spare != spare for other in kept):
            kept.append(state)
    return kept
