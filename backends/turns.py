"""Blocks that take turns: several bodies in a period, Gemma's that see a window five times and everything once.

    stacked    of a fold -> its segments; of a list of blocks one for each body, with the instances that it has there
    among      the head of a loop over those instances of a stage that are of one body
    merged     loops over such instances that say the same -> one loop over all of them

A script treats the instances of a body in a loop. What it says of bodies that take turns is mostly the same, since they
have the same parameters and modules; so it is made for each, and loops that came out alike become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from meshwright.ir.graph.fold import Fold, Segment

_COUNTED = r"(range\([\d, ]+\)|\([\d, ]+\))"
LOOP = re.compile(rf"^( *)for index in {_COUNTED}:$")
PART = re.compile(rf"^( *)for index in (.+) among {_COUNTED} of {_COUNTED}:$")


def stacked(fold: Fold) -> tuple[tuple[Segment, ...], ...]:
    """The segments of a model, those of bodies that take turns in one list together."""
    found: list[tuple[Segment, ...]] = []
    for home, run in groupby(fold.segments, key=_home):
        several = list(run)
        if home is None or all(len(one.period) == 1 for one in several):
            found += [(one,) for one in several]
        else:
            found.append(tuple(_by_body(several)))
    return tuple(found)


def _home(segment: Segment) -> str | None:
    """The list that holds these blocks."""
    return None if segment.glue else segment.paths[0].rpartition(".")[0]


def _by_body(several: list[Segment]) -> Iterator[Segment]:
    instances: dict[str, list[str]] = {}
    numbers: dict[str, list[tuple[float, ...]]] = {}
    first: dict[str, Segment] = {}
    for segment in several:
        for at, path in enumerate(segment.paths):
            body = segment.period[at % len(segment.period)]
            instances.setdefault(body, []).append(path)
            numbers.setdefault(body, []).extend(segment.numbers[at : at + 1])
            wires = segment.wires[at % len(segment.period)]
            entry = wires if at else segment.entry
            alone = replace(segment, period=(body,), paths=(path,), entry=entry, wires=(wires,), numbers=())
            first.setdefault(body, alone)
    for body, paths in instances.items():
        yield replace(first[body], paths=tuple(paths), numbers=tuple(numbers[body]))


def counted(numbers: tuple[int, ...]) -> str:
    """Numbers in a row, in the form of a loop."""
    if not numbers:
        return "range(0)"
    first, last = numbers[0], numbers[-1]
    steps = {after - before for before, after in pairwise(numbers)}
    if steps <= {1}:
        return f"range({last + 1})" if not first else f"range({first}, {last + 1})"
    if len(steps) == 1 and len(numbers) > 2:
        return f"range({first}, {last + 1}, {steps.pop()})"
    return f"({', '.join(map(str, numbers))})"


def among(given: str, numbers: tuple[int, ...], every: tuple[int, ...]) -> str:
    """Those of the given instances that have these numbers; `merged` recognises all of them."""
    return f"{given} among {counted(numbers)} of {counted(every)}"


def _numbers(text: str) -> tuple[int, ...]:
    given = tuple(int(word) for word in re.findall(r"\d+", text))
    return tuple(range(*given)) if text.startswith("range") else given


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop over instances: `given` are those of a stage, empty where there are no stages."""

    indent: str
    given: str
    numbers: tuple[int, ...]
    every: tuple[int, ...]
    inside: tuple[str, ...]

    @staticmethod
    def of(head: str, inside: tuple[str, ...]) -> _Loop | None:
        if found := PART.match(head):
            return _Loop(found[1], found[2], _numbers(found[3]), _numbers(found[4]), inside)
        found = LOOP.match(head)
        return _Loop(found[1], "", _numbers(found[2]), (), inside) if found else None

    def says(self, other: _Loop) -> bool:
        """Whether two loops say the same of other instances."""
        return replace(self, numbers=()) == replace(other, numbers=())

    @property
    def lines(self) -> list[str]:
        over = counted(self.numbers)
        if self.given:
            part = f"[number for number in {self.given} if number in {over}]"
            over = self.given if self.numbers == self.every else part
        return [f"{self.indent}for index in {over}:", *self.inside]


def merged(lines: Iterable[str]) -> list[str]:
    """Lines in which neighbouring loops that say the same over other instances are one."""
    found: list[str] = []
    before: _Loop | None = None
    for head, inside in _loops(list(lines)):
        loop = _Loop.of(head, inside)
        if before is not None and loop is not None and before.says(loop):
            before = replace(before, numbers=tuple(sorted({*before.numbers, *loop.numbers})))
            continue
        found += before.lines if before is not None else []
        found += [] if loop is not None else [head, *inside]
        before = loop
    return [*found, *(before.lines if before is not None else [])]


def _loops(lines: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every line, loops over instances with their contents."""
    at = 0
    while at < len(lines):
        head, end = lines[at], at + 1
        loop = PART.match(head) or LOOP.match(head)
        while loop and end < len(lines) and lines[end].startswith(f"{loop[1]}    "):
            end += 1
        yield head, tuple(lines[at + 1 : end])
        at = end
