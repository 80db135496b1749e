"""Gradients of copies that stay sums: they are added up later, with less to send, or once for several.

made of parameters alone    with the gradient of the parameter, once a step and not once a micro-batch
copied for all heads        at what is copied, before positions are turned into it, and what else costs little
adapters of low rank        a product of copies, read by products that are cut: its gradient goes on to the weights,
                            where it is small, and to what it reads, where others leave sums too
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.rules.base import Role, Rule
from meshwright.ir.sharding.adjoint import IDLE, Choice, Idle, Strategy, apply
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State

THROUGH = Idle(grad_partial=True)
REDUCED = (Role.SUM, Role.MAX)


def pass_weight_gradients(
    graph: Graph,
    rules: Mapping[str, Rule],
    shared: Callable[[str], bool],
    chosen: dict[str, Strategy],
    ends: Mapping[str, State],
    mesh: Mesh,
) -> None:
    """What is computed from parameters alone (a cast, 1 + weight), or looked up in them at places that no batch says
    (positions), here or in bodies before, passes gradients through as the partial sums that all its readers leave, so
    that they are reduced with the parameter's, once a step and not once a micro-batch."""
    given = [item.value for item in graph.inputs if ends[item.value].grad_partial]
    for op in reversed(from_weights(graph, shared, given)):
        if set(op.results) - graph.differentiable:
            continue
        states = [state for value in op.results for state in _wanted(graph, rules, chosen, mesh, value)]
        states += [ends[value] for value in graph.outputs if value in op.results]
        through = [
            axis
            for axis in mesh.names
            if states and chosen[op.name].of(axis) == IDLE and all(axis in state.grad_partial for state in states)
        ]
        for axis in through:
            chosen[op.name] = _with(chosen[op.name], axis, THROUGH)


def from_weights(graph: Graph, shared: Callable[[str], bool], given: Iterable[str] = ()) -> list[Op]:
    """Operators on parameters alone, values made of them, given values, and values without gradient that all samples
    share."""
    weights = {param.value for param in graph.params if not param.buffer}.union(given)
    found = []
    for op in graph.ops:
        others = [value for value in op.operands if value not in weights]
        if len(others) < len(op.operands) and all(v not in graph.differentiable and shared(v) for v in others):
            weights.update(op.results)
            found.append(op)
    return found


def leave_sums(
    graph: Graph, rules: Mapping[str, Rule], given: Mapping[str, Strategy], mesh: Mesh, axis: str
) -> dict[str, Strategy]:
    """Strategies that leave sums: for values that are copied for all heads, and for adapters of low rank, on an axis
    that cuts heads."""
    chosen, found = dict(given), dict[str, Strategy]()
    weights = {param.value for param in graph.params if not param.buffer}
    copied = set[str]()
    """Operators that make nothing but what is copied."""

    def sums(value: str) -> list[bool]:
        """Whether the readers of a value leave sums of its gradient."""
        return [axis in state.grad_partial for state in _wanted(graph, rules, chosen, mesh, value)]

    for op in reversed(graph.ops):
        if op.kind == "expand":
            if axis in _wanted_by(graph, rules, chosen, mesh, op, 0).grad_partial:
                copied.add(op.name)
        elif op.kind == "linear" and weights.intersection(op.operands):
            whole = all(
                _wanted_by(graph, rules, chosen, mesh, op, slot).value.on(axis) is None
                for slot, value in enumerate(op.operands)
                if value in weights
            )
            if whole and _all(sums(op.results[0])) and any(sums(op.operands[0])):
                found[op.name] = chosen[op.name] = _with(chosen[op.name], axis, THROUGH)
        elif weights.isdisjoint(op.operands) and not any(f.role in REDUCED for f in rules[op.name].factors):
            readers = [graph.ops[index].name in copied for value in op.results for index, _ in graph.readers[value]]
            if _all(readers) and graph.differentiable.issuperset(op.results):
                copied.add(op.name)
                found[op.name] = chosen[op.name] = _with(chosen[op.name], axis, THROUGH)
    return found


def _all(found: list[bool]) -> bool:
    return bool(found) and all(found)


def _wanted(
    graph: Graph, rules: Mapping[str, Rule], chosen: Mapping[str, Strategy], mesh: Mesh, value: str
) -> list[State]:
    """The state in which the readers of a value want it."""
    return [_wanted_by(graph, rules, chosen, mesh, graph.ops[index], slot) for index, slot in graph.readers[value]]


def _wanted_by(
    graph: Graph, rules: Mapping[str, Rule], chosen: Mapping[str, Strategy], mesh: Mesh, op: Op, slot: int
) -> State:
    return apply(rules[op.name], graph.operand_types(op), chosen[op.name], mesh).operands[slot]


def _with(strategy: Strategy, axis: str, choice: Choice) -> Strategy:
    return Strategy((*(pair for pair in strategy.choices if pair[0] != axis), (axis, choice)))
