"""Lifetimes: which values a printed function lets go of before it returns.

A variable of most languages holds its value until it is bound anew or its function returns; a Program's value is gone
after the last statement that reads it. Where derivatives read it anyway, or nothing large comes later, that is the same
memory. So a function is walked through, step by step, with what it holds of the values that it makes:

    must    what derivatives read, and of the rest what is read from there on
    holds   the same, and what variables still have
    back    in its backward pass, while a derivative runs: what this one and those to come read, and the gradients that
            it reads and makes. There are no variables then

Where the fullest instant of `holds` is above those of `must` and `back`, by more than `NEAR` of them and of what other
calls of a stage keep beside them, the largest value that only a variable holds there is let go of after its last read,
and so on, until it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from operator import add

from meshwright.backends.printing.items import Item, Memory

NEAR = 0.05
"""What a function may hold beyond what it must, of what its stage keeps then: as near as `docs/emit.md` says planned
and measured memory are, which are of parameters, too."""


@dataclass(slots=True)
class _Storage:
    """Memory that some names of a function share."""

    nbytes: int
    begins: int
    """The step that makes it."""
    kept: float = inf
    """The first step whose derivative reads it."""
    names: list[str] = field(default_factory=list)
    """Those that are variables."""
    inside: int = -1
    """The last step that reads a name of it that is none."""
    freed: bool = False
    """Whether its variables let go of it."""


def let_go(
    items: Sequence[Item], last: Mapping[str, int], again: Mapping[str, int], beside: int
) -> dict[int, list[str]]:
    """The names that a function lets go of, by the number of the item after which it does.

    - `beside` are bytes that other calls of its stage keep.
    - For every name that is a variable, `last` is the last item that reads it, or makes it, and `again` the one that
      binds its variable anew; the number of items, if it is read, or stays bound, to the end.
    """
    return _Walk(items, last, again).let_go(beside)


def as_one(items: Iterable[Item], gives: Sequence[str]) -> Memory:
    """The memory of items that stand in a function of their own, to the function that calls it."""
    memory = [one.memory for one in items]
    lies = {name: at for one in memory for name, at in one.lies.items()}
    for name, at in lies.items():  # what others lie in was made before
        lies[name] = lies.get(at, at)
    nbytes = {name: size for one in memory for name, size in one.nbytes.items()}
    kept = {lies.get(name, name) for one in memory for name in one.kept}
    given = {lies[name] for name in gives if name in lies}
    inside = sum(nbytes.get(name, 0) for name in kept - given) + sum(one.beside for one in memory)
    return Memory(
        lies={name: lies[name] for name in gives if name in lies},
        nbytes={name: nbytes[name] for name in given if name in nbytes},
        kept=tuple(sorted(kept)),
        beside=inside,
    )


class _Walk:
    """The storages of a function, step by step; expressions in an expression are steps of their own."""

    def __init__(self, items: Sequence[Item], last: Mapping[str, int], again: Mapping[str, int]) -> None:
        self.last, self.again = last, again
        self.storages: dict[str, _Storage] = {}
        self.at: dict[str, str] = {}
        """Where each name lies."""
        self.steps = 0
        self.graded: list[int] = []
        """Bytes of gradients, of every step's derivative."""
        self.ends: list[float] = []
        """The last step of every item; then that of none."""
        for item in items:
            for one, reader in _run(item, self.steps):
                self.make(one.memory, reader)
                self.steps += 1
            self.ends.append(self.steps - 1)
        self.ends.append(inf)

    def make(self, memory: Memory, reader: int) -> None:
        """Give the results of a step their storages; `reader` is the step that it is written into, -1 if none."""
        for name, at in memory.lies.items():
            if at in memory.nbytes:
                self.storages.setdefault(at, _Storage(memory.nbytes[at], self.steps))
            if (own := self.at.get(at, at)) in self.storages:
                self.at[name] = own
                self.storages[own].names += [name] if reader < 0 else []
                self.storages[own].inside = max(self.storages[own].inside, reader)
        if memory.beside:
            self.storages[f"{self.steps}!"] = _Storage(memory.beside, self.steps, kept=self.steps)
        for name in memory.kept:
            if name in self.at:
                one = self.storages[self.at[name]]
                one.kept = min(one.kept, self.steps)
        self.graded.append(memory.graded)

    def needed(self, one: _Storage) -> float:
        """The last step at which a storage must be there."""
        return inf if one.kept < inf else max(one.inside, *(self.ends[self.last[name]] for name in one.names), -1)

    def held(self, one: _Storage) -> float:
        """The last step at which it is there."""
        if one.kept < inf or one.freed:
            return self.needed(one)
        return max(one.inside, *(self.ends[self.again[name]] for name in one.names), -1)

    def let_go(self, beside: int) -> dict[int, list[str]]:
        least = max((*self.sums(self.needed), *self.back()), default=0)
        most = least + NEAR * (least + beside)
        found: dict[int, list[str]] = {}
        while max(sums := self.sums(self.held), default=0) > most:
            step = sums.index(max(sums))
            there = (one for one in self.storages.values() if one.begins <= step <= self.held(one))
            one = max((one for one in there if self.needed(one) < step), key=lambda one: one.nbytes)
            one.freed = True
            after = max(self.last[name] for name in one.names)
            found.setdefault(after, []).extend(name for name in one.names if self.again[name] > after)
        return found

    def back(self) -> Iterator[int]:
        """Bytes that the backward pass holds while each step's derivative runs."""
        begins = [0] * self.steps
        for one in self.storages.values():
            if one.kept < inf:
                begins[int(one.kept)] += one.nbytes
        return map(add, self.graded, accumulate(begins))

    def sums(self, end: Callable[[_Storage], float]) -> list[int]:
        """Bytes that there are at every step, of storages that are there up to an end."""
        change = [0] * (self.steps + 1)
        for one in self.storages.values():
            change[one.begins] += one.nbytes
            change[int(min(self.steps, end(one) + 1))] -= one.nbytes
        return list(accumulate(change[:-1]))


def _run(item: Item, step: int) -> Iterator[tuple[Item, int]]:
    """The expressions of an item in the order in which they run, the first one at a step, each with the step that reads
    it; -1 for the item itself."""
    order: list[Item] = []
    reader: dict[int, int] = {}

    def visit(one: Item) -> int:
        inner = [visit(part) for part in one.inside]
        order.append(one)
        reader.update(dict.fromkeys(inner, len(order) - 1))
        return len(order) - 1

    visit(item)
    yield from ((one, step + reader[number] if number in reader else -1) for number, one in enumerate(order))
