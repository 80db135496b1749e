"""The names people give to parallelism, as one table.

Inside Meshwright there are only axes and factors. People say "TP 8, CP 2, ZeRO-1". This table is the dictionary between
the two, used in both directions: a *degree* lists the loops that a mesh axis of this name splits, in order of
preference, operator by operator.

    dp      b, slots                  data parallelism; inside experts the tokens routed to each
    tp      heads, ffn, vocab         Megatron's column- and row-parallel linears, vocabulary-parallel ends
    cp      s                         context parallelism; attention by all-gather, ring or Ulysses
    ep      b, experts, slots         expert parallelism: tokens outside the experts, experts inside

Sequence parallelism is no axis of its own: with `sequence_parallel`, tp splits s where it finds none of its loops.

A product that is cut into sections afterwards (fused q|k|v, gate|up) is split as its sections are, each by itself.

`template` writes a plan from degrees, as a person would; `name_of` says which names fit what an axis does in a plan.
An operator that has none of the loops, or cannot be split there, leaves the axis idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.adjoint import IDLE, Choice, Idle, Split, Strategy, apply
from meshwright.ir.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.errors import DegreeImpossible, IllegalStrategy, IndivisibleExtent
from meshwright.ir.factors import Loops, body_loops, stem
from meshwright.ir.fold import Body, Fold
from meshwright.ir.graph import Graph, Op
from meshwright.ir.lower_body import Lowering, lower_body
from meshwright.ir.mesh import Mesh, MeshAxis
from meshwright.ir.placement import CONTIGUOUS, ZIGZAG, Layout, Placement, Sections, Shard, State
from meshwright.ir.rules.base import Rule, rule_of

CONTEXT = ("all_gather", "ring", "ulysses")
"""How context parallelism runs attention."""


@dataclass(frozen=True, slots=True)
class Degree:
    """One named way to use a mesh axis: the loops it splits, by preference, and what to call it in words."""

    name: str
    loops: tuple[str, ...]
    meaning: str


TABLE = (
    Degree("dp", ("b", "slots"), "data parallelism"),
    Degree("cp", ("s",), "context parallelism"),
    Degree("tp", ("heads", "ffn", "vocab"), "tensor parallelism"),
    Degree("ep", ("b", "experts", "slots"), "expert parallelism"),
)
"""Every named degree, one line each."""

SEQUENCE = "s"


@dataclass(frozen=True, slots=True)
class Degrees:
    """A configuration as people write it. Sizes of 1 leave an axis out."""

    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    sequence_parallel: bool = False
    context: str = "all_gather"
    zigzag: bool = False
    zero: int = 0
    recompute: str = "none"
    schedule: str = "gpipe"
    microbatches: int = 1

    def __post_init__(self) -> None:
        if self.context not in CONTEXT:
            raise DegreeImpossible(
                place="cp", cause=f"attention by {self.context!r}", fix=f"use one of {', '.join(CONTEXT)}"
            )
        if self.zero not in range(4):
            raise DegreeImpossible(place="zero", cause=f"ZeRO-{self.zero}", fix="use 0, 1, 2 or 3")
        if self.recompute not in ("none", "full"):
            raise DegreeImpossible(place="recompute", cause=repr(self.recompute), fix="use none or full")

    def mesh(self) -> Mesh:
        """The mesh of one stage: slow axes outside, tensor parallelism innermost."""
        sizes = (("dp", self.dp), ("ep", self.ep), ("cp", self.cp), ("tp", self.tp))
        return Mesh(tuple(MeshAxis(name, size) for name, size in sizes if size > 1))

    def preferences(self, axis: str) -> tuple[str, ...]:
        found = next(degree.loops for degree in TABLE if degree.name == axis)
        return (*found, SEQUENCE) if axis == "tp" and self.sequence_parallel else found

    def layout(self, axis: str) -> Layout:
        return ZIGZAG if axis == "cp" and self.zigzag else CONTIGUOUS


# From names to plans -------------------------------------------------------------------------------------------------


def template(fold: Fold, degrees: Degrees, target: str = "any") -> Decisions:
    """The plan that a person means by these degrees."""
    mesh = degrees.mesh()
    found = body_loops(fold)
    plans = tuple(body_template(body, found[body.name], mesh, degrees) for body in fold.bodies)
    cuts = even_cuts(fold, degrees.pp)
    stages = tuple(
        StagePlan(
            first,
            last,
            mesh,
            tuple(range(index * mesh.size, (index + 1) * mesh.size)),
            tuple(sorted({call.body.name for call in list(fold.calls())[first:last]})),
        )
        for index, (first, last) in enumerate(cuts)
    )
    return Decisions(plans, stages, Schedule(degrees.schedule, degrees.microbatches), target)


def even_cuts(fold: Fold, stages: int) -> tuple[tuple[int, int], ...]:
    """Call ranges with as equal numbers of blocks as possible; glue goes with its neighbour."""
    segments = [call.segment for call in fold.calls()]
    blocks = [index for index, segment in enumerate(segments) if not fold.segments[segment].glue]
    if stages > max(len(blocks), 1):
        raise DegreeImpossible(
            place="pp", cause=f"{stages} stages for {len(blocks)} blocks", fix=f"use at most {max(len(blocks), 1)}"
        )
    starts = [0] + [blocks[len(blocks) * stage // stages] for stage in range(1, stages)]
    return tuple(zip(starts, [*starts[1:], len(segments)], strict=True))


def body_template(body: Body, found: Loops, mesh: Mesh, degrees: Degrees) -> BodyPlan:
    """What every axis does in every operator of a body, by the table; `found` are the body's loops."""
    graph = body.graph
    rules = {op.name: rule_of(op, graph.types) for op in graph.ops}
    fused = _fused(graph, rules, found)
    chosen = {op.name: _strategy(op, graph, rules[op.name], found, fused, mesh, degrees) for op in graph.ops}
    _pass_weight_gradients(graph, rules, chosen, mesh)
    strategies = tuple(chosen.items())
    ends = dict.fromkeys([*(item.value for item in graph.inputs), *graph.outputs])
    states = tuple((value, _state(value, graph, found, mesh, degrees)) for value in ends)
    plan = BodyPlan(body.name, body.name, strategies, states)
    if degrees.recompute == "full":
        inputs = tuple(item.value for item in graph.inputs)
        plan = replace(plan, recompute=(*inputs, *(value for op in graph.ops for value in op.results)))
    return replace(plan, storage=_storage(graph, plan, mesh, degrees))


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


def _strategy(
    op: Op, graph: Graph, rule: Rule, found: Loops, fused: Mapping[str, _Fused], mesh: Mesh, degrees: Degrees
) -> Strategy:
    """Axis by axis, the first preferred loop that this operator can be split over; tables are made whole everywhere."""
    strategy = Strategy()
    if all(_is_table(value, graph, found) for value in op.results):
        return strategy
    for axis in mesh.names:
        for choice in _candidates(op, rule, found, fused, axis, degrees):
            tried = Strategy((*strategy.choices, (axis, choice)))
            if _legal(rule, op, graph, tried, mesh):
                strategy = tried
                break
    return strategy


def _pass_weight_gradients(graph: Graph, rules: Mapping[str, Rule], chosen: dict[str, Strategy], mesh: Mesh) -> None:
    """What is computed from parameters alone (a cast, 1 + weight) passes gradients through as the partial sums that all
    its readers leave, so that they are reduced with the parameter's, once a step and not once a micro-batch."""
    for op in reversed(_from_weights(graph)):
        readers = [reader for value in op.results for reader in graph.readers[value]]
        if not readers or set(op.results) - graph.differentiable or set(op.results) & set(graph.outputs):
            continue
        states = [
            apply(rules[r.name], graph.operand_types(r), chosen[r.name], mesh).operands[slot]
            for r, slot in ((graph.ops[index], slot) for index, slot in readers)
        ]
        through = [
            (axis, Idle(grad_partial=True))
            for axis in mesh.names
            if chosen[op.name].of(axis) == IDLE and all(axis in state.grad_partial for state in states)
        ]
        chosen[op.name] = Strategy((*chosen[op.name].choices, *through))


def _from_weights(graph: Graph) -> list[Op]:
    """The operators that read nothing but parameters and what is made of them."""
    weights = {param.value for param in graph.params if not param.buffer}
    found = []
    for op in graph.ops:
        if op.operands and weights.issuperset(op.operands):
            weights.update(op.results)
            found.append(op)
    return found


def _candidates(
    op: Op, rule: Rule, found: Loops, fused: Mapping[str, _Fused], axis: str, degrees: Degrees
) -> Iterable[Choice]:
    preferences, layout = degrees.preferences(axis), degrees.layout(axis)
    if axis == "cp" and op.kind == "attention":
        if degrees.context == "ring" and rule.pairs:
            yield Split((rule.pairs[0].first, rule.pairs[0].second), layout)
        if degrees.context == "ulysses":
            yield Split(("hk",))
    for loop in preferences:
        for factor, names in found.factors[op.name].items():
            if names and stem(names[0]) == loop:
                yield Split((factor,), layout if loop == SEQUENCE else CONTIGUOUS)
        for dims, value in zip(rule.results, op.results, strict=True):
            cut = fused.get(value)
            if cut and len(dims[cut.dim]) == 1 and cut.loops and stem(cut.loops[0]) == loop:
                yield Split(dims[cut.dim], Sections(cut.sizes))


def _legal(rule: Rule, op: Op, graph: Graph, strategy: Strategy, mesh: Mesh) -> bool:
    try:
        apply(rule, graph.operand_types(op), strategy, mesh)
    except (IllegalStrategy, IndivisibleExtent):
        return False
    return True


def _state(value: str, graph: Graph, found: Loops, mesh: Mesh, degrees: Degrees) -> State:
    """Where a value that enters or leaves a body lies: cut over the first preferred loop that it has."""
    shape = graph.types[value].shape
    if _is_table(value, graph, found):
        return State.replicated(len(shape))
    dims: list[tuple[Shard, ...]] = [() for _ in shape]
    for axis in mesh.names:
        for loop in degrees.preferences(axis):
            at = next((dim for dim, names in enumerate(found.dims[value]) if names and stem(names[0]) == loop), None)
            layout = degrees.layout(axis) if loop == SEQUENCE else CONTIGUOUS
            if at is not None and _fits(shape[at], (*dims[at], Shard(axis, layout)), mesh):
                dims[at] = (*dims[at], Shard(axis, layout))
                break
    return State(tuple(dims))


def _is_table(value: str, graph: Graph, found: Loops) -> bool:
    """A value without gradient and without samples (rotary tables, masks): it is cheap to hold, and cut where used."""
    return value not in graph.differentiable and not any("b" in names for names in found.dims[value])


def _fits(extent: int, shards: tuple[Shard, ...], mesh: Mesh) -> bool:
    try:
        Placement((shards,)).check((extent,), mesh, "")
    except IndivisibleExtent:
        return False
    return True


def _storage(graph: Graph, plan: BodyPlan, mesh: Mesh, degrees: Degrees) -> tuple[Storage, ...]:
    """ZeRO: what is stored is cut further over the axes that hold copies for data and context parallelism."""
    over = [axis for axis in mesh.names if axis in ("dp", "cp", "ep")]
    if not degrees.zero or not over:
        return ()
    program = lower_body(graph, plan, mesh, Lowering())
    stored = []
    for slot in program.params:
        if slot.grad is None:
            continue
        local = program.locals[slot.stored]
        cut = _cut_further(local.placement, local.type.shape, over, mesh)
        compute = local.placement
        stored.append(
            Storage(
                slot.path,
                params=cut if degrees.zero >= 3 else compute,
                grads=cut if degrees.zero >= 2 else compute,
                optimizer=cut,
            )
        )
    return tuple(stored)


def _cut_further(placement: Placement, shape: Sequence[int], axes: Sequence[str], mesh: Mesh) -> Placement:
    """Add every axis that holds copies to the first dimension that it divides."""
    dims = list(placement.dims)
    for axis in axes:
        if placement.on(axis) is not None:
            continue
        at = next((d for d, extent in enumerate(shape) if _fits(extent, (*dims[d], Shard(axis)), mesh)), None)
        if at is not None:
            dims[at] = (*dims[at], Shard(axis))
    return Placement(tuple(dims), placement.partial)


# From plans to names -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _degree(name: str) -> Degree:
    return next(degree for degree in TABLE if degree.name == name)


def loops_split(plan: BodyPlan, found: Loops, axis: str) -> Mapping[str, int]:
    """How many operators of a body an axis splits over each loop, most first."""
    counts: dict[str, int] = {}
    for op, strategy in plan.strategies:
        choice = strategy.of(axis)
        if isinstance(choice, Split):
            for factor in choice.factors:
                for loop in found.factors[op][factor][:1]:
                    counts[loop] = counts.get(loop, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def name_of(plan: BodyPlan, graph: Graph, found: Loops, axis: str) -> str:
    """What people would call the use of an axis in a body: "dp", "tp+sp", "cp (ring)", or "-" where it is idle."""
    split = {stem(loop) for loop in loops_split(plan, found, axis)}
    rings = any(isinstance(c := s.of(axis), Split) and len(c.factors) == 2 for _, s in plan.strategies)
    if not split:
        return "-"
    if "experts" in split:
        return "ep"
    if split & set(_degree("tp").loops):
        attention_only = SEQUENCE in split and split & set(_degree("tp").loops) == {"heads"}
        if attention_only and not _splits_linears(plan, graph, axis):
            return "cp (ulysses)"
        return "tp+sp" if SEQUENCE in split else "tp"
    if SEQUENCE in split:
        return "cp (ring)" if rings else "cp"
    return "dp" if split & set(_degree("dp").loops) else "+".join(sorted(split))


def _splits_linears(plan: BodyPlan, graph: Graph, axis: str) -> bool:
    """Whether the axis splits a linear over something else than its rows of tokens."""
    kinds = {op.name: op.kind for op in graph.ops}
    for op, strategy in plan.strategies:
        choice = strategy.of(axis)
        if kinds[op] == "linear" and isinstance(choice, Split) and choice.factors[0] in ("n", "k"):
            return True
    return False
