"""Facts derived from a fold, computed once for every fold and shared.

Folds are large; comparing or hashing one costs more than most of what is derived from it. So they are known here by
identity, which is enough: they never change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from meshwright.ir.analysis.loops import Loops, body_loops, resized
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.body import Computed, computed, with_storage
from meshwright.ir.names.degrees import CONTEXT, Degrees
from meshwright.ir.names.pinned import NOTHING_PINNED, Pinned
from meshwright.ir.names.recompute import kind_of
from meshwright.ir.same import Same

_found: OrderedDict[Same[Fold], Mapping[str, Loops]] = OrderedDict()
MOST_FOLDS = 64
CONTEXTUAL = "attention"
"""The kind of operators to which alone it matters how context parallelism goes about them."""


def loops_of(fold: Same[Fold]) -> Mapping[str, Loops]:
    """The loops of every body."""
    if fold not in _found:
        _keep(fold, body_loops(fold.of))
    return _found[fold]


@lru_cache(maxsize=MOST_FOLDS)
def kinds_of(fold: Same[Fold]) -> Mapping[str, frozenset[str]]:
    """The kinds of operators in every body."""
    return {body.name: frozenset(op.kind for op in body.graph.ops) for body in fold.of.bodies}


def share_loops(made: Fold, original: Fold) -> None:
    """Register a fold as another one at another batch: its loops are the same, some of another size. Deriving them
    again would take longer than most of their uses."""
    before = loops_of(Same(original))
    known = {loop.name: loop.size for loops in before.values() for loop in loops.loops}
    found = {name: resized(loops, made.body[name].graph, known) for name, loops in before.items()}
    if all(loops is not None for loops in found.values()):
        _keep(Same(made), {name: loops for name, loops in found.items() if loops is not None})


def _keep(fold: Same[Fold], loops: Mapping[str, Loops]) -> None:
    _found[fold] = loops
    if len(_found) > MOST_FOLDS:
        _found.popitem(last=False)


def planned(fold: Same[Fold], body: str, degrees: Degrees, pins: Pinned = NOTHING_PINNED) -> BodyPlan:
    """The plan of a body under the degrees that concern it (`Degrees.of_body`). Bodies of which nothing is asked share
    their plans, whatever is asked of others."""
    return _planned(fold, body, degrees, pins if pins.of(body) else NOTHING_PINNED)


@lru_cache(maxsize=8192)
def _planned(fold: Same[Fold], body: str, degrees: Degrees, pins: Pinned) -> BodyPlan:
    attends = CONTEXTUAL in kinds_of(fold)[body]
    concerning = degrees.of_compute() if attends else replace(degrees.of_compute(), context=CONTEXT[0])
    compute, found = _computed(fold, body, concerning, pins), loops_of(fold)[body]
    again = replace(degrees, recompute=kind_of(fold.of, body, degrees.recompute))
    return _one_of_equals(with_storage(fold.of.body[body], found, compute, degrees.mesh(), again, pins.of(body)))


@lru_cache(maxsize=8192)
def _one_of_equals(plan: BodyPlan) -> BodyPlan:
    """One object for equal plans: degrees may differ in something that does not concern a body, as selective
    recomputation does not concern an embedding."""
    return plan


@lru_cache(maxsize=8192)
def _computed(fold: Same[Fold], body: str, degrees: Degrees, pins: Pinned) -> Computed:
    return computed(fold.of.body[body].graph, loops_of(fold)[body], degrees.mesh(), degrees, pins.of(body))
