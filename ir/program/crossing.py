"""Transfers between two stages, and their messages: which rank sends which part of a value to whom.

Both stages may have other numbers of ranks, and cut the value in other ways. Every rank of the receiving stage gets its
shard, and every element of it once, from a rank that has it. Ranks that have the same are asked by turns: of the ranks
that want one and the same shard the first asks the first of them, the second the second, and so on. Between stages that
are arranged alike that is one message between each two ranks that stand alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from meshwright.ir.graph.graph import Type
from meshwright.ir.sharding.layouts import Span
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Partial, Placement

Box = tuple[tuple[Span, ...], ...]
"""Of every dimension the indices that a rank has."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that crosses from one stage to another, with the index ranges that each rank sends.

    `source` and `target` are placements on the two stages' meshes. A gradient travels the same way back; what is still
    partial of it stays so, and every rank passes its own part to the rank that stands alike.
    """

    call: int
    output: int
    from_stage: int
    to_stage: int
    type: Type
    source: Placement
    target: Placement
    differentiable: bool
    waiting: tuple[str, ...] = ()
    """Axes over which its gradient is still to be added up, on both stages."""

    def gradient(self, value: Placement) -> Placement:
        """The placement of the gradient where the value is placed so."""
        return Placement(value.dims, tuple(map(Partial, self.waiting)))


@dataclass(frozen=True, slots=True)
class End:
    """The placement of a value on a stage."""

    mesh: Mesh
    placement: Placement

    def boxes(self, shape: Sequence[int]) -> list[Box]:
        """The part of the value on every rank."""
        return [self.placement.spans(shape, self.mesh, rank) for rank in range(self.mesh.size)]


@lru_cache(maxsize=4096)
def messages(shape: tuple[int, ...], left: End, arrives: End) -> tuple[tuple[int, int, int], ...]:
    """(sender, receiver, elements) of every message; ranks are numbered within their stages."""
    return tuple(_messages(left.boxes(shape), arrives.boxes(shape)))


def _messages(held: Sequence[Box], wanted: Sequence[Box]) -> Iterator[tuple[int, int, int]]:
    copies: dict[Box, list[int]] = {}
    for rank, box in enumerate(held):
        copies.setdefault(box, []).append(rank)
    turns: Counter[Box] = Counter()
    for receiver, box in enumerate(wanted):
        for shard, ranks in copies.items():
            elements = prod(_common(one, other) for one, other in zip(shard, box, strict=True))
            if elements:
                yield ranks[turns[box] % len(ranks)], receiver, elements
        turns[box] += 1


def _common(one: Sequence[Span], other: Sequence[Span]) -> int:
    """The number of indices that two boxes share."""
    return sum(max(0, min(b, d) - max(a, c)) for a, b in one for c, d in other)
