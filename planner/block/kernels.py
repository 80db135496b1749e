"""What the operators of a group take, in seconds, for every option.

A group by itself is a small body: it is lowered under its option, its ledger is taken, and that is priced, as for any
body program. Nothing moves in it, so what it takes depends on the sizes of its loops on one rank only, not on which
axis cut them: options of equal sizes are one *class*, priced once, whatever the mesh and the batch. Rings and operators
that are rewritten under a split (`ir.sharding.rewrite`) do communicate; there the option itself is the class, on its
mesh.

What is computed again in the backward pass takes what it takes forward. Groups that are equal but for the names of
their values (`Form`) take the same, in whatever body they are: each is priced once for all bodies on the same terms.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

import numpy as np

from meshwright.cost_models.cost import Cost
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

    @property
    def sizeless(self) -> Form:
        """The form without extents, which equal operators of other sizes have too."""
        return _one_of_equals(replace(self, types=tuple(replace(type_, shape=()) for type_ in self.types)))

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
    """Costs of one form under one option, by phase, and what it keeps for the backward pass."""

    forward: Cost
    inputs: Cost
    weights: Cost
    kept_bytes: float
    keeps: frozenset[str]


@dataclass(frozen=True, slots=True)
class Way:
    """A form with the strategies of its operators, the states of its inputs, and the ranks of a mesh that it is run on.
    Ways that are alike take the same; only that is compared."""

    alike: Hashable
    form: Form = field(compare=False)
    strategies: tuple[Strategy, ...] = field(compare=False)
    states: tuple[State | None, ...] = field(compare=False)
    mesh: Mesh = field(compare=False)
    ranks: tuple[int, ...] = field(compare=False)


@lru_cache(maxsize=1 << 16)
def _priced(way: Way, prices: Same[Prices], workload: Workload, lowering: Lowering) -> Priced:
    """The price of a form that is run in some way."""
    form, small = way.form, _graph(Same(way.form))
    named = zip(small.inputs, way.states, strict=True)
    plan = BodyPlan(
        "group",
        "group",
        tuple((op.name, strategy) for op, strategy in zip(small.ops, way.strategies, strict=True)),
        tuple((item.value, state) for item, state in named if state is not None),
        recompute=form.chosen,
    )
    body = lower_body(small, plan, way.mesh, lowering)
    if form.ends:
        workload = replace(workload, precision=base_precision(workload))
    book = ledger(body, workload, accumulates=False)
    outside = {item.value for item in small.inputs}
    forward, inputs, weights = (
        prices.of.phase(book.phases[name], way.ranks, way.mesh, workload) for name in ("forward", "inputs", "weights")
    )
    return Priced(
        forward,
        inputs,
        weights,
        kept_bytes=sum(kept.nbytes for kept in body.kept if kept.name not in outside),
        keeps=frozenset(kept.name for kept in body.kept),
    )


@dataclass(frozen=True, slots=True)
class Local:
    """Sizes of a form on one rank: which factors are cut at all, and the extents of everything in it."""

    cut: tuple[bool, ...]
    extents: tuple[int, ...]


Sizes = Local | tuple[int, ...]
"""Of a class in which nothing moves; where extents do not follow from factors, in how many parts each factor is
cut."""


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
        classes, first, cuts = _classes(Same(options.offered))
        small, forward_only = self.form(options.group.makes, options.group.ops), None
        redone = tuple(op for op in options.group.ops if op.name in self.again)
        if redone and len(redone) < len(options.group.ops):
            forward_only = self.form(options.group.makes, redone)
        made = [
            self.priced(options, option, self.sizes(options, cut), small, bool(redone), forward_only)
            for option, cut in zip(first, cuts, strict=True)
        ]
        return [made[number] for number in classes]

    def sizes(self, options: Options, cuts: tuple[int, ...] | None) -> Sizes | None:
        """What a class that cuts factors in so many parts takes depends on; None where something moves."""
        if cuts is None or any(rule.sections or rule.slots for rule in options.offered.rules):
            return cuts
        left, local = iter(cuts), list[int]()
        for op, rule in zip(options.group.ops, options.offered.rules, strict=True):
            parts = {factor.name: next(left) for factor in rule.factors}
            types = (*self.graph.operand_types(op), *(self.graph.types[value] for value in op.results))
            for dims, type_ in zip((*rule.operands, *rule.results), types, strict=True):
                for dim, extent in zip(dims, type_.shape, strict=True):
                    local.append(extent // prod(parts[name] for name in dim))
        return Local(tuple(cut > 1 for cut in cuts), tuple(local))

    def fixed_s(self, ops: tuple[Op, ...], mesh: Mesh) -> float:
        """Seconds of operators that no option splits, forward and recomputed."""
        return self.idle_s(ops, mesh) + self.idle_s(tuple(op for op in ops if op.name in self.again), mesh)

    def idle_s(self, ops: tuple[Op, ...], mesh: Mesh) -> float:
        """Seconds of operators that no option splits, once."""
        if not ops:
            return 0.0
        found = self.price(self.form(self.graph.outputs, ops), {}, {}, mesh, ())
        return self.exposure.seconds(found.forward)

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

    def priced(
        self, options: Options, option: int, sizes: Sizes | None, whole: Named, redone: bool, forward_only: Named | None
    ) -> Times:
        strategies = options.strategies(option)
        states = {value: options.state(value, option) for value in options.states}
        found = self.price(whole, strategies, states, options.mesh, sizes)
        again = found
        if forward_only is not None:
            again = self.price(forward_only, strategies, states, options.mesh, sizes)
        seconds = self.exposure.seconds
        return Times(
            forward_s=seconds(found.forward),
            recompute_s=seconds(again.forward, backward=True) if redone else 0.0,
            inputs_s=seconds(found.inputs, backward=True),
            weights_s=seconds(found.weights, backward=True),
            kept_bytes=found.kept_bytes,
            keeps=frozenset(value for number, value in enumerate(whole[1]) if str(number) in found.keeps),
        )

    def price(
        self,
        own: Named,
        strategies: Mapping[str, Strategy],
        states: Mapping[str, State],
        mesh: Mesh,
        sizes: Sizes | None,
    ) -> Priced:
        """The price of a form as a body of its own, under one option; `sizes`: of its class, if nothing moves in it."""
        (form, values), terms = own, self.terms
        made = tuple(strategies.get(values[int(op.name)], IDLE_STRATEGY) for op in form.ops)
        given = tuple(states.get(values[int(item.value)]) for item in form.inputs)
        alike: tuple[Hashable, ...] = (Same(form), made, given, mesh, terms.ranks)
        if sizes is not None:
            known = form.sizeless if isinstance(sizes, Local) else form
            alike = (Same(known), sizes, tuple(device.name for device in terms.prices.devices(terms.ranks)))
        way = Way(alike, form, made, given, mesh, terms.ranks)
        return _priced(way, Same(terms.prices), terms.workload, terms.lowering)


@lru_cache(maxsize=4096)
def _classes(key: Same[Offered]) -> tuple[Indices, Indices, tuple[tuple[int, ...] | None, ...]]:
    """Options by class: the class of each, one option of every class, and where nothing moves in how many parts that
    cuts every factor of its operators."""
    offered = key.of
    cuts, kinds = list[Indices](), list[Indices]()
    for at, rule in enumerate(offered.rules):
        for factor in rule.factors:
            parts = [
                np.array([_cut(made[at], factor.name) for made in ways], dtype=np.int64) for ways in offered.choices
            ]
            cut = np.ones(len(offered.picks), dtype=np.int64)
            kind = np.zeros(len(offered.picks), dtype=np.int64)
            for place, (axis, own) in enumerate(zip(offered.mesh.axes, parts, strict=True)):
                chosen = own[offered.picks[:, place]]
                cut *= np.where(chosen > 0, axis.size, 1)
                kind = kind * 3 + np.where(chosen > 1, chosen - 1, 0)
                if factor.expanded:
                    kind = kind * 2 + (chosen > 0)
            cuts.append(cut)
            kinds.append(kind)
    table = np.stack([*cuts, *kinds], axis=1) if cuts else np.zeros((len(offered.picks), 2), dtype=np.int64)
    found, first, classes = np.unique(table, axis=0, return_index=True, return_inverse=True)
    half = found.shape[1] // 2
    cuts_of = tuple(None if row[half:].any() else tuple(row[:half].tolist()) for row in found)
    return classes.reshape(-1), first, cuts_of


def _cut(choice: Choice, factor: str) -> int:
    """0 if the factor is whole, 1 if it is cut, 2 in another layout than equal runs, 3 as one of a pair."""
    if not isinstance(choice, Split) or factor not in choice.factors:
        return 0
    if len(choice.factors) == 2:
        return 3
    return 2 if str(choice.layout) else 1
