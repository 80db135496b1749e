"""What a graph keeps from the forward pass for the backward pass.

In: a graph (a block, or a whole model), an execution style and a device. Out: the tensors kept, each storage once,
parameters and buffers left out, since they are there anyway. Only operators that a gradient flows through keep
anything; what a `no_grad` operator computes is kept if a differentiable one needs it.

`eager`
    The union of what every operator keeps by itself (`Rule.saved`, by device), counted by storage: keeping a slice
    keeps all of the tensor that it is a view of.
`fused`
    Chains of elementwise operators run as one kernel, which keeps what comes in from outside. A value that an
    elementwise operator or view made and that only such operators read is *interior*: where eager would keep it, its
    nearest ancestors that are not interior are kept, and the chain runs again in the backward pass.
`compiled`, `xla`
    A compiler sees forward and backward together and keeps the cheapest set of values from which the backward pass can
    start. Values that the backward pass reads (those of `eager`) can be kept, or made again by elementwise operators
    and views from others that are. The cheapest set is a minimal cut: every value is an edge that weighs its bytes;
    flow enters at graph inputs and at the results of operators that are too dear to run twice (products, attention,
    reductions), passes from operand to result through cheap ones, and leaves at what the backward pass reads
    (the partitioner of torch's AOTAutograd does the same).

Fused and compiled code keeps what CUDA kernels keep, on any device, except random masks: those are drawn again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import networkx as nx

from meshwright.ir.errors import UnknownStyle
from meshwright.ir.graph import Graph, Op
from meshwright.ir.rules.base import Engine, Rule, Save, rule_of, signature_of
from meshwright.ir.workload import STYLES


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One storage kept: a value of the graph, or an extra tensor (log-sum-exp, statistics, a mask) of an operator.

    `owner` is the value whose storage it is, the operator's name for an extra one; `op` kept it first.
    """

    value: str
    owner: str
    nbytes: int
    op: str
    extra: bool = False


def saved(graph: Graph, style: str, device: str = "cuda") -> tuple[SavedTensor, ...]:
    """The tensors kept, in the order in which operators first keep them."""
    if style == "eager":
        return tuple(_by_storage(graph, _needed(graph, device)))
    if style not in STYLES:
        raise UnknownStyle(place=repr(style), cause="no such execution style", fix=f"use one of {', '.join(STYLES)}")
    needed = [kept for kept in _needed(graph, "cuda") if not (kept.extra and _cheap(graph, graph.producer[kept.owner]))]
    extras = [kept for kept in needed if kept.extra]
    values = [kept for kept in needed if not kept.extra]
    chosen = _without_interiors(graph, values) if style == "fused" else _cut(graph, values)
    return (*_by_storage(graph, chosen), *extras)


def saved_bytes(graph: Graph, style: str, device: str = "cuda") -> int:
    return sum(kept.nbytes for kept in saved(graph, style, device))


# What operators need -------------------------------------------------------------------------------------------------


def _needed(graph: Graph, device: str) -> Iterator[SavedTensor]:
    """Every value and extra tensor that some backward formula reads, as often as it is read."""
    for op in graph.ops:
        wanted = [slot for slot, value in enumerate(op.operands) if value in graph.differentiable]
        if op.no_grad or not wanted or not any(value in graph.differentiable for value in op.results):
            continue
        rule = rule_of(op, graph.types)
        for save in rule.saved(device, wanted):
            yield _tensor(graph, op, rule, save)


def _tensor(graph: Graph, op: Op, rule: Rule, save: Save) -> SavedTensor:
    if save.what == "extra":
        nbytes = rule.save_bytes(save, signature_of(op, graph.types))
        return SavedTensor(op.name, op.name, int(nbytes), op.name, extra=True)
    value = (op.operands if save.what == "operand" else op.results)[save.index]
    return _value(graph, value, op.name)


def _value(graph: Graph, value: str, op: str) -> SavedTensor:
    return SavedTensor(value, graph.storage[value], graph.types[graph.storage[value]].nbytes, op)


def _by_storage(graph: Graph, kept: Iterable[SavedTensor]) -> Iterator[SavedTensor]:
    """Each storage once, parameters and buffers never."""
    seen = set(graph.param)
    like: dict[object, str] = {}
    for one in kept:
        owner = like.setdefault(_constant(graph, one.owner), one.owner)
        if one.extra:
            yield one
        elif owner not in seen:
            seen.add(owner)
            yield replace(one, owner=owner)


def _constant(graph: Graph, value: str) -> object:
    """What tells two values apart: constants of one law are one tensor (rotary tables that all layers share)."""
    op = graph.producer.get(value)
    return value if op is None or op.operands or op.kind != "constant" else op.attrs


def _cheap(graph: Graph, op: Op) -> bool:
    """Whether an operator may run twice: elementwise, or a view."""
    rule = rule_of(op, graph.types)
    return rule.elementwise or rule.engine is Engine.VIEW


# Fused chains --------------------------------------------------------------------------------------------------------


def _without_interiors(graph: Graph, kept: Iterable[SavedTensor]) -> Iterator[SavedTensor]:
    """Interior values replaced by what their chain reads from outside."""
    interior = _interior(graph)
    for one in kept:
        for value in _sources(graph, one.value, interior):
            yield _value(graph, value, one.op)


def _interior(graph: Graph) -> frozenset[str]:
    """Values that cheap operators make for cheap operators alone."""
    cheap = {op.name: _cheap(graph, op) for op in graph.ops}
    outputs = set(graph.outputs)
    return frozenset(
        value
        for value, op in graph.producer.items()
        if cheap[op.name]
        and value not in outputs
        and graph.readers[value]
        and all(cheap[graph.ops[reader].name] for reader, _ in graph.readers[value])
    )


def _sources(graph: Graph, value: str, interior: frozenset[str]) -> Iterator[str]:
    """The nearest ancestors that are not interior, each once, in operand order."""
    seen: set[str] = set()
    stack = [value]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if at in interior:
            stack.extend(reversed(graph.producer[at].operands))
        else:
            yield at


# Minimal cut ---------------------------------------------------------------------------------------------------------

_SOURCE, _SINK = ("source", ""), ("sink", "")
_Node = tuple[str, str]


def _cut(graph: Graph, kept: Iterable[SavedTensor]) -> Iterator[SavedTensor]:
    """The cheapest values from which all of `kept` can be had."""
    reads: dict[str, str] = {}
    for one in kept:
        reads.setdefault(one.value, one.op)
    if not reads:
        return
    _, (before, after) = nx.minimum_cut(_network(graph, reads), _SOURCE, _SINK)
    for value in graph.types:
        if ("in", value) in before and ("out", value) in after and value not in graph.param:
            yield SavedTensor(value, value, graph.types[value].nbytes, _first_reader(graph, value, reads))


def _network(graph: Graph, reads: Iterable[str]) -> nx.DiGraph:
    """Values as edges that weigh their bytes. Parameters are there anyway: no flow enters at them. An edge without a
    capacity cannot be cut."""
    network = nx.DiGraph()
    for value, type_ in graph.types.items():
        network.add_edge(("in", value), ("out", value), capacity=type_.nbytes)
        if value not in graph.producer and value not in graph.param:
            network.add_edge(_SOURCE, ("in", value))
    for op in graph.ops:
        starts: list[_Node] = [("out", value) for value in op.operands] if _cheap(graph, op) else [_SOURCE]
        network.add_edges_from((start, ("in", result)) for start in starts for result in op.results)
    network.add_edges_from((("out", value), _SINK) for value in reads)
    network.add_nodes_from((_SOURCE, _SINK))
    return network


def _first_reader(graph: Graph, value: str, reads: dict[str, str]) -> str:
    """The operator that a value is kept for: one that needs it, else the first that reads it."""
    readers = graph.readers[value]
    return reads.get(value) or (graph.ops[readers[0][0]].name if readers else graph.producer[value].name)
