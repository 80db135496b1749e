"""Constraints of values that no traced equation makes: they are carried to the nearest value that one makes.

A graph has values that the trace has in another shape, with dimensions in another order, or with another sign. Between
the two stand operators of one operand that keep elements apart, and a PartitionSpec on one side is one on the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from meshwright.backends.jax_.emit.specs import Spec, ended
from meshwright.ir.program.program import BodyProgram, Compute, operands_of
from meshwright.ir.rules.base import Dims, Rule
from meshwright.ir.rules.registry import infer

VIEWS = ("view", "permute")


@dataclass(frozen=True, slots=True)
class Step:
    """Loops of every dimension on both sides of an operator, major to minor; and what is known of how long they are."""

    given: Dims
    made: Dims
    extents: Mapping[str, int] = field(default_factory=dict)

    def carried(self, spec: Spec, sizes: Mapping[str, int]) -> Spec | None:
        """A PartitionSpec on this side as one on that; None where a loop that is cut does not stand first in a
        dimension, or is not cut evenly."""
        axes: dict[str, tuple[str, ...]] = {}
        for loops, cut in zip(self.given, spec, strict=False):
            name = self._first(loops)
            if cut and self.extents.get(name, 0) % prod(sizes[axis] for axis in cut):
                return None
            axes |= {name: cut} if cut else {}
        placed = [axes.pop(self._first(loops), ()) for loops in self.made]
        return None if axes else ended(placed)

    def _first(self, loops: tuple[str, ...]) -> str:
        """The outermost loop that runs more than once."""
        return next((name for name in loops if self.extents.get(name) != 1), "")


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that an equation makes, and the way to it, operator by operator."""

    value: str
    way: tuple[Step, ...]

    def carried(self, spec: Spec | None, sizes: Mapping[str, int]) -> Spec | None:
        """The PartitionSpec of that value, for mesh axes of these sizes; None where it would cut no dimension into even
        runs."""
        for step in self.way:
            spec = step.carried(spec, sizes) if spec is not None else None
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
        way: list[Step] = []
        while value not in self.placed:
            made = self._makers.get(value) if back else self._sole_reader(value)
            if made is None or (rule := _kept_apart(made)) is None:
                return None
            value = stem(made.operands[0]) if back else made.results[0]
            if back and self._sole_reader(value) is not made:
                return None
            given, result = rule.operands[0], rule.results[0]
            way.append(Step(result, given) if back else Step(given, result))
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


def apart(parts: Sequence[Sequence[int]]) -> Step:
    """From a tensor to one in which the dimensions that make up each of its own stand apart."""
    joined = tuple(tuple(f"{dim}.{at}" for at in range(len(extents))) for dim, extents in enumerate(parts))
    extents = {f"{dim}.{at}": extent for dim, part in enumerate(parts) for at, extent in enumerate(part)}
    return Step(joined, tuple((name,) for names in joined for name in names), extents)


def stem(name: str) -> str:
    """The value that a local name stands for."""
    return re.split("[@!]", name, maxsplit=1)[0]
