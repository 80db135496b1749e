"""Stacks of repeated blocks, and the short walks through them that are traced for all.

Blocks c0 c1 … cn, read as classes, are a path through the graph of classes. The walk goes from the first
block to the last and takes every step X -> Y that the path takes, so that each way of entering a block is traced; and
it meets every class that has several instances at least twice (three times, where a block may follow its like): the
first, the last, and seeded ones between, so that a model that treats some of them apart is found out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

SHORT_WALK = 3
LONG_WALK = 5
"""How often a class is met whose blocks follow each other: to trace little, and to tell more."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A module list: its path, the class number of each block, and the positions to walk (all of them: it is not
    reduced). The model itself may be one. Blocks are called by numbers behind a `stem`, from the `first` one on: 0, 1,
    2 or layer1, layer2."""

    path: str
    classes: tuple[int, ...]
    walk: tuple[int, ...]
    stem: str = ""
    first: int = 0

    @property
    def depth(self) -> int:
        return len(self.classes)

    @property
    def shortened(self) -> bool:
        return len(self.walk) < self.depth

    @property
    def prefix(self) -> str:
        """The common beginning of its blocks' paths."""
        return f"{self.path}.{self.stem}" if self.path else self.stem

    def name(self, position: int) -> str:
        """The container's name for a block."""
        return f"{self.stem}{self.first + position}"

    def block(self, position: int) -> str:
        return f"{self.path}.{self.name(position)}" if self.path else self.name(position)

    def position(self, number: str) -> int:
        """The position of the block with this number."""
        return int(number) - self.first

    def holds(self, path: str) -> bool:
        """Whether a path is one of its blocks, or lies in one."""
        return bool(path) and path.startswith(self.prefix)


def short_walk(classes: Sequence[int], *, seed: str = "", most: int = SHORT_WALK) -> tuple[int, ...]:
    """Positions of blocks to trace, or all positions if no shorter walk exists (see the module docstring)."""
    path = _covering_path(classes, most)
    chosen = _instances(path, classes, seed)
    return chosen if chosen is not None and len(chosen) < len(classes) else tuple(range(len(classes)))


def _covering_path(classes: Sequence[int], most: int) -> list[int]:
    """A short path of classes from the first block's to the last one's, over every step that occurs: in the order in
    which the blocks take them, so that none is passed by that no way leads back to."""
    steps = list(dict.fromkeys(pairwise(classes)))
    after: dict[int, list[int]] = {}
    for x, y in steps:
        after.setdefault(x, []).append(y)
    path = [classes[0]]
    counts = {c: min(most, list(classes).count(c)) for c in set(classes)}
    for step in steps:
        if step not in pairwise(path):
            path += _shortest(path[-1], {step}, after)
    if path[-1] != classes[-1]:
        path += _shortest(path[-1], {step for step in steps if step[1] == classes[-1]}, after)
    for number, count in sorted(counts.items()):
        if path.count(number) < count and (number, number) in steps:
            path[path.index(number) : path.index(number)] = [number] * (count - path.count(number))
        elif path.count(number) < min(count, 2):  # once around: from the class back to itself
            back = {step for step in steps if step[1] == number}
            path[path.index(number) + 1 : path.index(number) + 1] = _shortest(number, back, after)
    return path


def _shortest(start: int, wanted: Set[tuple[int, int]], after: Mapping[int, Sequence[int]]) -> list[int]:
    """The shortest continuation from `start` whose last step is wanted."""
    queue: deque[tuple[int, list[int]]] = deque([(start, [])])
    seen = {start}
    while queue:
        here, taken = queue.popleft()
        for following in after.get(here, ()):
            if (here, following) in wanted:
                return [*taken, following]
            if following not in seen:
                seen.add(following)
                queue.append((following, [*taken, following]))
    raise AssertionError("every step lies on the path that the blocks take")


def _instances(path: Sequence[int], classes: Sequence[int], seed: str) -> tuple[int, ...] | None:
    """Different blocks of the classes on the path: each class's first and last, between them seeded ones; None if there
    are too few."""
    draw = random.Random(seed)
    chosen: dict[int, list[int]] = {}
    for number in sorted(set(path)):
        members = [p for p, c in enumerate(classes) if c == number]
        wanted = path.count(number)
        if wanted > len(members):
            return None
        inner = sorted(draw.sample(members[1:-1], len(members[1:-1])), key=partial(_kinship, members[-1]))
        chosen[number] = [members[0], *sorted(inner[: max(wanted - 2, 0)]), *([members[-1]] if wanted > 1 else [])]
    return tuple(chosen[number].pop(0) for number in path)


def _kinship(last: int, position: int) -> int:
    """How much a block has in common with the last one, by position: parity, thirds, halves. Blocks with little in
    common tell more."""
    return (position % 2 == last % 2) + (position % 3 == last % 3) + (2 * position > last)
