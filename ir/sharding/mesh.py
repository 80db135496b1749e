"""Meshes: the named axes that the ranks of one pipeline stage are arranged in.

A mesh is a box of ranks. Its axes are named, ordered major to minor (the last axis varies fastest with the rank) and
each runs on one *link tier* of the cluster ("nvlink", "rail", ...), so that a group along an axis knows which wires
it uses. Ranks here are local to the stage, 0 .. size-1; which GPU of the cluster each one is, is a separate decision
(the rank map).

    >>> mesh = Mesh.parse("dp=2@rail tp=4@nvlink")
    >>> mesh.groups(("tp",))
    ((0, 1, 2, 3), (4, 5, 6, 7))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from meshwright.ir.errors import AxisRepeated, BadAxisName, BadAxisSize, MeshSyntax, UnknownAxis

_AXIS = re.compile(r"^(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<size>[0-9]{1,9})(@(?P<tier>[\w.-]+))?$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

LOCAL_TIER = "local"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One named axis. Must: a plain identifier as name, a size of at least 1."""

    name: str
    size: int
    tier: str = LOCAL_TIER

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadAxisName(
                place=f"mesh axis {self.name!r}", cause="an axis name must be an identifier", fix="rename it"
            )
        if self.size < 1:
            raise BadAxisSize(
                place=f"mesh axis {self.name!r}", cause=f"size {self.size} is below 1", fix="use at least 1"
            )

    def __str__(self) -> str:
        tier = "" if self.tier == LOCAL_TIER else f"@{self.tier}"
        return f"{self.name}={self.size}{tier}"


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks of one stage as a box.

    - Axis names must be unique.
    - Sizes multiply to the number of ranks of the stage.
    """

    axes: tuple[MeshAxis, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Made when it is asked for first, and kept: meshes are keys everywhere."""

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise AxisRepeated(
                place=f"mesh ({self})", cause=f"axis {repeated[0]!r} appears twice", fix="give every axis its own name"
            )

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.axes,)))
            return self._hash

    def __reduce__(self) -> tuple[type[Mesh], tuple[object, ...]]:
        """Rebuild the mesh when unpickled: strings have other hashes in another process."""
        return Mesh, (self.axes,)

    @staticmethod
    def parse(text: str) -> Mesh:
        """Read the text form that `str(mesh)` writes, such as ``dp=2@rail tp=8@nvlink``."""
        axes = []
        for word in text.split():
            found = _AXIS.match(word)
            if not found:
                raise MeshSyntax(
                    place=f"mesh {text!r}", cause=f"cannot read {word!r}", fix="write NAME=SIZE or NAME=SIZE@TIER"
                )
            axes.append(MeshAxis(found["name"], int(found["size"]), found["tier"] or LOCAL_TIER))
        return Mesh(tuple(axes))

    def __str__(self) -> str:
        return " ".join(str(axis) for axis in self.axes)

    @property
    def size(self) -> int:
        return prod(axis.size for axis in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def axis(self, name: str) -> MeshAxis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise UnknownAxis(
            place=f"mesh ({self})", cause=f"there is no axis {name!r}", fix=f"use one of {', '.join(self.names)}"
        )

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank on every axis."""
        at: dict[str, int] = {}
        for axis in reversed(self.axes):
            rank, at[axis.name] = divmod(rank, axis.size)
        return {name: at[name] for name in self.names}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        rank = 0
        for axis in self.axes:
            rank = rank * axis.size + coordinates[axis.name]
        return rank

    def group(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks that differ from `rank` only along `axes`, ordered by those axes as given (major to minor)."""
        at = self.coordinates(rank)
        spans = [range(self.axis(name).size) for name in axes]
        return tuple(self.rank(at | dict(zip(axes, point, strict=True))) for point in product(*spans))

    def groups(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """All groups along `axes`, each rank in exactly one, ordered by their first rank."""
        seen: dict[tuple[int, ...], None] = {}
        for rank in range(self.size):
            seen.setdefault(self.group(rank, axes))
        return tuple(sorted(seen))
