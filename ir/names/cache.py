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
from meshwright.ir.names.body import Computed, computed, with_storage
from meshwright.ir.names.degrees import Degrees
from meshwright.ir.same import Same


@lru_cache(maxsize=64)
def loops_of(fold: Same[Fold]) -> Mapping[str, Loops]:
    """The loops of every body."""
    return body_loops(fold.of)


@lru_cache(maxsize=2048)
def planned(fold: Same[Fold], body: str, degrees: Degrees) -> BodyPlan:
    """The plan of a body under the degrees that concern it (`Degrees.of_body`)."""
    compute, found = _computed(fold, body, degrees.of_compute()), loops_of(fold)[body]
    return _one_of_equals(with_storage(fold.of.body[body], found, compute, degrees.mesh(), degrees))


@lru_cache(maxsize=2048)
def _one_of_equals(plan: BodyPlan) -> BodyPlan:
    """Of equal plans always the same: what degrees differ in may not concern a body, as selective recomputation does
    not an embedding."""
    return plan


@lru_cache(maxsize=2048)
def _computed(fold: Same[Fold], body: str, degrees: Degrees) -> Computed:
    return computed(fold.of.body[body].graph, loops_of(fold)[body], degrees.mesh(), degrees)
