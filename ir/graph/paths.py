"""Paths of blocks in lists: a number between two texts, as in `model.layers.3.attention`, or `layer3`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

NUMBERED = re.compile(r"((?:.*\D)?)(0|[1-9][0-9]*)", re.ASCII | re.DOTALL)
"""A name that ends in a number as Python writes it: layers.3, layer3; 007 is none."""


def counted_by(path: str) -> Iterator[tuple[str, str]]:
    """Every way to see a path as a number between two texts; the number in the innermost list first."""
    parts = path.split(".")
    for index, part in reversed(tuple(enumerate(parts))):
        if found := NUMBERED.fullmatch(part):
            before = "".join(f"{one}." for one in parts[:index]) + found[1]
            yield before, "".join(f".{one}" for one in parts[index + 1 :])


def number_in(path: str, before: str, after: str) -> int:
    """The number between two texts; -1 where there is none."""
    found = NUMBERED.fullmatch(path.removesuffix(after))
    return int(found[2]) if found and path == f"{before}{found[2]}{after}" else -1


def counting(paths: Sequence[str], before: str, after: str) -> tuple[int, ...]:
    """The numbers of the first paths between two texts, as long as they have one and it rises."""
    numbers = [number_in(path, before, after) for path in paths]
    ends = (at for at, (one, other) in enumerate(pairwise([-1, *numbers])) if other <= one)
    return tuple(numbers[: next(ends, len(numbers))])
