"""Figures that are kept: what reference cases come to, so that what a change does to numbers is seen in its diff.

A *table* is a function from nothing to cases by name, each with lines of text; `tests/golden/figures/TABLE.txt` keeps
them. Tests compare the words exactly and the numbers to six digits. Written anew, to be read before it is committed, by

    python -m tests.figures [TABLE ...]

They say that a number has changed, not that it was right: other tests hold numbers against hand, papers and oracles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden" / "figures"
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w])")
CLOSE = 2e-5
"""Relative: the last of six digits, rounded twice."""

Cases = Mapping[str, Callable[[], Iterable[str]]]


def text(value: Any) -> str:
    """A value in one line, numbers to six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{text(key)}: {text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(text, value))) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(text, value)) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        told = ((field.name, getattr(value, field.name)) for field in fields(value) if field.compare)
        return type(value).__name__ + "(" + ", ".join(f"{name}={text(one)}" for name, one in told) + ")"
    return str(value)


@cache
def kept(table: str) -> dict[str, list[str]]:
    """The kept lines of every case."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / f"{table}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            found[line[3:]] = []
        elif line:
            found[list(found)[-1]].append(line)
    return found


def written(cases: Cases) -> str:
    return "\n\n".join("\n".join([f"== {name}", *lines()]) for name, lines in cases.items()) + "\n"


def changes(table: str, name: str, found: Iterable[str]) -> str:
    """What is no longer as it was kept, and how to keep it; empty if nothing."""
    changed = "\n".join(differences(found, kept(table)[name]))
    return f"{changed}\nif that is meant: python -m tests.figures {table}" if changed else ""


def differences(found: Iterable[str], expected: Iterable[str]) -> Iterator[str]:
    """Lines that are not as they were kept."""
    here, there = list(found), list(expected)
    if len(here) != len(there):
        yield f"{len(here)} lines, {len(there)} were kept"
    for one, other in zip(here, there, strict=False):
        if one != other and not _alike(one, other):
            yield f"- {other}\n+ {one}"


def _alike(one: str, other: str) -> bool:
    if _NUMBER.sub("", one) != _NUMBER.sub("", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(isclose(float(a), float(b), rel_tol=CLOSE) for a, b in pairs)
