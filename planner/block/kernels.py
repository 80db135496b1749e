"""What the operators of a group take, in seconds, for every option.

A group by itself is a small body: it is lowered under its option, its ledger is taken, and that is priced, as for any
body program. Nothing moves in it, so what it takes depends on the sizes of its loops on one rank only, not on which
axis cut them: options of equal sizes are one *class*, priced once. Rings and operators that are rewritten under a split
(`ir.sharding.rewrite`) do communicate; there the option itself is the class.

What is computed again in the backward pass takes what it takes forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost_models.cost import Cost
from meshwright.cost_models.ledger.ledger import base_precision, ledger
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph, Input, Op
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.program.program import BodyProgram
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.ir.sharding.rewrite import facts_of
from meshwright.planner.block.exposure import Exposure
from meshwright.planner.block.space import Terms
from meshwright.planner.block.strategies import Indices, Options


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds and saved bytes of a group per micro-batch."""

    forward_s: float = 0.0
    recompute_s: float = 0.0
    inputs_s: float = 0.0
    weights_s: float = 0.0
    kept_bytes: float = 0.0
    """What its own operators keep for the backward pass, beside what they read from elsewhere."""
    keeps: frozenset[str] = frozenset()
    """What it keeps, by name: values read from elsewhere too."""

    @property
    def total_s(self) -> float:
        return self.forward_s + self.recompute_s + self.inputs_s + self.weights_s


@dataclass(slots=True)
class Kernels:
    """Prices groups of one body; equal groups of equal sizes are priced once."""

    graph: Graph
    terms: Terms
    exposure: Exposure
    again: frozenset[str]
    """Operators that the backward pass computes again."""
    chosen: frozenset[str]
    """Values that are not kept."""

    def times(self, options: Options) -> list[Times]:
        """The times of a group under every option."""
        classes, first = self.classes(options)
        small, forward_only = self.subgraph(options.group.makes, options.group.ops), None
        redone = tuple(op for op in options.group.ops if op.name in self.again)
        if redone and len(redone) < len(options.group.ops):
            forward_only = self.subgraph(options.group.makes, redone)
        made = [self.priced(options, option, small, bool(redone), forward_only) for option in first]
        return [made[number] for number in classes]

    def fixed_s(self, ops: tuple[Op, ...], mesh: Mesh) -> float:
        """Seconds of operators that no option splits, forward and recomputed."""
        return self.idle_s(ops, mesh) + self.idle_s(tuple(op for op in ops if op.name in self.again), mesh)

    def idle_s(self, ops: tuple[Op, ...], mesh: Mesh) -> float:
        """Seconds of operators that no option splits, once."""
        if not ops:
            return 0.0
        body = lower_body(self.subgraph(self.graph.outputs, ops), BodyPlan("fixed", "fixed"), mesh, self.terms.lowering)
        return self.body_costs(body)["forward"].device_s

    def classes(self, options: Options) -> tuple[Indices, Indices]:
        """Options by class: the class of each, and one option of every class."""
        columns = []
        for at, op in enumerate(options.group.ops):
            for factor in facts_of(self.graph)[op.name].rule.factors:
                parts = [
                    np.array([_cut(one.choices[at], factor.name) for one in singles], dtype=np.int64)
                    for singles in options.singles
                ]
                column = np.ones(len(options), dtype=np.int64)
                kinds = np.zeros(len(options), dtype=np.int64)
                for place, (axis, cut) in enumerate(zip(options.mesh.axes, parts, strict=True)):
                    chosen = cut[options.picks[:, place]]
                    column *= np.where(chosen > 0, axis.size, 1)
                    kinds = kinds * 3 + np.where(chosen > 1, chosen - 1, 0)
                    if factor.expanded:
                        kinds = kinds * 2 + (chosen > 0)
                columns += [column, kinds]
        table = np.stack(columns, axis=1) if columns else np.zeros((len(options), 1), dtype=np.int64)
        _, first, classes = np.unique(table, axis=0, return_index=True, return_inverse=True)
        return classes.reshape(-1), first

    def subgraph(self, makes: tuple[str, ...], ops: tuple[Op, ...]) -> Graph:
        """Some operators of a group as a graph of their own."""
        inside = {value for op in ops for value in op.results}
        operands = dict.fromkeys(value for op in ops for value in op.operands if value not in inside)
        params = tuple(param for param in self.graph.params if param.value in operands)
        held = {param.value for param in params}
        inputs = tuple(
            Input(value, requires_grad=value in self.graph.differentiable) for value in operands if value not in held
        )
        leaving = tuple(
            value
            for value in [value for op in ops for value in op.results]
            if value in makes or not self.read_in(value, ops)
        )
        types = {value: self.graph.types[value] for value in (*operands, *inside)}
        return Graph(types, inputs, params, ops, leaving)

    def read_in(self, value: str, ops: tuple[Op, ...]) -> bool:
        return any(value in op.operands for op in ops)

    def priced(self, options: Options, option: int, small: Graph, redone: bool, forward_only: Graph | None) -> Times:
        strategies = options.strategies(option)
        states = {value: options.state(value, option) for value in options.states}
        body = self.lowered(small, strategies, states, options.mesh)
        costs = self.body_costs(body)
        again = costs["forward"]
        if forward_only is not None:
            again = self.body_costs(self.lowered(forward_only, strategies, states, options.mesh))["forward"]
        seconds = self.exposure.seconds
        outside = {item.value for item in small.inputs}
        return Times(
            forward_s=seconds(costs["forward"]),
            recompute_s=seconds(again, backward=True) if redone else 0.0,
            inputs_s=seconds(costs["inputs"], backward=True),
            weights_s=seconds(costs["weights"], backward=True),
            kept_bytes=sum(kept.nbytes for kept in body.kept if kept.name not in outside),
            keeps=frozenset(kept.name for kept in body.kept),
        )

    def lowered(
        self, graph: Graph, strategies: Mapping[str, Strategy], states: Mapping[str, State], mesh: Mesh
    ) -> BodyProgram:
        """A group as a body of its own, under one option."""
        named = tuple((item.value, states[item.value]) for item in graph.inputs if item.value in states)
        made = [value for op in graph.ops for value in op.results if value in self.chosen]
        own = tuple((op.name, strategies[op.name]) for op in graph.ops)
        plan = BodyPlan("group", "group", own, named, recompute=tuple(made))
        return lower_body(graph, plan, mesh, self.terms.lowering)

    def body_costs(self, body: BodyProgram) -> Mapping[str, Cost]:
        """The costs of a small body, by phase."""
        workload = self.terms.workload
        if any(not self.graph.types[value].shape for value in self.graph.outputs):
            workload = replace(workload, precision=base_precision(workload))
        book = ledger(body, workload, accumulates=False)
        return {name: self.terms.cost(book.phases[name], body.mesh) for name in ("forward", "inputs", "weights")}


def _cut(choice: Choice, factor: str) -> int:
    """0 if the factor is whole, 1 if it is cut, 2 in another layout than equal runs, 3 as one of a pair."""
    if not isinstance(choice, Split) or factor not in choice.factors:
        return 0
    if len(choice.factors) == 2:
        return 3
    return 2 if str(choice.layout) else 1
