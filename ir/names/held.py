"""Values of pinned names, read back from a plan's decisions.

    pp vp stage_blocks split   how stages share out layers, and groups of ranks stages
    tp cp dp ep etp sp         what axes of a stage's mesh split: weights outside of experts, tokens or samples of
                               everything else, experts, weights inside of them
    zero shard regather        where parameters, gradients and states are stored, beside where operators want them
    mbs microbatches schedule  samples of the model as it was captured, and the order of work
    recompute offload          values that are computed again, or wait in the host's memory
    context zigzag             how attention meets the tokens of other ranks, and how tokens are laid out

Nothing here looks at the degrees that a plan was made of, so that whoever makes plans need not be trusted. A value that
is a plan's own where it has no use for a name (no copies: zero=0; one stage: schedule=1f1b) can be asked of it, any
other cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.decisions.sharding import ZERO, Sharding, level_of
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.check import extents
from meshwright.ir.names.degrees import CONTEXT, FIRST_LAYERS, SEQUENCE, recompute_parts
from meshwright.ir.names.pinned import NOTHING_PINNED, Pinned, Words
from meshwright.ir.names.recompute import kind_of, recomputed
from meshwright.ir.names.stages import layer_calls, shared
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.same import Same
from meshwright.ir.sharding.layouts import ZIGZAG
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.combined import contexts

ONE_STAGE = "1f1b"
"""The schedule of a plan that has no pipeline."""


@dataclass(frozen=True)
class Subject:
    """A plan, its model, and what is asked of single operators, which takes precedence over names."""

    decisions: Decisions
    fold: Fold
    pins: Pinned = NOTHING_PINNED

    @cached_property
    def used(self) -> tuple[tuple[BodyPlan, Mesh], ...]:
        """Every plan of a body, with the mesh of stages that use it."""
        pairs = {(stage.mesh, name) for stage in self.decisions.stages for name in stage.plans}
        return tuple((self.decisions.plan[name], mesh) for mesh, name in sorted(pairs, key=str))

    @cached_property
    def roles(self) -> tuple[tuple[Mesh, Mapping[str, frozenset[str]]], ...]:
        """The roles of every axis of every mesh, in all stages that have the mesh."""
        loops, found = loops_of(Same(self.fold)), dict[Mesh, dict[str, frozenset[str]]]()
        for plan, mesh in self.used:
            graph, held = self.fold.body[plan.body].graph, found.setdefault(mesh, {})
            for axis, roles in _roles(Same(plan), Same(graph), Same(loops[plan.body]), mesh).items():
                held[axis] = held.get(axis, frozenset()) | roles
        return tuple(found.items())

    def sizes(self, *roles: str) -> set[int]:
        """The ranks along the axes with any of these roles, for every mesh."""
        return {
            prod(axis.size for axis in mesh.axes if not held[axis.name].isdisjoint(roles)) for mesh, held in self.roles
        }

    @property
    def counts(self) -> tuple[int, ...]:
        """The layers of every stage."""
        layers = layer_calls(self.fold)
        return tuple(sum(stage.first <= call < stage.last for call in layers) for stage in self.decisions.stages)


def holds(subject: Subject, name: str, value: Any) -> bool:
    """Whether a plan has this value of a name, as JSON has it."""
    return HELD[name](subject, value)


def uses(subject: Subject, name: str, value: Any) -> bool:
    """Whether a plan has this value of a name, and whether the plan has any use for the name."""
    return has_use(subject, name) and holds(subject, name, value)


def has_use(subject: Subject, name: str) -> bool:
    """Whether values of a name say anything about a plan."""
    return name not in UNUSED or not UNUSED[name](subject)


# What axes are for ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2048)
def _roles(planned: Same[BodyPlan], body: Same[Graph], loops: Same[Loops], mesh: Mesh) -> Mapping[str, frozenset[str]]:
    """The roles of axes in one body: tp cuts weights, cp the sequence without them, sp both, dp samples; inside of
    experts ep tells them apart, etp cuts their weights."""
    graph, found = body.of, loops.of
    words, chosen = Words(graph, found), dict(planned.of.strategies)
    split: dict[str, set[str]] = {axis: set() for axis in mesh.names}
    cut: dict[str, set[str]] = {axis: set() for axis in mesh.names}
    inside: dict[str, set[str]] = {axis: set() for axis in mesh.names}
    for op in (op for op in graph.ops if op.name in chosen):
        expert = _in_experts(op, found)
        for axis, word in words.by_axis(op, "sharding", chosen[op.name], mesh):
            (inside if expert else cut)[axis].add(word)
        for axis, word in () if expert else words.by_axis(op, "split", chosen[op.name], mesh):
            split[axis].add(word)
    return {axis: frozenset(_named(split[axis], cut[axis], inside[axis])) for axis in mesh.names}


def _named(split: set[str], cut: set[str], inside: set[str]) -> Iterator[str]:
    weights = not cut.isdisjoint(("column", "row"))
    if weights:
        yield "tp"
    if SEQUENCE in split:
        yield "sp" if weights else "cp"
    elif "b" in split and not weights:
        yield "dp"
    if "expert" in inside:
        yield "ep"
    if not inside.isdisjoint(("column", "row")):
        yield "etp"


def _in_experts(op: Op, found: Loops) -> bool:
    loops = (*found.factors[op.name].values(), *(dim for value in op.results for dim in found.dims[value]))
    return any(stem(name) in ("experts", "slots") for names in loops for name in names)


# Storage -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """The sharding of a body's storage: the ZeRO level, and the most ranks that it is over."""

    zero: int
    over: int


@lru_cache(maxsize=2048)
def _stored(planned: Same[BodyPlan], body: Same[Graph], mesh: Mesh) -> Stored:
    plan = planned.of
    if not plan.storage:
        return Stored(0, 1)
    whole = compute_placements(body.of, plan, mesh)
    zero, over = 0, 1
    for one in plan.storage:
        computed = Placement(whole[one.path].dims)
        cut = (placement.dims != computed.dims for placement in (one.optimizer, one.grads, one.params))
        further = {shard.axis for dims in one.optimizer.dims for shard in dims if computed.on(shard.axis) is None}
        zero, over = max(zero, level_of(Sharding(*cut))), max(over, prod(mesh.axis(axis).size for axis in further))
    return Stored(zero, over)


def _storage(subject: Subject) -> Stored:
    found = [_stored(Same(plan), Same(subject.fold.body[plan.body].graph), mesh) for plan, mesh in subject.used]
    return Stored(max(one.zero for one in found), max(one.over for one in found))


def _shard(subject: Subject, value: int) -> bool:
    """The ranks of sharded storage; 0 means all copies, or nothing in shards."""
    over = _storage(subject).over
    return over == value if value else {over} == subject.sizes("dp", "cp") or over == 1


def _regather(subject: Subject, value: bool) -> bool:
    kept = all(plan.regather for plan, _ in subject.used)
    return kept if value else not kept and ZERO[_storage(subject).zero].params


# Recomputation -------------------------------------------------------------------------------------------------------


def _recompute(subject: Subject, value: str) -> bool:
    """Whether the layers of every stage recompute what the word says, and that is something."""
    word, _, number = value.partition(":")
    first = int(number) if word == FIRST_LAYERS else 0
    if first:
        return first <= max(subject.counts) and all(_first_again(subject, stage, first) for stage in _indices(subject))
    plans = [plan for plan, _ in subject.used]
    if any(plan.first for plan in plans) or not all(_again(subject, plan, value) for plan in plans):
        return False
    parts = recompute_parts(value) if word == "selective" else (value,)
    kinds = [f"selective:{part}" for part in parts] if word == "selective" else list(parts)
    return value == "none" or all(any(_wanted(subject, plan, kind) for plan in plans) for kind in kinds)


def _indices(subject: Subject) -> range:
    return range(len(subject.decisions.stages))


def _first_again(subject: Subject, stage: int, first: int) -> bool:
    """Whether the first layers of a stage are recomputed in full, and the others not."""
    calls, layers = list(subject.fold.calls()), set(layer_calls(subject.fold))
    own = subject.decisions.stages[stage]
    numbers = range(own.first, own.last)
    plans = subject.decisions.plans_for(stage, [calls[number].body.name for number in numbers])
    held = [plan for number, plan in zip(numbers, plans, strict=True) if number in layers]
    wanted = ["full" if place < first else "none" for place in range(len(held))]
    return all(_again(subject, plan, kind) for plan, kind in zip(held, wanted, strict=True))


def _wanted(subject: Subject, plan: BodyPlan, kind: str) -> set[str]:
    """The values that a body recomputes by a word, beside what is asked of its operators."""
    graph, loops = subject.fold.body[plan.body].graph, loops_of(Same(subject.fold))[plan.body]
    return _free(subject, plan, recomputed(graph, loops, kind_of(subject.fold, plan.body, kind)))


def _again(subject: Subject, plan: BodyPlan, kind: str) -> bool:
    return _free(subject, plan, plan.recompute) == _wanted(subject, plan, kind)


def _free(subject: Subject, plan: BodyPlan, values: tuple[str, ...]) -> set[str]:
    """Values of operators for which recomputation is not pinned."""
    asked, producer = subject.pins.of(plan.body), subject.fold.body[plan.body].graph.producer

    def pinned(value: str) -> bool:
        op = producer.get(value)
        return op is not None and op.name in asked and asked[op.name].recompute is not None

    return {value for value in values if not pinned(value)}


# Stages, batches, attention ------------------------------------------------------------------------------------------


def _split(subject: Subject, value: str) -> bool:
    try:
        return subject.counts == shared(len(layer_calls(subject.fold)), len(subject.decisions.stages), value)
    except MeshwrightError:
        return False


def _schedule(subject: Subject, value: str) -> bool:
    decisions = subject.decisions
    return value == (decisions.schedule.name if len(decisions.groups) > 1 else ONE_STAGE)


def _mbs(subject: Subject, value: int) -> bool:
    """The sequences of a micro-batch, as it was cut for each copy: operators chosen anew may share them otherwise."""
    copies, rest = divmod(max(extents(subject.fold, "b"), default=1), value)
    return not rest and copies > 0 and all(mesh.size % copies == 0 for mesh, _ in subject.roles)


def _context(subject: Subject, value: str) -> bool:
    return (contexts(subject.decisions, subject.fold) or {CONTEXT[0]}) == {value}


def _zigzag(subject: Subject, value: bool) -> bool:
    layouts = (
        shard.layout for plan, _ in subject.used for _, state in plan.states for dims in state.dims for shard in dims
    )
    return value == any(layout == ZIGZAG for layout in layouts)


def _zero(subject: Subject, value: int) -> bool:
    return _storage(subject).zero == value


def _sequences(subject: Subject, value: bool) -> bool:
    return (subject.sizes("sp") != {1}) == value


def _virtual(subject: Subject) -> float:
    return len(subject.decisions.stages) / len(subject.decisions.groups)


def _size(*roles: str) -> Callable[[Subject, int], bool]:
    return lambda subject, value: subject.sizes(*roles) == {value}


HELD: Mapping[str, Callable[[Subject, Any], bool]] = {
    "tp": _size("tp"),
    "pp": lambda plan, value: len(plan.decisions.groups) == value,
    "dp": _size("dp"),
    "cp": _size("cp"),
    "ep": _size("ep"),
    "etp": _size("etp"),
    "vp": lambda plan, value: _virtual(plan) == value,
    "shard": _shard,
    "zero": _zero,
    "mbs": _mbs,
    "microbatches": lambda plan, value: plan.decisions.schedule.microbatches == value,
    "recompute": _recompute,
    "schedule": _schedule,
    "sp": _sequences,
    "context": _context,
    "zigzag": _zigzag,
    "split": _split,
    "stage_blocks": lambda plan, value: "+".join(map(str, plan.counts)) == value,
    "regather": _regather,
    "offload": lambda plan, value: plan.decisions.offload == Offload.parse(value),
}
"""Of every name that can be pinned, whether a plan has a value of it."""

UNUSED: Mapping[str, Callable[[Subject], bool]] = {
    "schedule": lambda plan: len(plan.decisions.groups) == 1,
    "split": lambda plan: len(plan.decisions.stages) == 1,
    "stage_blocks": lambda plan: len(plan.decisions.stages) == 1,
    "context": lambda plan: not contexts(plan.decisions, plan.fold),
    "zero": lambda plan: plan.sizes("dp", "cp") == {1},
    "shard": lambda plan: _storage(plan).over == 1,
    "regather": lambda plan: not ZERO[_storage(plan).zero].params,
}
"""Where a plan has no use for a name, so that no value of it is one that must not be."""
