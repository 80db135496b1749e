"""Parameters on ranks along a data, context or tensor axis: copies, parts, or copies with parts of gradients.

copies    of most: each rank computes a part of the gradient, and these are added up
apart     of those that the axis cuts: each rank has its own part, and the whole gradient of that
alike     copies, of which every rank computes the whole gradient: there is nothing to add up
parted    the same, but a rank has the parameter once, and others that read it add up: there each gives a part of the
          whole gradient
summed    along the tensor axis: ranks there have parts of the gradient, too, which are added up
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.backends.subject import Piece

Named = tuple[str, str]
"""A parameter: the name of a plan, and its path in the body."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Parameters that are not plain copies, and the axes along which they are not."""

    of_apart: Mapping[Named, tuple[str, ...]] = field(default_factory=dict)
    of_alike: Mapping[Named, tuple[str, ...]] = field(default_factory=dict)
    of_parted: Mapping[Named, tuple[str, ...]] = field(default_factory=dict)
    of_summed: Mapping[Named, tuple[str, ...]] = field(default_factory=dict)

    def apart(self, piece: Piece, path: str) -> tuple[str, ...]:
        """The axes that cut a parameter."""
        return self.of_apart.get((piece.plan.name, path), ())

    def alike(self, piece: Piece, path: str) -> tuple[str, ...]:
        """The axes along which all ranks compute its whole gradient."""
        return self.of_alike.get((piece.plan.name, path), ())

    def parted(self, piece: Piece, path: str) -> tuple[str, ...]:
        """The axes along which each rank contributes its part of the gradient that all compute."""
        return self.of_parted.get((piece.plan.name, path), ())

    def summed(self, piece: Piece, path: str) -> tuple[str, ...]:
        """The tensor axis, where the gradients that its ranks have of a parameter add up."""
        return self.of_summed.get((piece.plan.name, path), ())

    def added(self, piece: Piece, path: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes in `parted` along which gradients add up."""
        others = (*self.apart(piece, path), *self.alike(piece, path))
        return tuple(axis for axis in axes if axis not in others)

    def __bool__(self) -> bool:
        return bool(self.of_apart or self.of_alike or self.of_parted)


COPIED = Copies()
"""Where ranks have copies of all parameters."""
