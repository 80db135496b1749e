"""Handles: the meaning of traced names, the places of their operators, and the resulting graph.

A handle is one of

    value      the name of a value of the graph
    Term       a constant: it depends on no parameter and no input, so nothing is emitted for it until an operator needs
               it
    Assembly   a constant into which slices have been written; whole again, it is a `cat`
    tuple      the results of one operator
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.ir.annotated.annotations import Spec
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.graph.constants import Constant
from meshwright.ir.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Assembly:
    """A constant with slices [start, end) of one dimension overwritten by values."""

    base: Term
    dim: int
    pieces: tuple[tuple[int, int, Handle], ...] = ()


Handle = str | Term | Assembly | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of traced module paths in the model: `path` is the original one, `room` the block it lies in ("":
    none)."""

    path: Callable[[str], str]
    room: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Attribute:
    """The place where a module holds a tensor: the path of its attribute, and the keys where that is a list or
    dictionary."""

    path: str
    keys: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """The place in the model where an operator was traced."""

    module: str = ""
    source: str = ""
    no_grad: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph with its constants."""

    graph: Graph
    constants: Mapping[str, Term]
    notes: tuple[str, ...] = ()
    made: Mapping[str, Constant] = field(default_factory=dict)
    """How the constants are made, by their laws."""
    annotated: Mapping[str, Spec] = field(default_factory=dict)
    """Of values, where the model's own code says that they lie."""
