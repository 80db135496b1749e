"""Blocks that take turns: several bodies in a period, Gemma's that see a window five times and everything once.

    segments   of a fold -> one for each body of a list of blocks, with the instances that it has there
    merged     loops over such instances that say the same -> one loop over all of them

A script treats the instances of a body in a loop. What it says of bodies that take turns is mostly the same, since they
have the same parameters and modules; so it is made for each, and loops that came out alike become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, pairwise

from meshwright.ir.fold import Fold, Segment

LOOP = re.compile(r"^( *)for index in (range\([\d, ]+\)|\([\d, ]+\)):$")


def segments(fold: Fold) -> tuple[Segment, ...]:
    """The segments of a model, where bodies of one list take turns a segment for each of them."""
    found: list[Segment] = []
    for home, run in groupby(fold.segments, key=_home):
        several = list(run)
        if home is None or all(len(one.period) == 1 for one in several):
            found += several
        else:
            found += _by_body(several)
    return tuple(found)


def _home(segment: Segment) -> str | None:
    """The list that blocks are in."""
    return None if segment.glue else segment.paths[0].rpartition(".")[0]


def _by_body(several: list[Segment]) -> Iterator[Segment]:
    instances: dict[str, list[str]] = {}
    first: dict[str, Segment] = {}
    for segment in several:
        for at, path in enumerate(segment.paths):
            body = segment.period[at % len(segment.period)]
            instances.setdefault(body, []).append(path)
            wires = (segment.wires[at % len(segment.period)],)
            first.setdefault(body, replace(segment, period=(body,), paths=(path,), wires=wires))
    for body, paths in instances.items():
        yield replace(first[body], paths=tuple(paths))


def counted(numbers: tuple[int, ...]) -> str:
    """Numbers in a row, as a loop takes them."""
    first, last = numbers[0], numbers[-1]
    steps = {after - before for before, after in pairwise(numbers)}
    if steps <= {1}:
        return f"range({last + 1})" if not first else f"range({first}, {last + 1})"
    if len(steps) == 1 and len(numbers) > 2:
        return f"range({first}, {last + 1}, {steps.pop()})"
    return f"({', '.join(map(str, numbers))})"


def _numbers(text: str) -> tuple[int, ...]:
    given = tuple(int(word) for word in re.findall(r"\d+", text))
    return tuple(range(*given)) if text.startswith("range") else given


def merged(lines: Iterable[str]) -> list[str]:
    """Lines in which neighbouring loops that say the same over other instances are one."""
    found: list[str] = []
    before: tuple[str, str, list[str]] | None = None
    for head, inside in _loops(list(lines)):
        loop = LOOP.match(head)
        if loop is None:
            found += [head, *inside]
            before = None
        elif before is not None and (before[0], before[2]) == (loop[1], inside):
            together = counted(tuple(sorted({*_numbers(before[1]), *_numbers(loop[2])})))
            found[-len(inside) - 1] = f"{loop[1]}for index in {together}:"
            before = loop[1], together, inside
        else:
            found += [head, *inside]
            before = loop[1], loop[2], inside
    return found


def _loops(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Every line, loops over instances with what is in them."""
    at = 0
    while at < len(lines):
        head, end = lines[at], at + 1
        loop = LOOP.match(head)
        while loop and end < len(lines) and lines[end].startswith(f"{loop[1]}    "):
            end += 1
        yield head, lines[at + 1 : end]
        at = end
