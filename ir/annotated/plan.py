"""The plan that a model's own shardings stand for.

Where code says how some values and parameters lie, the partitioner of XLA finds out the rest: operator by operator, an
axis follows what is cut already. Here each operator takes, for every axis of the mesh, the choice that moves the fewest
elements: of the loops that its cut operands, its parameters and what is known of its results run over, and of idleness,

    operands that lie otherwise             are gathered
    results that lie otherwise than said    are moved
    results that are sums                   are added up; where operands lie as they are summed, XLA always does that

and of several the one that splits. Bodies are swept in running order, then backwards, so that what is said of a value
reaches what it is made of, then in order again. XLA decides by costs of its own: where code says little, what is
priced is what this rule finds. Parameters are stored as they are said to be, gathered where operators want more of them
(FSDP); their gradients and the optimizer's states lie as they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from meshwright.ir.annotated.annotations import Annotations, Spec
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.errors import AnnotationMissing, IllegalStrategy, IndivisibleExtent, SectionsMismatch
from meshwright.ir.graph.fold import Call, Fold, FromInput, FromSegment, Source, joined
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.gradients import pass_weight_gradients
from meshwright.ir.names.recompute import recomputed
from meshwright.ir.names.storage import fits
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.rules.base import Rule
from meshwright.ir.rules.registry import rules_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import IDLE, Applied, Choice, Split, Strategy, apply
from meshwright.ir.sharding.layouts import CONTIGUOUS, Contiguous, Nested
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Dim, Placement, Shard, State
from meshwright.ir.target.capabilities import Capabilities

Dims = tuple[Dim, ...]
Value = tuple[str, str]
"""A value of a body, by both names."""


def annotated(
    fold: Fold, said: Annotations, mesh: Mesh, target: Capabilities, *, microbatches: int = 1, recompute: str = "none"
) -> Decisions:
    """The plan of one stage on a mesh, for a target. Raises `AnnotationMissing` where nothing is said."""
    if not said:
        raise AnnotationMissing(
            place="--annotated",
            cause="the model's code says of no value and no parameter where it lies",
            fix="put jax.lax.with_sharding_constraint into it, or partitioning metadata on its parameters",
        )
    found = _Propagation(fold, said, mesh)
    for forwards in (True, False, True):
        found.sweep(forwards=forwards)
    bodies = dict.fromkeys(call.body.name for call in fold.calls())
    plans = tuple(found.plan(name, recompute, regather=target.regathers) for name in bodies)
    names = tuple(sorted(plan.name for plan in plans))
    stage = StagePlan(0, len(list(fold.calls())), mesh, tuple(range(mesh.size)), names)
    return target.stored(Decisions(plans, (stage,), Schedule("1f1b", microbatches), target.target), fold)


@dataclass
class _Propagation:
    """The choices of all operators, and where values lie, as far as that is known."""

    fold: Fold
    said: Annotations
    mesh: Mesh
    chosen: dict[Value, Strategy] = field(default_factory=dict)
    lies: dict[Value, Dims] = field(default_factory=dict)
    """Where values lie that are said to, or whose operator has chosen."""
    wanted: dict[Value, Dims] = field(default_factory=dict)
    """Where the first reader of a value takes it."""

    def __post_init__(self) -> None:
        self.axes = tuple(axis.name for axis in self.mesh.axes if axis.size > 1)
        self.rules = {body.name: rules_of(Same(body.graph)) for body in self.fold.bodies}
        self.fixed = {at: self.dims(spec, self.shape(at)) for at, spec in self.said.values.items()}
        self.stored: dict[Value, Dims] = {}
        for call in self.fold.calls():
            for param in call.body.graph.params:
                spec, at = self.said.params.get(joined(call.path, param.path)), (call.body.name, param.value)
                if spec is not None:
                    self.stored.setdefault(at, self.dims(spec, self.shape(at)))
        for body in self.fold.bodies:
            for param in body.graph.params:
                if (body.name, param.value) in self.fixed:
                    self.stored.setdefault((body.name, param.value), self.fixed[body.name, param.value])
        self.lies |= self.stored
        self.lies |= self.fixed

    def shape(self, at: Value) -> tuple[int, ...]:
        body, value = at
        return self.fold.body[body].graph.types[value].shape

    def dims(self, spec: Spec, shape: tuple[int, ...]) -> Dims:
        """What is said as shards, in the order of the mesh, of those that are cut evenly: XLA pads the others."""
        found: list[Dim] = []
        for extent, axes in zip(shape, (*spec, *((),) * len(shape)), strict=False):
            shards: Dim = ()
            for axis in (axis for axis in self.axes if axis in axes):
                if fits(extent, (*shards, Shard(axis)), self.mesh):
                    shards = (*shards, Shard(axis))
            found.append(shards)
        return tuple(found)

    # sweeps

    def sweep(self, *, forwards: bool) -> None:
        """Choose for every operator of every body once, in running order or against it."""
        seen: set[str] = set()
        calls = list(self.fold.calls())
        for number in range(len(calls)) if forwards else reversed(range(len(calls))):
            call, before = calls[number], calls[number - 1].body.name
            if call.body.name in seen:
                continue
            seen.add(call.body.name)
            graph = call.body.graph
            if forwards:
                self.enter(call, before)
            for at in range(len(graph.ops)) if forwards else reversed(range(len(graph.ops))):
                self.choose(call.body.name, graph, at)

    def enter(self, call: Call, before: str) -> None:
        """Take over where inputs of a body lie: as what feeds its first call, which `before` runs before, and as what
        feeds later ones, once that is known."""
        segment = self.fold.segments[call.segment]
        again = segment.wires[call.position] if len(segment.paths) > len(segment.period) else call.sources
        previous = segment.period[call.position - 1] if again is not call.sources else before
        for item, first, later in zip(call.body.graph.inputs, call.sources, again, strict=True):
            at = call.body.name, item.value
            for source, body in ((first, before), (later, previous)):
                dims = self.given(source, body)
                if dims is not None and at not in self.fixed:
                    self.lies[at] = dims

    def given(self, source: Source, previous: str) -> Dims | None:
        """Where the output lies that feeds an input; None for entries of the batch, which lie as they are read."""
        if isinstance(source, FromInput):
            return None
        body = previous
        if isinstance(source, FromSegment):
            body = self.fold.segments[source.segment].period[source.position]
        return self.lies.get((body, self.fold.body[body].graph.outputs[source.output]))

    def choose(self, body: str, graph: Graph, at: int) -> None:
        """The choices of the operator at a place of a graph, axis by axis."""
        op = graph.ops[at]
        rule, strategy = self.rules[body][op.name], Strategy()
        for axis in self.axes:
            best: tuple[tuple[float, bool, str], Strategy] | None = None
            for choice in dict.fromkeys((IDLE, *self.candidates(body, op, rule, axis))):
                tried = Strategy((*strategy.choices, (axis, choice)))
                try:
                    applied = apply(rule, graph.operand_types(op), tried, self.mesh)
                except (IllegalStrategy, IndivisibleExtent, SectionsMismatch):
                    continue
                order = self.moved(body, op, applied, axis), choice == IDLE, str(choice)
                best = min(filter(None, (best, (order, tried))), key=lambda one: one[0])
            assert best is not None, "an axis may always be idle"
            strategy = best[1]
        self.chosen[body, op.name] = strategy
        applied = apply(rule, graph.operand_types(op), strategy, self.mesh)
        for value, state in zip(op.results, applied.results, strict=True):
            if (body, value) not in self.fixed:
                self.lies[body, value] = state.dims
        for value, state in zip(op.operands, applied.operands, strict=True):
            if graph.readers[value][0][0] == at:
                self.wanted[body, value] = state.dims

    def candidates(self, body: str, op: Op, rule: Rule, axis: str) -> Iterator[Choice]:
        """The splits over loops that a tensor of an operator is cut along already."""
        for values, sides, known in (
            (op.operands, rule.operands, (self.lies,)),
            (op.results, rule.results, (self.fixed, self.wanted)),
        ):
            for value, dims in zip(values, sides, strict=True):
                for places in known:
                    for factors, shards in zip(dims, places.get((body, value), ()), strict=False):
                        yield from (self.split(rule, factors, one) for one in shards if one.axis == axis and factors)

    def split(self, rule: Rule, factors: Sequence[str], shard: Shard) -> Split:
        """The split of the loop that a shard cuts, of those that a dimension runs over, major to minor."""
        layout = shard.layout
        if len(factors) == 1:
            return Split((factors[0],), layout)
        if isinstance(layout, Nested):
            outer = 1
            for name in factors:
                if outer == layout.runs:
                    return Split((name,))
                outer *= rule.factor(name).size
        longer = [name for name in factors if rule.factor(name).size > 1]
        return Split(((longer or list(factors))[0],), layout if isinstance(layout, Contiguous) else CONTIGUOUS)

    def moved(self, body: str, op: Op, applied: Applied, axis: str) -> float:
        """The elements that are moved along an axis for an operator under a strategy."""
        found = 0.0
        for value, state in zip(op.operands, applied.operands, strict=True):
            lies = self.lies.get((body, value))
            if lies is not None and (cut := _at(lies, axis)) is not None and cut != _at(state.dims, axis):
                found += prod(self.shape((body, value)))
        as_they_lie = not found
        for value, state in zip(op.results, applied.results, strict=True):
            size = prod(self.shape((body, value)))
            lies = self.fixed.get((body, value)) or self.wanted.get((body, value))
            summed, said = any(one.axis == axis for one in state.partial), _at(lies or (), axis)
            if summed:
                found += 0 if as_they_lie else size if said is not None else 2 * size
            elif lies is not None and _at(state.dims, axis) not in (None, said):
                found += size
        return found

    # plans

    def plan(self, name: str, recompute: str, *, regather: bool) -> BodyPlan:
        """The plan of a body."""
        graph, loops = self.fold.body[name].graph, loops_of(Same(self.fold))[name]
        chosen = {op.name: self.chosen[name, op.name] for op in graph.ops}
        ends = dict.fromkeys((*(item.value for item in graph.inputs), *graph.outputs))
        states = {value: State(self.at_ends(name, value)) for value in ends}
        states |= {value: State(dims) for (body, value), dims in self.fixed.items() if body == name}
        states = {value: state for value, state in states.items() if value not in graph.param}
        shared = {value for value, dims in loops.dims.items() if not any("b" in names for names in dims)}
        pass_weight_gradients(graph, self.rules[name], shared.__contains__, chosen, states, self.mesh)
        again = recomputed(graph, loops, recompute)
        plan = BodyPlan(name, name, tuple(chosen.items()), tuple(states.items()), recompute=again, regather=regather)
        return replace(plan, storage=tuple(self.storage(name, graph, plan)))

    def at_ends(self, body: str, value: str) -> Dims:
        """Where a value that enters or leaves a body lies; entries of the batch, and what nothing makes, as read."""
        whole: Dims = ((),) * len(self.shape((body, value)))
        return self.lies.get((body, value)) or self.wanted.get((body, value)) or whole

    def storage(self, body: str, graph: Graph, plan: BodyPlan) -> Iterator[Storage]:
        """Where parameters are stored: as operators take them, and over the other axes that are said."""
        computed = compute_placements(graph, plan, self.mesh)
        for param in graph.params:
            said, compute = self.stored.get((body, param.value)), computed[param.path]
            if said is None or not param.requires_grad or param.buffer:
                continue
            used, dims = set(compute.axes), list(compute.dims)
            for at, shards in enumerate(said):
                more = tuple(one for one in shards if one.axis not in used)
                if more and fits(graph.types[param.value].shape[at], (*dims[at], *more), self.mesh):
                    dims[at] = (*dims[at], *more)
            there = Placement(tuple(dims))
            if there != Placement(compute.dims):
                yield Storage(param.path, there, there, there)


def _at(dims: Dims, axis: str) -> int | None:
    """The dimension that an axis cuts."""
    return next((at for at, shards in enumerate(dims) if any(one.axis == axis for one in shards)), None)
