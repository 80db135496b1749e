"""Wires: where every call of a fold takes its inputs from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.ir.graph.fold import Fold, FromInput, FromPrevious, FromSegment, Source

At = tuple[int, int]
"""A value: the number of the call that makes it, and which of its outputs it is."""


@dataclass(frozen=True, slots=True)
class Wires:
    """Those of a fold: for every call the place where each of its inputs is made, and where the fold's outputs are;
    entries of the batch by name."""

    sources: tuple[tuple[At | str, ...], ...]
    results: tuple[At | str, ...]


def wires_of(fold: Fold) -> Wires:
    """The wires of a fold."""
    latest: dict[tuple[int, int], int] = {}
    found, number = [], 0
    for number, call in enumerate(fold.calls()):
        found.append(tuple(_located(source, number, latest) for source in call.sources))
        latest[call.segment, call.position] = number
    return Wires(tuple(found), tuple(_located(one, number + 1, latest) for one in fold.outputs))


def _located(source: Source, number: int, latest: Mapping[tuple[int, int], int]) -> At | str:
    if isinstance(source, FromInput):
        return source.name
    if isinstance(source, FromPrevious):
        return number - 1, source.output
    assert isinstance(source, FromSegment)
    return latest[source.segment, source.position], source.output
