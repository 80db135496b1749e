"""What is derived from a fold, made once for every fold and shared.

Folds are large; comparing or hashing one costs more than most of what is derived from it. So they are known here by
identity, which is enough: they never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from meshwright.ir.decisions import BodyPlan
from meshwright.ir.factors import Loops, body_loops
from meshwright.ir.fold import Fold
from meshwright.ir.names.body import body_template
from meshwright.ir.names.degrees import Degrees


class Same:
    """A fold as a key: equal to itself only. Holding it keeps its identity from being given to another."""

    __slots__ = ("fold",)

    def __init__(self, fold: Fold) -> None:
        self.fold = fold

    def __hash__(self) -> int:
        return id(self.fold)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.fold is self.fold


@lru_cache(maxsize=64)
def loops_of(fold: Same) -> Mapping[str, Loops]:
    """The loops of every body."""
    return body_loops(fold.fold)


@lru_cache(maxsize=2048)
def planned(fold: Same, body: str, degrees: Degrees) -> BodyPlan:
    """The plan of a body under the degrees that concern it (`Degrees.of_body`)."""
    return body_template(fold.fold.body[body], loops_of(fold)[body], degrees.mesh(), degrees)
