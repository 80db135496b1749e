"""The plan of one body by named degrees: the use of every mesh axis in every operator, by the table of names.

Operator by operator, an axis splits the first of its preferred loops that can be split there, and is idle where there
is none. A product that is cut into sections afterwards (fused q|k|v, gate|up) is split as its sections are, each by
itself. Where loops are one dimension, an inner one is split in equal runs: tokens that were flattened, over the
sequence sample by sample; queries, keys and values that one product makes, over the heads of each.

What is asked of single operators (`ir.names.pinned`) comes first: of the preferred loops those that are allowed; and
where that leaves an operator without what it must have, the innermost axis that can is moved there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from meshwright.ir.analysis.loops import Loops, Names, stem
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent, ModulePinUnmet, SectionsMismatch
from meshwright.ir.graph.fold import Body
from meshwright.ir.graph.graph import Graph, Op, Type
from meshwright.ir.names.degrees import CONTEXTS, SEQUENCE, Degrees
from meshwright.ir.names.gradients import from_weights, leave_sums, pass_weight_gradients
from meshwright.ir.names.pinned import FREE, Allowed, Words, recomputing
from meshwright.ir.names.recompute import recomputed
from meshwright.ir.names.storage import fits, stored
from meshwright.ir.rules.base import Rule
from meshwright.ir.rules.registry import rules_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import SPLITTABLE, Choice, Split, Strategy, apply
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested, Sections
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Shard, State


def body_template(body: Body, found: Loops, mesh: Mesh, degrees: Degrees) -> BodyPlan:
    """The plan of a body; `found` are its loops."""
    return with_storage(body, found, computed(body.graph, found, mesh, degrees), mesh, degrees)


Computed = tuple[Mapping[str, Strategy], Mapping[str, State]]
"""The strategy of every operator, and the states of inputs and outputs."""


def computed(
    graph: Graph, found: Loops, mesh: Mesh, degrees: Degrees, pins: Mapping[str, Allowed] | None = None
) -> Computed:
    """The use of every axis in every operator of a body, by the table and by pins, and the states of values that enter
    and leave. Raises `ModulePinUnmet`."""
    planning = _Planning(graph, found, mesh, degrees, pins or {})
    chosen = {op.name: planning.strategy(op) for op in graph.ops}
    _follow_readers(graph, planning, chosen)
    ends = dict.fromkeys([*(item.value for item in graph.inputs), *graph.outputs])
    states = {value: planning.state(value) for value in ends}
    pass_weight_gradients(graph, planning.rules, planning.shared, chosen, states, mesh)
    for axis in (axis for axis, outside in planning.outside.items() if outside == "tp"):
        chosen |= leave_sums(graph, planning.rules, chosen, mesh, axis)
    return chosen, states


def with_storage(
    body: Body,
    found: Loops,
    computed: Computed,
    mesh: Mesh,
    degrees: Degrees,
    pins: Mapping[str, Allowed] | None = None,
) -> BodyPlan:
    """A plan completed by storage and recomputation."""
    (chosen, states), first = computed, degrees.first_layers
    again = recomputed(body.graph, found, "full" if first else degrees.recompute)
    return BodyPlan(
        f"{body.name}.first" if first else body.name,
        body.name,
        tuple(chosen.items()),
        tuple(states.items()),
        stored(body.graph, found, chosen, states, mesh, degrees),
        recomputing(body.graph, pins, again) if pins else again,
        degrees.regather,
        first,
    )


@dataclass(frozen=True, slots=True)
class _Fused:
    """A dimension that is cut into sections: the loops that every section runs over."""

    dim: int
    sizes: tuple[int, ...]
    loops: tuple[str, ...]


def _fused(graph: Graph, rules: Mapping[str, Rule], found: Loops) -> Mapping[str, _Fused]:
    """The values that are cut into sections."""
    return {
        op.operands[slot]: _Fused(dim, sizes, found.factors[op.name][rules[op.name].operands[slot][dim][0]])
        for op in graph.ops
        for side, slot, dim, sizes in rules[op.name].sections
        if side == "operand"
    }


class _Read:
    """What planning reads of a body, whatever the degrees."""

    def __init__(self, graph: Graph, found: Loops) -> None:
        self.graph, self.found = graph, found
        self.rules = rules_of(Same(graph))
        learned = set(graph.differentiable)
        for op in graph.ops:
            if not learned.isdisjoint(op.operands):
                learned.update(op.results)
        self.learned = learned
        """What depends on trained values, with a gradient or without."""
        self.fused = _fused(graph, self.rules, found)
        self.sizes = {loop.name: loop.size for loop in found.loops}
        self.loops = {
            value: frozenset(stem(name) for names in self.over(value) for name in names) for value in found.dims
        }
        self.tables = frozenset(value for value in found.dims if self._is_table(value))
        """Values with neither gradient nor samples (rotary tables, masks): cheap to hold, and cut where used. With a
        single sample, values computed from trained ones for every token (the choice of experts) are no tables."""
        numbers: dict[Hashable, int] = {}
        self.alike = {op.name: numbers.setdefault(self._what(op), len(numbers)) for op in graph.ops}
        """A number for every operator, the same for those that one question has one answer for: a scan has the same
        operators in every step."""

    def _is_table(self, value: str) -> bool:
        loops = self.loops[value]
        of_tokens = "b" in loops or (SEQUENCE in loops and value in self.learned)
        return value not in self.graph.differentiable and not of_tokens

    def _what(self, op: Op) -> Hashable:
        """What the strategy of an operator follows from, beside degrees, pins and slots."""
        loops = tuple((factor, self._sized(names)) for factor, names in self.found.factors[op.name].items())
        values = tuple(
            (value in self.tables, self.fused.get(value), tuple(map(self._sized, self.found.dims[value])))
            for value in op.results
        )
        return op.kind, Same(self.rules[op.name]), loops, values

    def _sized(self, names: Names) -> Hashable:
        """Loops by what they are called and how often they run, whichever of that name they are."""
        return tuple((stem(name), self.sizes.get(name)) for name in names)

    def over(self, value: str) -> tuple[Names, ...]:
        """The loops of a value's dimensions; for one that enters or leaves, the same in all calls and bodies."""
        return self.found.ends.get(value, self.found.dims[value])


@lru_cache(maxsize=512)
def _read(graph: Same[Graph], found: Same[Loops]) -> _Read:
    return _Read(graph.of, found.of)


class _Planning:
    """The planning of a body in running order. Slots of experts are laid out like the tokens that fill them, so the
    layout of the latest dispatch is remembered."""

    def __init__(self, graph: Graph, found: Loops, mesh: Mesh, degrees: Degrees, pins: Mapping[str, Allowed]) -> None:
        self.graph, self.found, self.mesh, self.degrees = graph, found, mesh, degrees
        self.pins, self.words = pins, Words(graph, found)
        self.read = _read(Same(graph), Same(found))
        self.rules, self.fused, self.sizes = self.read.rules, self.read.fused, self.read.sizes
        self.outside = {axis: degrees.use(axis).outside for axis in mesh.names}
        self.preferences = {
            (axis, expert): degrees.preferences(axis, expert=expert) for axis in mesh.names for expert in (False, True)
        }
        self.layouts = {axis: degrees.layout(axis) for axis in mesh.names}
        self.slots: dict[str, Layout] = {}
        self.unused = ("group",) if "heads" in self.sizes else ()
        """Queries that share a key-value head stay together, where there are several of those to split."""
        self.known: dict[Hashable, Strategy] = {}
        """Strategies by what they depend on."""

    def strategy(self, op: Op) -> Strategy:
        """Axis by axis, the first preferred loop that the operator can be split over; tables are whole everywhere."""
        if op.name in self.pins or op.kind == "dispatch":
            return self.made(op)
        key = self.read.alike[op.name], tuple(self.slots.items())
        if key not in self.known:
            self.known[key] = self.made(op)
        return self.known[key]

    def made(self, op: Op) -> Strategy:
        """The strategy of an operator, made anew."""
        strategy = Strategy()
        if self.read.tables.issuperset(op.results):
            return strategy
        expert, allowed = self.in_experts(op), self.pins.get(op.name, FREE)
        for axis in self.mesh.names:
            for choice in self.candidates(op, axis, strategy, expert=expert):
                if not self.legal(op, strategy, axis, choice):
                    continue
                tried = Strategy((*strategy.choices, (axis, choice)))
                if self.words.grants(op, allowed, tried, self.mesh, partly=True):
                    strategy = tried
                    break
        if not self.words.grants(op, allowed, strategy, self.mesh):
            strategy = self.moved(op, allowed, strategy)
        if op.kind == "dispatch":
            self.remember(op, strategy)
        if op.kind == "attention":
            return self.exchanged_last(strategy)
        return self.nearest_first(op, strategy) if expert else strategy

    def moved(self, op: Op, allowed: Allowed, strategy: Strategy) -> Strategy:
        """The strategy with an axis, the innermost that can, where pins want one."""
        for axis in reversed(self.mesh.names):
            others = Strategy(tuple(pair for pair in strategy.choices if pair[0] != axis))
            for choice in self.cuts(op, axis, others):
                tried = Strategy((*others.choices, (axis, choice)))
                if self.words.grants(op, allowed, tried, self.mesh) and self.legal(op, others, axis, choice):
                    return tried
        raise ModulePinUnmet(
            place=f"%{op.name} of {op.module or 'the block'}",
            cause=f"no axis of ({self.mesh}) can be used so that {allowed}",
            fix="pin degrees that leave it an axis whose size divides its loops, or take a pin back",
        )

    def cuts(self, op: Op, axis: str, so_far: Strategy) -> Iterator[Choice]:
        """Every way in which an axis can cut an operator, whatever its name is."""
        for factor, names in self.found.factors[op.name].items():
            for dims, value in zip(self.rules[op.name].results, op.results, strict=True):
                cut = self.fused.get(value)
                if cut and dims[cut.dim] == (factor,):
                    yield Split((factor,), Sections(cut.sizes))
            for loop in dict.fromkeys(map(stem, names)):
                if loop == stem(names[0]) or loop == SEQUENCE:
                    yield from self.split(factor, names, loop, axis, so_far)

    def in_experts(self, op: Op) -> bool:
        """Whether an operator runs over experts or their slots."""
        loops = (*self.found.factors[op.name].values(), *(dim for v in op.results for dim in self.found.dims[v]))
        return any(stem(name) in ("experts", "slots") for names in loops for name in names)

    def candidates(self, op: Op, axis: str, so_far: Strategy, *, expert: bool) -> Iterator[Choice]:
        degrees, rule = self.degrees, self.rules[op.name]
        if op.kind == "attention" and self.outside[axis] == "cp":
            splits = CONTEXTS[degrees.context].splits
            if len(splits) == 2 and rule.pairs and not _has_ring(so_far):
                yield Split(splits, self.layouts[axis])
            if CONTEXTS[degrees.context].heads:
                yield Split(splits)
        factors = self.found.factors[op.name]
        over = {factor: [*map(stem, names)] for factor, names in factors.items()}
        fused = [
            (dims[cut.dim], cut, stem(cut.loops[0]))
            for dims, value in zip(rule.results, op.results, strict=True)
            if (cut := self.fused.get(value)) and len(dims[cut.dim]) == 1 and cut.loops
        ]
        for loop in self.preferences[axis, expert]:
            if loop in self.unused:
                continue
            places = [(stems.index(loop), factor) for factor, stems in over.items() if loop in stems]
            for _, factor in sorted(places, key=lambda place: place[0]):
                yield from self.split(factor, factors[factor], loop, axis, so_far)
            for names, cut, first in fused:
                if first == loop:
                    yield Split(names, Sections(cut.sizes))

    def split(self, factor: str, names: tuple[str, ...], loop: str, axis: str, so_far: Strategy) -> Iterator[Split]:
        """Split a factor over one of its loops: the first, or one inside, in as many runs as those before iterate."""
        if loop == "slots":
            yield Split((factor,), self.slots.get(axis, CONTIGUOUS))
            return
        layout = self.layouts[axis] if loop == SEQUENCE else CONTIGUOUS
        at = next(index for index, name in enumerate(names) if stem(name) == loop)
        outer = prod(self.sizes[name] for name in names[:at])
        for other, choice in so_far.choices:
            if self.outside[other] == "dp" and isinstance(choice, Split) and choice.factors == (factor,):
                outer = max(1, outer // self.mesh.axis(other).size)
        yield Split((factor,), layout if outer == 1 else Nested(outer, layout))

    def remember(self, op: Op, strategy: Strategy) -> None:
        """Note the layout of slots that a dispatch makes on every axis."""
        applied = apply(self.rules[op.name], self.graph.operand_types(op), strategy, self.mesh)
        for dim, shards in enumerate(applied.results[0].dims):
            if any(stem(name) == "slots" for name in self.found.dims[op.results[0]][dim]):
                self.slots = {shard.axis: shard.layout for shard in shards}

    def exchanged_last(self, strategy: Strategy) -> Strategy:
        """The strategy with the heads that Ulysses takes from other tokens as a part of the rank's own heads."""
        exchanged = [pair for pair in strategy.choices if pair[1] == Split(("hk",)) and self.outside[pair[0]] == "cp"]
        return Strategy((*(pair for pair in strategy.choices if pair not in exchanged), *exchanged))

    def nearest_first(self, op: Op, strategy: Strategy) -> Strategy:
        """The strategy with axes on experts minor to major, in the order in which they leave the slots."""
        factors = self.found.factors[op.name]
        nearest = [
            pair
            for pair in strategy.choices
            if isinstance(pair[1], Split) and any(stem(n) == "experts" for n in factors[pair[1].factors[0]])
        ]
        return Strategy((*(pair for pair in strategy.choices if pair not in nearest), *reversed(nearest)))

    def legal(self, op: Op, so_far: Strategy, axis: str, choice: Choice) -> bool:
        """Whether a choice can be added: by division where all is plain, else by trying it."""
        plain = self.divides(op, so_far, axis, choice)
        if plain is not None:
            return plain
        tried = Strategy((*so_far.choices, (axis, choice)))
        try:
            apply(self.rules[op.name], self.graph.operand_types(op), tried, self.mesh)
        except (IllegalStrategy, IndivisibleExtent, SectionsMismatch):
            return False
        return True

    def divides(self, op: Op, so_far: Strategy, axis: str, choice: Choice) -> bool | None:
        """Whether the axis divides the rest of a factor, and every dimension that runs over it alone (its extent may be
        another); None if sections or slots are involved, or a zigzag under another loop."""
        rule = self.rules[op.name]
        if rule.sections or rule.slots or not all(map(_is_plain, (choice, *(made for _, made in so_far.choices)))):
            return None
        assert isinstance(choice, Split)
        factor = rule.factor(choice.factors[0])
        if factor.role not in SPLITTABLE:
            return False
        cuts = [
            (self.mesh.axis(name).size, made.layout)
            for name, made in (*so_far.choices, (axis, choice))
            if isinstance(made, Split) and made.factors == choice.factors
        ]
        extents, shares = _extents(rule, self.graph.operand_types(op))[factor.name]
        if shares and any(layout != CONTIGUOUS for _, layout in cuts):
            return None
        return factor.size % prod(parts for parts, _ in cuts) == 0 and all(_cuts(extent, cuts) for extent in extents)

    def state(self, value: str) -> State:
        """The placement of a value that enters or leaves a body: cut over the first preferred loop that it has."""
        shape = self.graph.types[value].shape
        if value in self.read.tables:
            return State.replicated(len(shape))
        dims: list[tuple[Shard, ...]] = [() for _ in shape]
        for axis in self.mesh.names:
            for loop in self.preferences[axis, False]:
                named = self.read.over(value)
                at = next((dim for dim, names in enumerate(named) if names and stem(names[0]) == loop), None)
                layout = self.layouts[axis] if loop == SEQUENCE else CONTIGUOUS
                if at is not None and fits(shape[at], (*dims[at], Shard(axis, layout)), self.mesh):
                    dims[at] = (*dims[at], Shard(axis, layout))
                    break
        return State(tuple(dims), (), self.summed(value, dims))

    def summed(self, value: str, dims: Sequence[tuple[Shard, ...]]) -> tuple[str, ...]:
        """The axes over which the gradient of a value between bodies stays a sum: what all samples share (a bias of
        positions that blocks hand on) is made of parameters, and its gradient is reduced with theirs."""
        if not dims or not self.shared(value) or value not in self.graph.differentiable:
            return ()
        cut = {shard.axis for shards in dims for shard in shards}
        return tuple(axis for axis in self.mesh.names if self.outside[axis] == "dp" and axis not in cut)

    def shared(self, value: str) -> bool:
        """Whether all samples share a value."""
        return "b" not in self.read.loops[value]


def _is_plain(choice: Choice) -> bool:
    return isinstance(choice, Split) and len(choice.factors) == 1 and choice.layout in (CONTIGUOUS, ZIGZAG)


@lru_cache(maxsize=65536)
def _extents(rule: Rule, operands: tuple[Type, ...]) -> Mapping[str, tuple[frozenset[int], bool]]:
    """For every factor the extents of the dimensions that run over it alone, and whether it shares any with others."""
    tensors = list(zip((*rule.operands, *rule.results), (*operands, *rule.types), strict=True))
    over = [pair for dims, type_ in tensors for pair in zip(dims, type_.shape, strict=True)]
    return {
        factor.name: (
            frozenset(extent for dim, extent in over if dim == (factor.name,)),
            any(factor.name in dim and len(dim) > 1 for dim, _ in over),
        )
        for factor in rule.factors
    }


def _cuts(extent: int, cuts: list[tuple[int, Layout]]) -> bool:
    """Whether axes of these sizes can cut an extent one after another; a zigzag takes two runs for each part."""
    for parts, layout in cuts:
        if extent % (parts if layout == CONTIGUOUS else 2 * parts):
            return False
        extent //= parts
    return True


def _has_ring(strategy: Strategy) -> bool:
    return any(isinstance(choice, Split) and len(choice.factors) == 2 for _, choice in strategy.choices)


def _follow_readers(graph: Graph, planning: _Planning, chosen: dict[str, Strategy]) -> None:
    """Make operators on parameters alone follow a pinned reader: a weight that is to be whole would otherwise be cut
    and gathered."""
    for op in reversed(from_weights(graph, planning.shared)):
        readers = [place for value in op.results for place in graph.readers[value]]
        if len(readers) != 1 or len(op.results) != 1 or graph.ops[readers[0][0]].name not in planning.pins:
            continue
        ((index, slot),) = readers
        reader, (dims,) = graph.ops[index], planning.rules[op.name].results
        wanted = apply(planning.rules[reader.name], graph.operand_types(reader), chosen[reader.name], planning.mesh)
        cuts = [
            (shard.axis, Split(names, shard.layout))
            for names, shards in zip(dims, wanted.operands[slot].dims, strict=True)
            for shard in shards
            if len(names) == 1
        ]
        chosen[op.name] = Strategy(tuple(cuts))
