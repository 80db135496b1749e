"""Constraints of values that no traced equation makes: they are carried to the nearest value that one makes.

A graph has values that the trace has in another shape, with dimensions in another order, or with another sign. Between
the two stand operators of one operand that keep elements apart, and a PartitionSpec on one side is one on the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from meshwright.ir.program.program import BodyProgram, Compute, operands_of
from meshwright.ir.rules.base import Rule
from meshwright.ir.rules.registry import infer

Spec = tuple[tuple[str, ...], ...]
"""Of every dimension the mesh axes that cut it; trailing ones that are whole are left out."""
VIEWS = ("view", "permute")


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that an equation makes, and the way to it: for each operator between, whether it is taken backwards."""

    value: str
    way: tuple[tuple[Rule, bool], ...]

    def carried(self, spec: Spec | None) -> Spec | None:
        """The PartitionSpec of that value; None where it would cut no dimension into even runs."""
        for rule, back in self.way:
            given, made = rule.operands[0], rule.results[0]
            spec = carried(spec, *((made, given) if back else (given, made))) if spec is not None else None
        return spec


@dataclass(frozen=True)
class Nearest:
    """The values of a body, by the names of those that equations make."""

    body: BodyProgram
    placed: Mapping[str, str]

    def of(self, value: str) -> Shown | None:
        """The nearest value that an equation makes: what this one is made of, else what is made of it alone."""
        return self._found(value, back=True) or self._found(value, back=False)

    def _found(self, value: str, *, back: bool) -> Shown | None:
        way: list[tuple[Rule, bool]] = []
        while value not in self.placed:
            made = self._makers.get(value) if back else self._sole_reader(value)
            if made is None or (rule := _kept_apart(made)) is None:
                return None
            value = stem(made.operands[0]) if back else made.results[0]
            if back and self._sole_reader(value) is not made:
                return None
            way.append((rule, back))
        return Shown(value, tuple(way))

    @cached_property
    def _makers(self) -> dict[str, Compute]:
        return {name: one for one in self.body.forward if isinstance(one, Compute) for name in one.results}

    @cached_property
    def _readers(self) -> dict[str, list[Compute | None]]:
        found: dict[str, list[Compute | None]] = defaultdict(list)
        for one in self.body.forward:
            if isinstance(one, Compute):
                for name in dict.fromkeys(map(stem, operands_of(one))):
                    found[name].append(one)
        for name in self.body.outputs:
            found[stem(name)].append(None)
        return found

    def _sole_reader(self, value: str) -> Compute | None:
        readers = self._readers[value]
        return readers[0] if len(readers) == 1 else None


def _kept_apart(made: Compute) -> Rule | None:
    """The rule of an operator of one operand that keeps its elements apart."""
    if len(made.operands) != 1 or len(made.results) != 1:
        return None
    rule = infer(made.signature)
    return rule if rule.elementwise or made.signature.kind in VIEWS else None


def carried(spec: Spec, given: tuple[tuple[str, ...], ...], made: tuple[tuple[str, ...], ...]) -> Spec | None:
    """A PartitionSpec of a tensor over these loops as one of a tensor over those; None where a loop that is cut does
    not stand first in a dimension."""
    axes = {loops[0]: cut for loops, cut in zip(given, spec, strict=False) if loops and cut}
    placed = [axes.pop(loops[0], ()) if loops else () for loops in made]
    return None if axes else ended(placed)


def ended(spec: list[tuple[str, ...]]) -> Spec:
    """Without dimensions at the end that are whole."""
    while spec and not spec[-1]:
        spec.pop()
    return tuple(spec)


def stem(name: str) -> str:
    """The value that a local name stands for."""
    return re.split("[@!]", name, maxsplit=1)[0]
