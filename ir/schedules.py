"""Pipeline schedules as per-group lists of actions.

A schedule says in which order one group of ranks runs forward and backward of its stages over the micro-batches. Here
only the order of compute is made; `with_transfers` then adds a receive before, and a send after, every action whose
value crosses to another group. Virtual stages are numbered along the model; group g of G holds stages g, g+G, g+2G, …
when interleaved.

GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019, non-interleaved), interleaved 1F1B (Narayanan et al. 2021).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.ir.errors import (
    ActionSyntax,
    ScheduleImpossible,
    ScheduleUnknown,
    WaitCircle,
    WorkForeign,
    WorkMiscounted,
)
from meshwright.ir.program import Action

_ACTION = re.compile(r"^(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)$")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule is made for: which stages each group holds, in order, and how many micro-batches run."""

    stages: tuple[tuple[int, ...], ...]
    microbatches: int


def compute_actions(name: str, shape: Shape, custom: Sequence[Sequence[str]] = ()) -> tuple[tuple[Action, ...], ...]:
    """For each group, its forward and backward actions in order."""
    if name == "custom":
        return tuple(tuple(parse_action(text) for text in texts) for texts in custom)
    maker = SCHEDULES.get(name)
    if maker is None:
        raise ScheduleUnknown(
            place=f"schedule {name!r}",
            cause="there is no such schedule",
            fix=f"use one of {', '.join(SCHEDULES)}, custom",
        )
    return maker(shape)


def parse_action(text: str) -> Action:
    """Read ``0F3``: stage 0, forward, micro-batch 3."""
    found = _ACTION.match(text)
    if not found:
        raise ActionSyntax(place=f"action {text!r}", cause="cannot read it", fix="write such as 0F3, 1B0, 2I1, 2W1")
    return Action(found["kind"], int(found["stage"]), int(found["microbatch"]))


def gpipe(shape: Shape) -> tuple[tuple[Action, ...], ...]:
    """All forwards, then all backwards."""
    return tuple(
        (
            *(Action("F", stage, mb) for mb in range(shape.microbatches) for stage in stages),
            *(Action("B", stage, mb) for mb in range(shape.microbatches) for stage in reversed(stages)),
        )
        for stages in shape.stages
    )


def one_f_one_b(shape: Shape) -> tuple[tuple[Action, ...], ...]:
    """Fill the pipe, then alternate one forward and one backward, then drain."""
    _single(shape, "1f1b")
    depth = len(shape.stages)
    lists = []
    for position, (stage,) in enumerate(shape.stages):
        warmup = min(depth - 1 - position, shape.microbatches)
        actions = [Action("F", stage, mb) for mb in range(warmup)]
        for mb in range(shape.microbatches - warmup):
            actions += [Action("F", stage, warmup + mb), Action("B", stage, mb)]
        actions += [Action("B", stage, mb) for mb in range(shape.microbatches - warmup, shape.microbatches)]
        lists.append(tuple(actions))
    return tuple(lists)


def interleaved(shape: Shape) -> tuple[tuple[Action, ...], ...]:
    """Interleaved 1F1B: micro-batches in rounds of G, each round through all virtual stages of a group in turn."""
    groups = len(shape.stages)
    virtual = len(shape.stages[0])
    if any(len(stages) != virtual for stages in shape.stages):
        raise ScheduleImpossible(
            place="schedule interleaved", cause="groups hold unequal numbers of stages", fix="give every group as many"
        )
    if shape.microbatches % groups:
        raise ScheduleImpossible(
            place="schedule interleaved",
            cause=f"{shape.microbatches} micro-batches on {groups} groups",
            fix=f"use a multiple of {groups}",
        )
    total = shape.microbatches * virtual
    lists = []
    for position, stages in enumerate(shape.stages):

        def forward(step: int, stages: tuple[int, ...] = stages) -> Action:
            round_, within = divmod(step, groups * virtual)
            chunk, mb = divmod(within, groups)
            return Action("F", stages[chunk], round_ * groups + mb)

        def backward(step: int, stages: tuple[int, ...] = stages) -> Action:
            round_, within = divmod(step, groups * virtual)
            chunk, mb = divmod(within, groups)
            return Action("B", stages[virtual - 1 - chunk], round_ * groups + mb)

        warmup = min(total, 2 * (groups - 1 - position) + (virtual - 1) * groups)
        actions = [forward(step) for step in range(warmup)]
        for step in range(total - warmup):
            actions += [forward(warmup + step), backward(step)]
        actions += [backward(step) for step in range(total - warmup, total)]
        lists.append(tuple(actions))
    return tuple(lists)


SCHEDULES: Mapping[str, Callable[[Shape], tuple[tuple[Action, ...], ...]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}
"""Every named schedule, one line each."""


def _single(shape: Shape, name: str) -> None:
    if any(len(stages) != 1 for stages in shape.stages):
        raise ScheduleImpossible(
            place=f"schedule {name}",
            cause="a group holds several stages",
            fix="use interleaved, or one stage per group",
        )


def with_transfers(
    actions: tuple[tuple[Action, ...], ...], forward: frozenset[tuple[int, int]], backward: frozenset[tuple[int, int]]
) -> tuple[tuple[Action, ...], ...]:
    """Add sends and receives. `forward` holds the (from, to) stage pairs that values cross, `backward` those that
    gradients cross (the same pairs, where anything differentiable crosses)."""
    return tuple(tuple(step for action in one for step in _around(action, forward, backward)) for one in actions)


def _around(action: Action, forward: frozenset[tuple[int, int]], backward: frozenset[tuple[int, int]]) -> list[Action]:
    stage, mb = action.stage, action.microbatch
    around: list[Action] = []
    if action.kind == "F":
        around += [Action("recv_F", stage, mb, peer) for peer, to in sorted(forward) if to == stage]
        around.append(action)
        around += [Action("send_F", stage, mb, to) for from_, to in sorted(forward) if from_ == stage]
    elif action.kind in ("B", "I"):
        around += [Action("recv_B", stage, mb, to) for from_, to in sorted(backward) if from_ == stage]
        around.append(action)
        around += [Action("send_B", stage, mb, peer) for peer, to in sorted(backward) if to == stage]
    else:
        around.append(action)
    return around


def verify_actions(actions: tuple[tuple[Action, ...], ...], shape: Shape) -> None:
    """Must: every group does, for each of its stages and micro-batches, exactly one F and then either one B, or one I
    and then one W, and the lists taken together never wait in a circle."""
    if len(actions) != len(shape.stages):
        raise ScheduleImpossible(
            place="schedule",
            cause=f"{len(actions)} action lists for {len(shape.stages)} groups of ranks",
            fix="give every group one list",
        )
    done: set[Action] = set()
    at = [0] * len(actions)
    last = max(stage for stages in shape.stages for stage in stages)
    for group, (stages, one) in enumerate(zip(shape.stages, actions, strict=True)):
        _verify_counts(group, stages, one, shape.microbatches)
    progress = True
    while progress:
        progress = False
        for group, one in enumerate(actions):
            while at[group] < len(one) and _ready(one[at[group]], done, last):
                done.add(one[at[group]])
                at[group] += 1
                progress = True
    for group, one in enumerate(actions):
        if at[group] < len(one):
            raise WaitCircle(
                place=f"group {group}",
                cause=f"{one[at[group]]} waits for ever",
                fix="order the actions without a circle",
            )


def _verify_counts(group: int, stages: tuple[int, ...], actions: tuple[Action, ...], microbatches: int) -> None:
    seen = Counter(actions)
    for stage in stages:
        for mb in range(microbatches):
            full, forward = seen.pop(Action("B", stage, mb), 0), seen.pop(Action("F", stage, mb), 0)
            halves = (seen.pop(Action("I", stage, mb), 0), seen.pop(Action("W", stage, mb), 0))
            if forward != 1 or (full, *halves) not in ((1, 0, 0), (0, 1, 1)):
                raise WorkMiscounted(
                    place=f"group {group}",
                    cause=f"stage {stage}, micro-batch {mb}: {forward} F, {full} B, {halves[0]} I, {halves[1]} W",
                    fix="run each forward once, then B once or I and W once",
                )
    if seen:
        raise WorkForeign(place=f"group {group}", cause=f"{next(iter(seen))} is not its work", fix="remove it")


def _ready(action: Action, done: set[Action], last: int) -> bool:
    stage, mb = action.stage, action.microbatch
    if action.kind == "F":
        return stage == 0 or Action("F", stage - 1, mb) in done
    if action.kind == "W":
        return Action("I", stage, mb) in done
    after = stage == last or Action("B", stage + 1, mb) in done or Action("I", stage + 1, mb) in done
    return after and Action("F", stage, mb) in done
