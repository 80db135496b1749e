"""Projection of a plan to the small twin of its model and ranks: the structure stays, sizes shrink.

    Decisions of the model, fold of the model, fold of its twin -> Decisions of the twin

Decisions name operators, values and mesh axes, and no sizes but those of sections; so those of the twin are those of
the model, word for word, on smaller meshes. Three things are checked or adapted on the way:

- The twin must have the same segments, and in every body the same operators in the same modules. Only operators that
  change nothing may be missing there (`SILENT`): a model in half precision has casts that one in fp32 has not. What was
  said of their results is said of what they read.
- Every axis of several ranks keeps at least two, as long as that makes at most so many ranks in all; stages become two,
  each with its virtual ones; where stages begin, and how many micro-batches there are, follow from that. Where stages
  have different meshes, neighbours of the same mesh become one, and as many of these are kept as there is room for.
- Shares of a batch stay as unequal as few sequences allow; storage that is padded is cut for the twin's sizes.
- A product that is cut apart is cut into sections of its own sizes there.
- An inner loop that is cut in every iteration of outer ones (`Nested`) is cut in as many as those have there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import prod

from meshwright.ir.analysis.fused import PRODUCTS
from meshwright.ir.analysis.loops import Loops, Names
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.errors import NoTwin
from meshwright.ir.graph.fold import Fold, Segment
from meshwright.ir.graph.graph import Attr, Graph, Op
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.storage import cut_further
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, Layout, Nested, Padded, Sections
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.sharding.placement import Placement, Shard, State
from meshwright.ir.sharding.shares import apportioned, axis_of, batch_of, batch_shares, equally, shares_of

SILENT = {"cast", "dropout"}
SAME = "define twin() beside the factory, with the structure of the model it stands for"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a twin: a mesh for every group of ranks in the pipeline, and the micro-batches.

    - `stands_for` has an index for every stage of the twin: the stage of the plan that it begins with.
    """

    meshes: tuple[Mesh, ...]
    stands_for: tuple[int, ...]
    microbatches: int

    @property
    def groups(self) -> int:
        return len(self.meshes)

    @property
    def ranks(self) -> int:
        return sum(mesh.size for mesh in self.meshes)

    def axis(self, name: str) -> int:
        """The ranks along an axis, on the mesh where it has most."""
        return max((mesh.axis(name).size for mesh in self.meshes if name in mesh.names), default=1)


def sizes_of(decisions: Decisions, most: int, enough: int) -> Sizes:
    """The sizes of the twin: as few ranks as keep every degree at two or more, then more where a degree was larger, up
    to `enough`; degrees that make more than `most` ranks in all are given up, outer axes first."""
    stages, groups = decisions.stages, len(decisions.groups)
    if len({stage.mesh for stage in stages}) > 1:
        return _unlike(decisions, most)
    few, virtual = min(groups, 2), len(stages) // groups
    mesh = _small(stages[0].mesh, most // few)
    while grown := _grown(mesh, stages[0].mesh, enough // few):
        mesh = grown
    count = few * virtual
    stands_for = tuple(index * len(stages) // count for index in range(count))
    return Sizes((mesh,) * few, stands_for, min(decisions.schedule.microbatches, 2 * few))


def _unlike(decisions: Decisions, most: int) -> Sizes:
    """Stages to keep where meshes differ: the first and the last, and those between as far as there is room."""
    stages = decisions.stages
    begins = [at for at, stage in enumerate(stages) if not at or stage.mesh != stages[at - 1].mesh]
    meshes = [_small(stages[at].mesh, most // 2) for at in begins]
    while len(meshes) > 2 and sum(mesh.size for mesh in meshes) > most:
        del meshes[-2], begins[-2]
    return Sizes(tuple(meshes), tuple(begins), min(decisions.schedule.microbatches, 2 * len(meshes)))


def _small(mesh: Mesh, most: int) -> Mesh:
    """Two ranks along every axis that has several, outer ones given up where those are too many."""
    axes = {axis.name: min(axis.size, 2) for axis in mesh.axes}
    for name in mesh.names:
        if prod(axes.values()) > most:
            axes[name] = 1
    return _mesh(axes)


def _mesh(axes: Mapping[str, int]) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in axes.items()))


def _grown(small: Mesh, mesh: Mesh, room: int) -> Mesh | None:
    """The sizes with one axis doubled: the one that has shrunk most."""
    axes = {axis.name: axis.size for axis in small.axes}
    if small.size * 2 > room:
        return None
    shrunk = [(axis.size / axes[axis.name], axis.name) for axis in mesh.axes if axis.size >= 2 * axes[axis.name] > 2]
    if not shrunk:
        return None
    name = max(shrunk)[1]
    return _mesh(axes | {name: axes[name] * 2})


def layers_of(decisions: Decisions, fold: Fold, sizes: Sizes) -> int:
    """Blocks of every list of blocks in the twin: two of each kind, and for each stage two."""
    lists: dict[str, int] = {}
    for run in _runs(fold):
        if not run[0].glue:
            home = run[0].paths[0].rpartition(".")[0]
            repeats = sum(segment.repeats for segment in run)
            lists[home] = lists.get(home, 0) + len(run[0].period) * min(repeats, 2)
    wanted = 2 * len(sizes.stands_for) if sizes.groups > 1 else 2
    return max([wanted, *lists.values()])


def projected(
    decisions: Decisions, fold: Fold, twin: Fold, sizes: Sizes, target: str, *, style: str = "eager"
) -> Decisions:
    """The decisions for the twin. Raises `NoTwin` where its structure is another one."""
    _same_segments(fold, twin)
    shares, decisions = shares_of(decisions), equally(decisions)
    loops, its = loops_of(Same(fold)), loops_of(Same(twin))
    renamed = {
        body.name: _renamed(body.graph, twin.body[body.name].graph, body.name, loops[body.name], its[body.name])
        for body in fold.bodies
    }
    stages = tuple(_stages(decisions, fold, twin, sizes))
    mesh = {name: stage.mesh for stage in stages for name in stage.plans}
    before = {name: stage.mesh for stage in decisions.stages for name in stage.plans}
    plans = tuple(
        _padded_anew(
            _plan(plan, replace(renamed[plan.body], meshes=(before[plan.name], mesh[plan.name]))),
            twin.body[plan.body].graph,
            mesh[plan.name],
        )
        for plan in decisions.plans
        if plan.name in mesh
    )
    schedule = decisions.schedule
    if schedule.actions or sizes.microbatches != schedule.microbatches:
        several = "zbv" if _folded(decisions) else "interleaved"
        name = schedule.name if not schedule.actions else "1f1b" if len(stages) == sizes.groups else several
        schedule = Schedule(name, sizes.microbatches)
    found = replace(decisions, plans=plans, stages=stages, schedule=schedule, target=target, style=style)
    copies = sizes.axis(axis_of(found))
    if not shares or copies == 1:
        return found
    few = [shares[copy * len(shares) // copies] for copy in range(copies)]
    return batch_shares(found, twin, apportioned(batch_of(twin), few))


# Operators -----------------------------------------------------------------------------------------------------------


def _shape(segment: Segment) -> tuple[bool, tuple[str, ...]]:
    return segment.glue, segment.period


def _runs(fold: Fold) -> list[tuple[Segment, ...]]:
    """Neighbouring segments that repeat the same blocks: what they are given from elsewhere may differ."""
    return [tuple(run) for _, run in groupby(fold.segments, _shape)]


def _same_segments(fold: Fold, twin: Fold) -> None:
    if [_shape(one[0]) for one in _runs(fold)] != [_shape(one[0]) for one in _runs(twin)]:
        raise NoTwin(
            place="the twin's blocks",
            cause=f"{_shown(twin)} there, {_shown(fold)} in the model",
            fix=SAME,
        )


def _shown(fold: Fold) -> str:
    return ", ".join(f"{'+'.join(one.period)} x {one.repeats}" for one in fold.segments)


@dataclass(frozen=True, slots=True)
class _Names:
    """The twin's names for parts of a body; operators that it lacks are left out."""

    values: Mapping[str, str]
    ops: Mapping[str, str]
    sections: Mapping[tuple[int, ...], tuple[int, ...]]
    """The sizes of sections, by those in the model."""
    params: Mapping[str, str]
    """The values of the model's parameters, by path."""
    loops: tuple[Loops, Loops]
    """Of the body in the model, and of that in the twin."""
    meshes: tuple[Mesh, Mesh] = (Mesh(()), Mesh(()))
    """Of a plan, and of its twin."""

    def dims(self, value: str, dims: Sequence[tuple[Shard, ...]]) -> tuple[tuple[Shard, ...], ...]:
        """How dimensions of a value are cut there."""
        mine, its = (loops.dims.get(name) for loops, name in zip(self.loops, (value, self.values[value]), strict=True))
        found = []
        for at, shards in enumerate(dims):
            names = (mine[at], its[at]) if mine and its else ((), ())
            plain = [shard.axis for shard in shards if shard.layout == CONTIGUOUS]
            found.append(tuple(replace(one, layout=self.layout(one.layout, names, plain)) for one in shards))
        return tuple(found)

    def layout(self, layout: Layout, over: tuple[Names, Names], plain: Sequence[str]) -> Layout:
        """A layout of a dimension over these loops, which axes before it cut in one run."""
        if isinstance(layout, Sections):
            return Sections(self.sections.get(layout.sizes, layout.sizes))
        return replace(layout, runs=self.runs(layout.runs, over, plain)) if isinstance(layout, Nested) else layout

    def runs(self, runs: int, over: tuple[Names, Names], plain: Sequence[str]) -> int:
        """How often outer loops run on a rank there, of which those of the model run so often."""
        mine, its = (
            [{loop.name: loop.size for loop in loops.loops}.get(name, 1) for name in names]
            for loops, names in zip(self.loops, over, strict=True)
        )
        for outer in range(1, len(mine) if len(mine) == len(its) else 0):
            for count in range(len(plain) + 1):
                here, there = (prod(mesh.axis(axis).size for axis in plain[:count]) for mesh in self.meshes)
                if prod(mine[:outer]) == runs * here:
                    return prod(its[:outer]) // there
        return runs

    def strategy(self, op: str, strategy: Strategy) -> Strategy:
        mine, its = (loops.factors.get(name, {}) for loops, name in zip(self.loops, (op, self.ops[op]), strict=True))
        plain: dict[str, list[str]] = {}
        made: list[tuple[str, Choice]] = []
        for axis, one in strategy.choices:
            if not isinstance(one, Split):
                made.append((axis, one))
                continue
            factor = one.factors[0]
            before = plain.setdefault(factor, [])
            names = mine.get(factor, ()), its.get(factor, ())
            made.append((axis, replace(one, layout=self.layout(one.layout, names, before))))
            if one.layout == CONTIGUOUS:
                before.append(axis)
        return Strategy(tuple(made))


def _renamed(graph: Graph, twin: Graph, body: str, mine_loops: Loops, its_loops: Loops) -> _Names:
    found: dict[str, str] = {}
    ops: dict[str, str] = {}
    sections: dict[tuple[int, ...], tuple[int, ...]] = {}
    constants: dict[tuple[tuple[str, Attr], ...], str] = {}
    _pair(found, [item.value for item in graph.inputs], [item.value for item in twin.inputs], f"inputs of {body}")
    mine, its = {p.path: p.value for p in graph.params}, {p.path: p.value for p in twin.params}
    if mine.keys() != its.keys():
        raise _other(f"body {body}", f"parameters {', '.join(sorted(mine.keys() ^ its.keys()))} are in one of both")
    found |= {value: its[path] for path, value in mine.items()}
    products = {value for op in graph.ops if op.kind in PRODUCTS for value in op.results}
    others = iter(twin.ops)
    other = next(others, None)
    for op in graph.ops:
        if other is not None and (op.kind, op.module) == (other.kind, other.module):
            _pair(found, op.results, other.results, f"results of %{op.name}")
            ops[op.name] = other.name
            if op.kind == "constant":
                constants[op.attrs] = other.results[0]
            if op.kind == "split" and products.issuperset(op.operands):
                sizes = op.integers("sizes")
                if sections.setdefault(sizes, other.integers("sizes")) != other.integers("sizes"):
                    raise _other(f"body {body}, %{op.name}", f"what is {sizes} is cut in several ways there")
            other = next(others, None)
        elif op.kind in SILENT:
            found |= dict.fromkeys(op.results, found[op.operands[0]])
        elif op.kind == "constant" and op.attrs in constants:  # every block has one of its own, and there are more
            found |= dict.fromkeys(op.results, constants[op.attrs])
        else:
            raise _other(f"body {body}, %{op.name} ({op.kind}) of {op.module or 'the model'}", _instead(other))
    if other is not None:
        raise _other(f"body {body}", _instead(other))
    return _Names(found, ops, sections, mine, (mine_loops, its_loops))


def _pair(found: dict[str, str], mine: Sequence[str], its: Sequence[str], what: str) -> None:
    if len(mine) != len(its):
        raise _other(what, f"{len(its)} of them in the twin, {len(mine)} in the model")
    found |= dict(zip(mine, its, strict=True))


def _instead(other: Op | None) -> str:
    return f"the twin has %{other.name} ({other.kind}) of {other.module}" if other else "the twin has no more operators"


def _other(place: str, cause: str) -> NoTwin:
    return NoTwin(place=place, cause=f"the twin has another structure: {cause}", fix=SAME)


def _plan(plan: BodyPlan, names: _Names) -> BodyPlan:
    """A plan in the twin's names."""
    states: dict[str, State] = {}
    for value, state in plan.states:
        states.setdefault(names.values[value], replace(state, dims=names.dims(value, state.dims)))
    stored = ((one.path, names.params[one.path], (one.params, one.grads, one.optimizer)) for one in plan.storage)
    return replace(
        plan,
        strategies=tuple((names.ops[op], names.strategy(op, made)) for op, made in plan.strategies if op in names.ops),
        storage=tuple(
            Storage(path, *(replace(one, dims=names.dims(value, one.dims)) for one in placed))
            for path, value, placed in stored
        ),
        states=tuple(states.items()),
        recompute=tuple(dict.fromkeys(names.values[value] for value in plan.recompute)),
        first=min(plan.first, 1),
    )


def _padded_anew(plan: BodyPlan, graph: Graph, mesh: Mesh) -> BodyPlan:
    """The plan with padded storage cut anew for the twin's sizes."""
    shapes = {param.path: graph.types[param.value].shape for param in graph.params}

    def cut(placement: Placement, path: str) -> Placement:
        padded = [shard.axis for dim in placement.dims[:1] for shard in dim if isinstance(shard.layout, Padded)]
        dims = (tuple(shard for shard in dim if shard.axis not in padded) for dim in placement.dims)
        return cut_further(replace(placement, dims=tuple(dims)), shapes[path], padded, mesh)

    stored = (
        Storage(one.path, *(cut(where, one.path) for where in (one.params, one.grads, one.optimizer)))
        for one in plan.storage
    )
    return replace(plan, storage=tuple(stored))


# Stages --------------------------------------------------------------------------------------------------------------


def _stages(decisions: Decisions, fold: Fold, twin: Fold, sizes: Sizes) -> Iterator[StagePlan]:
    stages, stands_for = decisions.stages, sizes.stands_for
    calls = list(twin.calls())
    begins = [_there(stages[at].first, fold, twin) for at in stands_for]
    for index in range(1, len(begins)):  # each has a call
        begins[index] = min(max(begins[index], begins[index - 1] + 1), len(calls) - len(begins) + index)
    folded = _folded(decisions)
    starts = list(accumulate((mesh.size for mesh in sizes.meshes), initial=0))
    for index, (first, last) in enumerate(zip(begins, [*begins[1:], len(calls)], strict=True)):
        turn, place = divmod(index, sizes.groups)
        group = sizes.groups - 1 - place if folded and turn % 2 else place
        until = stands_for[index + 1] if index + 1 < len(stands_for) else len(stages)
        plans = tuple(_plans(decisions, stands_for[index], until))
        missing = {call.body.name for call in calls[first:last]} - {decisions.plan[name].body for name in plans}
        if missing:
            raise NoTwin(
                place=f"stage {index} of the twin",
                cause=f"on mesh ({stages[stands_for[index]].mesh}) nothing is planned for {', '.join(sorted(missing))}",
                fix="verify one rank of each stage with --alone, or the plan itself if it is small and for torch-gloo",
            )
        yield StagePlan(
            first=first,
            last=last,
            mesh=sizes.meshes[group],
            ranks=tuple(range(starts[group], starts[group + 1])),
            plans=plans,
        )


def _folded(decisions: Decisions) -> bool:
    """Whether the first ranks also hold the last stages, under a schedule that stays, or one that ZB-V can stand
    for."""
    stages, groups, schedule = decisions.stages, decisions.groups, decisions.schedule
    both = len(stages) == 2 * len(groups) and stages[-1].ranks == groups[0]
    return both and (not schedule.actions or any("W" in action for one in schedule.actions for action in one))


def _plans(decisions: Decisions, first: int, last: int) -> Iterator[str]:
    """The plans of stages that become one: for each body those of the first stage that has some, on the same mesh."""
    known: set[str] = set()
    mesh = decisions.stages[first].mesh
    for stage in (one for one in decisions.stages[first:last] if one.mesh == mesh):
        bodies = {decisions.plan[name].body for name in stage.plans} - known
        yield from (name for name in stage.plans if decisions.plan[name].body in bodies)
        known |= bodies


def _there(call: int, fold: Fold, twin: Fold) -> int:
    """The twin's call in the place of this one."""
    before = there = 0
    for run, other in zip(_runs(fold), _runs(twin), strict=True):
        mine, its = (sum(segment.calls for segment in one) for one in (run, other))
        if call < before + mine:
            return there + round((call - before) * its / mine)
        before, there = before + mine, there + its
    return there
