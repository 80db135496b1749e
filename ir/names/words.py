"""From plans to names: what people would call the use of an axis in a body.

A name is a predicate over the loops that the axis splits, so it fits plans that no template wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names.degrees import BATCH, CONTEXTS, SEQUENCE, TABLE, Degree
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import Nested


@lru_cache(maxsize=256)
def _degree(name: str) -> Degree:
    return next(degree for degree in TABLE if degree.name == name)


def loops_split(plan: BodyPlan, found: Loops, axis: str) -> Mapping[str, int]:
    """The number of operators of a body that an axis splits over each loop, most first."""
    counts: dict[str, int] = {}
    for op, strategy in plan.strategies:
        choice = strategy.of(axis)
        if isinstance(choice, Split):
            for factor in choice.factors:
                for loop in loops_cut(found, op, factor, choice):
                    counts[loop] = counts.get(loop, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def loops_cut(found: Loops, op: str, factor: str, choice: Split) -> tuple[str, ...]:
    """The loop of a factor that a split cuts, where the factor is several in one: the first, or, in equal runs, one
    inside."""
    names = found.factors[op][factor]
    if not isinstance(choice.layout, Nested) or len(names) < 2:
        return names[:1]
    before = {prod(found.loop(name).size for name in names[:at]): at for at in range(len(names) - 1, 0, -1)}
    at = before.get(choice.layout.runs, 1)
    return names[at : at + 1]


def name_of(plan: BodyPlan, graph: Graph, found: Loops, axis: str) -> str:
    """The name of an axis' use in a body: "dp", "tp+sp", "cp (ring)", "tp+ep" where it is one thing outside the experts
    and another inside, or "-" where it is idle."""
    split = {stem(loop) for loop in loops_split(plan, found, axis)}
    outside = _outside(split - {"experts"}, plan, graph, axis)
    if "experts" not in split:
        return outside
    return "ep" if outside in ("dp", "-") else f"{outside}+ep"


def uses_of(plans: Iterable[BodyPlan], fold: Fold, loops: Mapping[str, Loops], axis: str) -> dict[str, str]:
    """The name of an axis' use in every plan. A plan in which it is idle, and no operator runs over the batch, is left
    out: there is nothing for the axis to do."""
    found = dict[str, str]()
    for plan in plans:
        name = name_of(plan, fold.body[plan.body].graph, loops[plan.body], axis)
        if name != "-" or any(stem(one.name).partition(".")[0] == BATCH for one in loops[plan.body].loops):
            found[plan.name] = name
    return found


def _outside(split: set[str], plan: BodyPlan, graph: Graph, axis: str) -> str:
    if not split:
        return "-"
    if split & set(_degree("tp").loops):
        attention_only = SEQUENCE in split and split & set(_degree("tp").loops) == {"heads"}
        if attention_only and not _splits_linears(plan, graph, axis):
            return CONTEXTS["ulysses"].called
        return "tp+sp" if SEQUENCE in split else "tp"
    if SEQUENCE in split:
        return CONTEXTS["ring" if _rings(plan, axis) else "all_gather"].called
    return "dp" if split & set(_degree("dp").loops) else "+".join(sorted(split))


def _rings(plan: BodyPlan, axis: str) -> bool:
    choices = (strategy.of(axis) for _, strategy in plan.strategies)
    return any(isinstance(choice, Split) and len(choice.factors) == 2 for choice in choices)


def _splits_linears(plan: BodyPlan, graph: Graph, axis: str) -> bool:
    """Whether the axis splits a linear over anything but its rows of tokens."""
    kinds = {op.name: op.kind for op in graph.ops}
    for op, strategy in plan.strategies:
        choice = strategy.of(axis)
        if kinds[op] == "linear" and isinstance(choice, Split) and choice.factors[0] in ("n", "k"):
            return True
    return False
