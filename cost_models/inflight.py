"""Which forwards are held at once: the fullest states that a group's list of actions passes through.

A state is what is held beside the action that runs: for every stage of the group how many micro-batches have gone
forward and not yet backward, how many wait for their weight gradients alone (I done, W not), and whether the stage
has gradients yet. A state that another one of the same action exceeds everywhere is left out. Which of the rest is the
fullest depends on the bytes of each stage. A list of actions is read once, however many programs share it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.ir.program import Action

REMEMBERED = 512
"""Lists of actions whose states are kept (entries, not bytes)."""


@dataclass(frozen=True, slots=True)
class State:
    """What is held beside an action. The tuples go with the group's stages, in the order of their numbers."""

    kind: str
    stage: int
    live: tuple[int, ...]
    waiting: tuple[int, ...]
    graded: tuple[bool, ...]

    def exceeds(self, other: State) -> bool:
        mine, theirs = (*self.live, *self.waiting, *self.graded), (*other.live, *other.waiting, *other.graded)
        return all(a >= b for a, b in zip(mine, theirs, strict=True))


_KNOWN: OrderedDict[int, tuple[tuple[Action, ...], tuple[State, ...]]] = OrderedDict()


def states_of(actions: tuple[Action, ...]) -> tuple[State, ...]:
    """The fullest states of a list of actions, remembered by its identity."""
    at = id(actions)
    if at not in _KNOWN:
        _KNOWN[at] = (actions, _fullest(_passed(actions)))
        if len(_KNOWN) > REMEMBERED:
            _KNOWN.popitem(last=False)
    return _KNOWN[at][1]


def _passed(actions: Sequence[Action]) -> list[State]:
    """Every state once."""
    stages = sorted({action.stage for action in actions if action.kind in "FBIW"})
    at = {stage: index for index, stage in enumerate(stages)}
    live, waiting, graded = [0] * len(stages), [0] * len(stages), [False] * len(stages)
    seen: dict[State, None] = {}
    for action in actions:
        if action.kind not in "FBIW":
            continue
        index = at[action.stage]
        if action.kind in "BI":
            live[index] -= 1
        elif action.kind == "W":
            waiting[index] -= 1
        seen[State(action.kind, action.stage, tuple(live), tuple(waiting), tuple(graded))] = None
        if action.kind == "F":
            live[index] += 1
        elif action.kind == "I":
            waiting[index] += 1
        if action.kind in "BW":
            graded[index] = True
    return list(seen)


def _fullest(states: Sequence[State]) -> tuple[State, ...]:
    groups: dict[tuple[str, int], list[State]] = {}
    for state in states:
        known = groups.setdefault((state.kind, state.stage), [])
        if not any(other.exceeds(state) for other in known):
            known[:] = [other for other in known if not state.exceeds(other)]
            known.append(state)
    return tuple(state for known in groups.values() for state in known)
