"""Facts about a graph that do not depend on plans, derived once and shared by all of them.

Operators whose split needs communication inside (a vocabulary-sharded cross entropy) are replaced by their expansion;
of every operator, its rule, and which derivatives it has and what they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.errors import IllegalStrategy
from meshwright.ir.graph.graph import Graph, Op, Type
from meshwright.ir.rules.base import Law, Role, Rule, Signature
from meshwright.ir.rules.registry import expand, infer, signature_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Applied, Choice, Idle, Split, Strategy, apply
from meshwright.ir.sharding.mesh import Mesh


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Facts about an operator under every plan. `wanted`: the operands whose gradients it has, if one reaches its
    results; `reads`: the operands that its derivatives read; `reruns`: whether they read its results; `expanded`: the
    factors whose splits ask for simpler operators; `maximised`: those that its results take the maximum over."""

    signature: Signature
    rule: Rule
    wanted: tuple[int, ...]
    reads: tuple[int, ...]
    reruns: bool
    expanded: frozenset[str]
    maximised: frozenset[str]

    def applied(self, strategy: Strategy, mesh: Mesh) -> Applied:
        """The states under a strategy."""
        return _applied(self, strategy, mesh)


@lru_cache(maxsize=1 << 17)
def _applied(facts: Facts, strategy: Strategy, mesh: Mesh) -> Applied:
    return apply(facts.rule, facts.signature.operands, strategy, mesh)


def facts_of(graph: Graph) -> Mapping[str, Facts]:
    """The facts of every operator, by name."""
    return _facts(Same(graph))


@lru_cache(maxsize=4096)
def _facts(key: Same[Graph]) -> Mapping[str, Facts]:
    graph = key.of
    return {op.name: _facts_of(op, graph) for op in graph.ops}


def _facts_of(op: Op, graph: Graph) -> Facts:
    signature = signature_of(op, graph.types)
    rule = infer(signature)
    wanted = tuple(
        slot
        for slot, value in enumerate(op.operands)
        if value in graph.differentiable and rule.laws[slot] is not Law.INDEX and not op.no_grad
    )
    return _facts_with(signature, Same(rule), wanted)


@lru_cache(maxsize=65536)
def _facts_with(signature: Signature, rule: Same[Rule], wanted: tuple[int, ...]) -> Facts:
    """One object for equal operators of all graphs, which share what follows from a strategy."""
    expanded = frozenset(factor.name for factor in rule.of.factors if factor.expanded)
    maximised = frozenset(factor.name for factor in rule.of.factors if factor.role is Role.MAX)
    return Facts(signature, rule.of, wanted, rule.of.reads(wanted), rule.of.reruns(wanted), expanded, maximised)


def reached(graph: Graph) -> frozenset[str]:
    """Values that a gradient reaches: that of the loss, or, without one, those of all outputs."""
    return _reached(Same(graph))


@lru_cache(maxsize=512)
def _reached(key: Same[Graph]) -> frozenset[str]:
    graph = key.of
    facts = facts_of(graph)
    found = graph.differentiable.intersection((graph.loss,) if graph.loss is not None else graph.outputs)
    for op in reversed(graph.ops):
        if not found.isdisjoint(op.results):
            found |= {op.operands[slot] for slot in facts[op.name].wanted}
    return found


# Expansions ----------------------------------------------------------------------------------------------------------

Inner = tuple[str, Mapping[str, str]]
"""Of an operator of an expansion: what it expands, and its own name for every factor of that."""


def rewritten(graph: Graph, chosen: Mapping[str, Strategy]) -> tuple[Graph, Mapping[str, Strategy]]:
    """Replace operators whose expanded factors are split, and give every resulting operator its strategy."""
    expanded = _expanding(graph, chosen)
    if not expanded:
        return graph, chosen
    whole, inner = _expanded(Same(graph), expanded)
    ops = {op.name: op for op in graph.ops if op.name in expanded}
    return whole, dict(chosen) | {
        name: Strategy(tuple((axis, _inner(choice, mapping, ops[outer])) for axis, choice in chosen[outer].choices))
        for name, (outer, mapping) in inner.items()
    }


def expanded_from(graph: Graph, chosen: Mapping[str, Strategy]) -> Mapping[str, str]:
    """The operator that each operator of an expansion replaces, by name, in the result of `rewritten`."""
    expanded = _expanding(graph, chosen)
    return {name: outer for name, (outer, _) in _expanded(Same(graph), expanded)[1].items()} if expanded else {}


def _expanding(graph: Graph, chosen: Mapping[str, Strategy]) -> tuple[str, ...]:
    """The operators that are replaced."""
    facts = facts_of(graph)
    return tuple(
        name
        for name, strategy in chosen.items()
        if name in facts and not strategy.split.isdisjoint(facts[name].expanded)
    )


@lru_cache(maxsize=512)
def _expanded(key: Same[Graph], names: tuple[str, ...]) -> tuple[Graph, Mapping[str, Inner]]:
    graph = key.of
    ops: list[Op] = []
    types: dict[str, Type] = dict(graph.types)
    inner: dict[str, Inner] = {}
    for op in graph.ops:
        if op.name not in names:
            ops.append(op)
            continue
        for made, mapping in _inline(op, graph.types, types):
            ops.append(made)
            inner[made.name] = (op.name, mapping)
    return Graph(types, graph.inputs, graph.params, tuple(ops), graph.outputs, graph.updates, graph.loss), inner


def _inline(op: Op, known: Mapping[str, Type], types: dict[str, Type]) -> Iterable[tuple[Op, Mapping[str, str]]]:
    """The operators of an expansion, under names of the graph."""
    expansion = expand(signature_of(op, known))
    inner = expansion.graph
    names = {str(index): value for index, value in enumerate(op.operands)}
    names |= dict(zip(inner.outputs, op.results, strict=True))
    for step, mapping in zip(inner.ops, expansion.choices, strict=True):
        for value in step.results:
            names.setdefault(value, f"{op.name}.{value}")
            types[names[value]] = inner.types[value]
        made = replace(
            step,
            operands=tuple(names[value] for value in step.operands),
            results=tuple(names[value] for value in step.results),
            module=op.module,
            source=op.source,
            no_grad=step.no_grad or op.no_grad,
        )
        yield made, dict(mapping)


def _inner(choice: Choice, mapping: Mapping[str, str], op: Op) -> Choice:
    """The choice of an axis in one operator of an expansion, given its choice in the whole."""
    if isinstance(choice, Idle):
        return choice
    if isinstance(choice, Split) and len(choice.factors) == 1:
        inner = mapping.get(choice.factors[0])
        return Split((inner,), choice.layout) if inner else Idle()
    raise IllegalStrategy(
        place=f"%{op.name} ({op.kind})", cause=f"{choice} beside an expanded split", fix="leave that axis idle here"
    )
