"""Open numbers: those in which blocks of one body may differ, such as a scale by depth, a rate of dropping, or the
place of what a block takes from a table of all blocks.

A number is *open* if the operator's rule would be the same with another one: nothing that is planned or priced follows
from it. Blocks that differ in open numbers alone are calls of one body (`meshwright.ir.graph.fold`), whose graph has
those of its first call; `Segment.numbers` has everyone's, and `with_numbers` gives back the graph of a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite

from meshwright.ir.graph.graph import Attr, Graph, Op
from meshwright.ir.rules.registry import infer, signature_of

ANOTHER = 0.7310585786300049
"""A number that means nothing to any rule: the logistic function of 1."""
FIRST = 0
PLACES = {"select": "index"}
"""Attributes that are places along a dimension, by operator."""


def numbers_of(graph: Graph) -> tuple[float, ...]:
    """All open numbers, in the order of operators and of their attributes."""
    return tuple(number for op in graph.ops for number in _open(op, graph).values())


def with_numbers(graph: Graph, numbers: Sequence[float]) -> Graph:
    """The graph with other open numbers."""
    return _with(graph, iter(numbers)) if tuple(numbers) != numbers_of(graph) else graph


def differing(graph: Graph, numbers: Sequence[Sequence[float]]) -> dict[str, tuple[Op, ...]]:
    """The operators in whose numbers some sets differ from others, each as every set has it."""
    found: dict[str, tuple[Op, ...]] = {}
    at = 0
    for op in graph.ops if len(set(map(tuple, numbers))) > 1 else ():
        names = list(_open(op, graph))
        own = [tuple(one[at : at + len(names)]) for one in numbers]
        at += len(names)
        if len(set(own)) > 1:
            found[op.name] = tuple(_replaced(op, dict(zip(names, one, strict=True))) for one in own)
    return found


def without_numbers(graph: Graph) -> Graph:
    """The graph with its open numbers left out, as a key."""
    return _with(graph, map(_another, numbers_of(graph)))


def _with(graph: Graph, numbers: Iterator[float]) -> Graph:
    def changed(op: Op) -> Op:
        attrs: dict[str, Attr] = {name: next(numbers) for name in _open(op, graph)}
        return _replaced(op, attrs) if attrs else op

    return replace(graph, ops=tuple(map(changed, graph.ops)))


def _open(op: Op, graph: Graph) -> dict[str, float]:
    """The open numbers of an operator, by attribute."""
    if op.kind == "opaque":  # what its numbers mean is not known
        return {}
    place = PLACES.get(op.kind)
    given = {
        name: value
        for name, value in op.attrs
        if (type(value) is int and name == place) or (type(value) is float and value and isfinite(value))
    }
    return {name: value for name, value in given.items() if _is_open(op, graph, name)}


def _is_open(op: Op, graph: Graph, name: str) -> bool:
    other = _replaced(op, {name: _another(op.attr(name))})
    return infer(signature_of(op, graph.types)) == infer(signature_of(other, graph.types))


def _another(number: Attr) -> float:
    return FIRST if type(number) is int else ANOTHER


def _replaced(op: Op, attrs: dict[str, Attr]) -> Op:
    return replace(op, attrs=tuple((name, attrs.get(name, value)) for name, value in op.attrs))
