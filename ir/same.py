"""Identity as a key: for caches on large artefacts that are made once and rarely equal by chance.

Hashing a graph or a plan costs more than what is cached. `Same` compares by identity, and holds on to what it stands
for, so that no other object can take its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Same(Generic[T]):
    """A key that equals another one if both stand for one object."""

    __slots__ = ("of",)

    def __init__(self, of: T) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


class AllSame(Generic[T]):
    """A key that equals another one if both stand for the same objects, in the same order."""

    __slots__ = ("of", "places")

    def __init__(self, of: Iterable[T]) -> None:
        self.of = tuple(of)
        self.places = tuple(map(id, self.of))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllSame) and other.places == self.places

    def __hash__(self) -> int:
        return hash(self.places)
