"""Every named schedule, with its conditions.

A schedule fixes more than an order: which stages a group holds (in a loop, g, g + G, g + 2G, …, or folded to a V, g and
2G - 1 - g), how many, and how many micro-batches it needs. `stage_groups` and `SCHEDULES` say so, so that whoever
writes decisions can ask before, and `work_lists` refuses what does not fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.ir.errors import ScheduleImpossible, ScheduleUnknown
from meshwright.ir.program.program import Action
from meshwright.ir.schedules.loops import Lists, eager_one_f_one_b, gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from meshwright.ir.schedules.vees import dualpipe_v, v_half, v_min, zb_v
from meshwright.ir.schedules.work import Shape, WorkLists, decode, encode, parse_action

CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One schedule and its conditions."""

    write: Callable[[Shape], Lists]
    vee: bool = False
    """Stages folded to a V, two per group; else in a loop."""
    several: bool = False
    """A group of a loop may hold several stages."""
    splits: bool = False
    """Weight gradients run apart from input gradients: what runs it must be able to."""
    least_per_group: int = 0
    """Micro-batches must be at least this many times the groups (and one)."""
    multiple: bool = False
    """Micro-batches must be a multiple of the groups."""

    def stage_groups(self, groups: int, virtual: int) -> tuple[tuple[int, ...], ...]:
        if self.vee:
            return tuple((group, 2 * groups - 1 - group) for group in range(groups))
        return tuple(tuple(range(group, groups * virtual, groups)) for group in range(groups))


SCHEDULES: Mapping[str, Named] = {
    "gpipe": Named(write=gpipe, several=True),
    "1f1b": Named(write=one_f_one_b),
    "eager-1f1b": Named(write=eager_one_f_one_b),
    "interleaved": Named(write=interleaved, several=True, multiple=True),
    "zb-h1": Named(write=zb_h1, splits=True),
    "zb-h2": Named(write=zb_h2, splits=True),
    "zbv": Named(write=zb_v, vee=True, splits=True),
    "v-half": Named(write=v_half, vee=True, splits=True),
    "v-min": Named(write=v_min, vee=True, splits=True),
    "dualpipev": Named(write=dualpipe_v, vee=True, splits=True, least_per_group=2),
}
"""Every named schedule, one line each."""


def named(name: str) -> Named:
    """The schedule of a name."""
    if name not in SCHEDULES:
        raise ScheduleUnknown(
            place=f"schedule {name!r}",
            cause="there is no such schedule",
            fix=f"use one of {', '.join(SCHEDULES)}, {CUSTOM}",
        )
    return SCHEDULES[name]


def stage_groups(name: str, groups: int, virtual: int) -> tuple[tuple[int, ...], ...]:
    """The stages of each group, where every group holds `virtual` of them. A custom schedule is taken to loop."""
    if name == CUSTOM:
        return Named(write=gpipe).stage_groups(groups, virtual)
    schedule = named(name)
    _check_virtual(name, schedule, virtual)
    return schedule.stage_groups(groups, virtual)


def check_schedule(name: str, shape: Shape) -> None:
    """Check that a schedule gets the stages per group that it is made for, in their order, and enough micro-batches."""
    schedule, groups = named(name), len(shape.stages)
    virtual = len(shape.stages[0])
    if any(len(stages) != virtual for stages in shape.stages):
        raise _impossible(name, "groups hold unequal numbers of stages", "give every group as many")
    _check_virtual(name, schedule, virtual)
    placed = schedule.stage_groups(groups, virtual)
    if shape.stages != placed:
        group = next(group for group in range(groups) if shape.stages[group] != placed[group])
        raise _impossible(
            name, f"group {group} holds stages {_some(shape.stages[group])}", f"give it {_some(placed[group])}"
        )
    given, least = f"{shape.microbatches} micro-batches on {groups} groups", max(1, schedule.least_per_group * groups)
    if shape.microbatches < least:
        raise _impossible(name, given, f"use at least {least}")
    if schedule.multiple and shape.microbatches % groups:
        raise _impossible(name, given, f"use a multiple of {groups}")


def _check_virtual(name: str, schedule: Named, virtual: int) -> None:
    if schedule.vee and virtual != 2:
        raise _impossible(name, f"{virtual} stages per group", "give every group two")
    if not schedule.vee and not schedule.several and virtual != 1:
        raise _impossible(name, "a group holds several stages", "use interleaved, or one stage per group")


def _impossible(name: str, cause: str, fix: str) -> ScheduleImpossible:
    return ScheduleImpossible(place=f"schedule {name}", cause=cause, fix=fix)


def _some(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages))


def work_lists(name: str, shape: Shape, custom: Sequence[Sequence[str]] = ()) -> WorkLists:
    """For each group, the codes of its actions in order; made once for a name and a shape."""
    if name == CUSTOM:
        return encode([[parse_action(text) for text in texts] for texts in custom], shape)
    return _kept(name, shape)


MOST_ACTIONS = 1_000_000
"""In all the lists that are kept: about 0.1 GB with what is derived from them."""

_made: OrderedDict[tuple[str, Shape], WorkLists] = OrderedDict()
"""The lists used last, latest at the end. A search meets few schedules, each in many plans."""


def _kept(name: str, shape: Shape) -> WorkLists:
    key = name, shape
    if key not in _made:
        check_schedule(name, shape)
        _made[key] = WorkLists(shape, named(name).write(shape))
        left = sum(work.size for work in _made.values())
        while left > MOST_ACTIONS and len(_made) > 1:
            left -= _made.popitem(last=False)[1].size
    _made.move_to_end(key)
    return _made[key]


def compute_actions(name: str, shape: Shape, custom: Sequence[Sequence[str]] = ()) -> tuple[tuple[Action, ...], ...]:
    """For each group, its forward and backward actions in order."""
    return decode(work_lists(name, shape, custom))
