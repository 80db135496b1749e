"""Action lists that are written out when somebody reads them.

A complete list names every transfer around every action: three to four entries for each code. Who prices a program
needs the codes alone. So a program holds its work lists and says here how they read; to whoever reads, checks, prints
or runs them, these lists are sequences of actions like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from meshwright.ir.program.program import Action
from meshwright.ir.schedules.transfers import Pairs, with_transfers
from meshwright.ir.schedules.work import KINDS, WorkLists, action_of

ENDING = (Action("sync"), Action("step"))


class ActionList(Sequence[Action]):
    """The actions of one group of some work lists, with transfers for the pairs of stages that values and gradients
    cross, and the end of the step."""

    __slots__ = ("_backward", "_forward", "_written", "group", "work")

    def __init__(self, work: WorkLists, group: int, forward: Pairs, backward: Pairs) -> None:
        self.work, self.group = work, group
        self._forward, self._backward = forward, backward
        self._written: tuple[Action, ...] | None = None

    def doing(self, work: WorkLists) -> ActionList:
        """The list of the same group for other work, with transfers for the same pairs of stages."""
        return ActionList(work, self.group, self._forward, self._backward)

    @property
    def written(self) -> tuple[Action, ...]:
        """The actions, written out."""
        if self._written is None:
            depth = self.work.shape.depth
            codes = self.work.lists[self.group]
            (one,) = with_transfers((tuple(action_of(code, depth) for code in codes),), self._forward, self._backward)
            self._written = (*one, *ENDING)
        return self._written

    def __len__(self) -> int:
        return len(self.written)

    def __iter__(self) -> Iterator[Action]:
        return iter(self.written)

    @overload
    def __getitem__(self, index: int) -> Action: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Action, ...]: ...
    def __getitem__(self, index: int | slice) -> Action | tuple[Action, ...]:
        return self.written[index]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, (tuple, ActionList)) and self.written == tuple(other))

    def __hash__(self) -> int:
        return hash(self.written)

    def __repr__(self) -> str:
        return repr(self.written)


def computing(actions: Sequence[Action]) -> str:
    """The kinds of computing actions in a list, in order, without writing the list out."""
    if isinstance(actions, ActionList):
        return "".join(KINDS[code % len(KINDS)] for code in actions.work.lists[actions.group])
    return "".join(action.kind for action in actions if action.kind in KINDS)


def shared_work(lists: Sequence[Sequence[Action]]) -> WorkLists | None:
    """The work lists that these lists belong to, group by group; None if they are of several, or were written by
    hand."""
    works = [one.work for group, one in enumerate(lists) if isinstance(one, ActionList) and one.group == group]
    if len(works) < len(lists) or any(work is not works[0] for work in works):
        return None
    return works[0] if works and len(works[0].lists) == len(lists) else None
