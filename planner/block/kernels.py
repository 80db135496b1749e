"""What the operators of a group take, in seconds, for every option.

A group by itself is a small body: it is lowered under its option, its ledger is taken, and that is priced, as for any
body program. Nothing moves in it, so what it takes depends on the sizes of its loops on one rank only, not on which
axis cut them: options of equal sizes are one *class*, priced once. Rings and operators that are rewritten under a split
(`ir.sharding.rewrite`) do communicate; there the option itself is the class.

What is computed again in the backward pass takes what it takes forward. Groups that are equal but for the names of
their values (`Form`) take the same, in whatever body they are: each is priced once for all bodies on the same terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from meshwright.cost_models.ledger.ledger import base_precision, ledger
from meshwright.cost_models.prices import Prices
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph, Input, Op, Param, Type
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.spread import IDLE_STRATEGY
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.ir.target.workload import Workload
from meshwright.planner.block.exposure import Exposure
from meshwright.planner.block.singles import Indices
from meshwright.planner.block.space import Terms
from meshwright.planner.block.strategies import Offered, Options


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


@dataclass(frozen=True, slots=True)
class Form:
    """Some operators as a graph whose values have numbers for names, in the order in which they are defined, and
    whatever else their prices depend on but for an option."""

    types: tuple[Type, ...]
    inputs: tuple[Input, ...]
    params: tuple[Param, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    chosen: tuple[str, ...]
    """What of it is not kept."""
    ends: bool
    """Whether it is of a body that ends in a scalar: a model's last."""

    @staticmethod
    def of(small: Graph, chosen: frozenset[str], *, ends: bool) -> tuple[Form, tuple[str, ...]]:
        """The form of a graph, and the values that its names stand for."""
        values = [item.value for item in small.inputs] + [param.value for param in small.params]
        values += [value for op in small.ops for value in op.results]
        numbers = {value: str(number) for number, value in enumerate(values)}

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(numbers[name] for name in names)

        params = (replace(param, value=numbers[param.value], paths=(numbers[param.value],)) for param in small.params)
        form = Form(
            types=tuple(small.types[value] for value in values),
            inputs=tuple(replace(item, value=numbers[item.value]) for item in small.inputs),
            params=tuple(params),
            ops=tuple(
                replace(op, operands=renamed(op.operands), results=renamed(op.results), module="", source="")
                for op in small.ops
            ),
            outputs=renamed(small.outputs),
            chosen=tuple(number for value, number in numbers.items() if value in chosen and value in small.producer),
            ends=ends,
        )
        return _one_of_equals(form), tuple(values)

    def graph(self) -> Graph:
        types = {str(number): type_ for number, type_ in enumerate(self.types)}
        return Graph(types, self.inputs, self.params, self.ops, self.outputs)


Named = tuple[Form, tuple[str, ...]]
"""A form, and the values that its names stand for."""


@lru_cache(maxsize=8192)
def _one_of_equals(form: Form) -> Form:
    """One object for equal forms, which caches find without comparing graphs."""
    return form


@lru_cache(maxsize=8192)
def _graph(key: Same[Form]) -> Graph:
    """One graph per form, so that what is known of it is found again."""
    return key.of.graph()


@dataclass(frozen=True, slots=True)
class Priced:
    """Exposed seconds of one form under one option, by phase, and what it keeps for the backward pass."""

    forward_s: float
    forward_again_s: float
    """Where the backward pass runs it once more."""
    inputs_s: float
    weights_s: float
    kept_bytes: float
    keeps: frozenset[str]


@lru_cache(maxsize=1 << 16)
def _priced(
    key: Same[Form],
    strategies: tuple[Strategy, ...],
    states: tuple[State | None, ...],
    mesh: Mesh,
    prices: Same[Prices],
    ranks: tuple[int, ...],
    workload: Workload,
    lowering: Lowering,
    exposure: Exposure,
) -> Priced:
    """The price of a form whose operators have these strategies, and its inputs these states."""
    form, small = key.of, _graph(key)
    named = zip(small.inputs, states, strict=True)
    plan = BodyPlan(
        "group",
        "group",
        tuple((op.name, strategy) for op, strategy in zip(small.ops, strategies, strict=True)),
        tuple((item.value, state) for item, state in named if state is not None),
        recompute=form.chosen,
    )
    body = lower_body(small, plan, mesh, lowering)
    if form.ends:
        workload = replace(workload, precision=base_precision(workload))
    book = ledger(body, workload, accumulates=False)
    costs = {
        name: prices.of.phase(book.phases[name], ranks, mesh, workload) for name in ("forward", "inputs", "weights")
    }
    outside = {item.value for item in small.inputs}
    return Priced(
        forward_s=exposure.seconds(costs["forward"]),
        forward_again_s=exposure.seconds(costs["forward"], backward=True),
        inputs_s=exposure.seconds(costs["inputs"], backward=True),
        weights_s=exposure.seconds(costs["weights"], backward=True),
        kept_bytes=sum(kept.nbytes for kept in body.kept if kept.name not in outside),
        keeps=frozenset(kept.name for kept in body.kept),
    )


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
        classes, first = _classes(Same(options.offered))
        small, forward_only = self.form(options.group.makes, options.group.ops), None
        redone = tuple(op for op in options.group.ops if op.name in self.again)
        if redone and len(redone) < len(options.group.ops):
            forward_only = self.form(options.group.makes, redone)
        made = [self.priced(options, option, small, bool(redone), forward_only) for option in first]
        return [made[number] for number in classes]

    def fixed_s(self, ops: tuple[Op, ...], mesh: Mesh) -> float:
        """Seconds of operators that no option splits, forward and recomputed."""
        return self.idle_s(ops, mesh) + self.idle_s(tuple(op for op in ops if op.name in self.again), mesh)

    def idle_s(self, ops: tuple[Op, ...], mesh: Mesh) -> float:
        """Seconds of operators that no option splits, once."""
        if not ops:
            return 0.0
        return self.price(self.form(self.graph.outputs, ops), {}, {}, mesh).forward_s

    def subgraph(self, makes: tuple[str, ...], ops: tuple[Op, ...]) -> Graph:
        """Some operators of a group as a graph of their own."""
        inside = {value for op in ops for value in op.results}
        operands = dict.fromkeys(value for op in ops for value in op.operands if value not in inside)
        order = list(self.graph.param)
        params = tuple(self.graph.param[value] for value in sorted(operands.keys() & order, key=order.index))
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

    def form(self, makes: tuple[str, ...], ops: tuple[Op, ...]) -> Named:
        """Some operators of a group as a form, and the values that its names stand for."""
        ends = any(not self.graph.types[value].shape for value in self.graph.outputs)
        return Form.of(self.subgraph(makes, ops), self.chosen, ends=ends)

    def priced(self, options: Options, option: int, whole: Named, redone: bool, forward_only: Named | None) -> Times:
        strategies = options.strategies(option)
        states = {value: options.state(value, option) for value in options.states}
        found = self.price(whole, strategies, states, options.mesh)
        again = found if forward_only is None else self.price(forward_only, strategies, states, options.mesh)
        return Times(
            forward_s=found.forward_s,
            recompute_s=again.forward_again_s if redone else 0.0,
            inputs_s=found.inputs_s,
            weights_s=found.weights_s,
            kept_bytes=found.kept_bytes,
            keeps=frozenset(value for number, value in enumerate(whole[1]) if str(number) in found.keeps),
        )

    def price(self, own: Named, strategies: Mapping[str, Strategy], states: Mapping[str, State], mesh: Mesh) -> Priced:
        """The price of a form as a body of its own, under one option."""
        (form, values), terms = own, self.terms
        return _priced(
            Same(form),
            tuple(strategies.get(values[int(op.name)], IDLE_STRATEGY) for op in form.ops),
            tuple(states.get(values[int(item.value)]) for item in form.inputs),
            mesh,
            Same(terms.prices),
            terms.ranks,
            terms.workload,
            terms.lowering,
            self.exposure,
        )


@lru_cache(maxsize=4096)
def _classes(key: Same[Offered]) -> tuple[Indices, Indices]:
    """Options by class: the class of each, and one option of every class."""
    offered, columns = key.of, []
    for at, rule in enumerate(offered.rules):
        for factor in rule.factors:
            parts = [
                np.array([_cut(made[at], factor.name) for made in ways], dtype=np.int64) for ways in offered.choices
            ]
            column = np.ones(len(offered.picks), dtype=np.int64)
            kinds = np.zeros(len(offered.picks), dtype=np.int64)
            for place, (axis, cut) in enumerate(zip(offered.mesh.axes, parts, strict=True)):
                chosen = cut[offered.picks[:, place]]
                column *= np.where(chosen > 0, axis.size, 1)
                kinds = kinds * 3 + np.where(chosen > 1, chosen - 1, 0)
                if factor.expanded:
                    kinds = kinds * 2 + (chosen > 0)
            columns += [column, kinds]
    table = np.stack(columns, axis=1) if columns else np.zeros((len(offered.picks), 1), dtype=np.int64)
    _, first, classes = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return classes.reshape(-1), first


def _cut(choice: Choice, factor: str) -> int:
    """0 if the factor is whole, 1 if it is cut, 2 in another layout than equal runs, 3 as one of a pair."""
    if not isinstance(choice, Split) or factor not in choice.factors:
        return 0
    if len(choice.factors) == 2:
        return 3
    return 2 if str(choice.layout) else 1
