"""Hypothesis strategies for the types of the IR. Graphs here are well formed but mean nothing: kinds need no rule."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.graph.graph import ITEMSIZE, Attr, Graph, Input, Op, Param, Type, Update
from meshwright.ir.schedules import CUSTOM, SCHEDULES
from meshwright.ir.sharding.adjoint import Choice, Idle, Pass, Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested, Padded, Sections, Uneven
from meshwright.ir.sharding.mesh import LOCAL_TIER, Mesh, MeshAxis
from meshwright.ir.sharding.placement import Partial, Shard, State
from meshwright.ir.target.workload import STYLES

plain_names = st.from_regex(r"[a-z][a-z0-9_.]{0,5}", fullmatch=True)
any_names = st.one_of(plain_names, st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
types = st.builds(Type, st.lists(st.integers(0, 9), max_size=4).map(tuple), st.sampled_from(sorted(ITEMSIZE)))
scalars = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), any_names, st.none(), st.sampled_from(["inf", "true"])
)
attrs: st.SearchStrategy[Attr] = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple))


@st.composite
def graphs(draw: st.DrawFn, names: st.SearchStrategy[str] = any_names) -> Graph:
    """Graphs of up to eight values, with every optional part now and then present."""
    values = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    types_ = {value: draw(types) for value in values}
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    inputs = tuple(_input(draw, value, names) for value in values[: cuts[0]])
    params = tuple(_param(draw, value, names) for value in values[cuts[0] : cuts[1]])
    ops, known, rest = [], list(values[: cuts[1]]), values[cuts[1] :]
    while rest:
        taken = draw(st.integers(1, len(rest)))
        ops.append(_op(draw, known, tuple(rest[:taken]), names))
        known, rest = known + rest[:taken], rest[taken:]
    outputs = draw(st.lists(st.sampled_from(values), max_size=3))
    updates = [Update(draw(names), draw(st.sampled_from(values)), draw(names)) for _ in range(draw(st.integers(0, 2)))]
    scalars_ = [value for value in outputs if not types_[value].shape]
    loss = draw(st.sampled_from([None, *scalars_]))
    return Graph(types_, inputs, params, tuple(ops), tuple(outputs), tuple(updates), loss)


def _input(draw: st.DrawFn, value: str, names: st.SearchStrategy[str]) -> Input:
    return Input(value, tuple(draw(st.lists(names, max_size=3))), draw(st.booleans()))


def _param(draw: st.DrawFn, value: str, names: st.SearchStrategy[str]) -> Param:
    paths = draw(st.lists(names, min_size=1, max_size=2))
    return Param(value, tuple(paths), draw(st.booleans()), draw(st.booleans()))


def _op(draw: st.DrawFn, known: list[str], results: tuple[str, ...], names: st.SearchStrategy[str]) -> Op:
    operands = tuple(draw(st.lists(st.sampled_from(known), max_size=3))) if known else ()
    return Op(
        draw(names),
        operands,
        results,
        tuple(draw(st.dictionaries(names, attrs, max_size=2)).items()),
        draw(names),
        draw(names),
        draw(st.booleans()),
        draw(st.sampled_from([None, *range(len(operands))])),
    )


axis_names = st.sampled_from(["dp", "tp", "cp", "ep", "a_1"])


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    names = draw(st.lists(axis_names, max_size=4, unique=True))
    tiers = st.sampled_from([LOCAL_TIER, "nvlink", "rail-1.b"])
    return Mesh(tuple(MeshAxis(name, draw(st.integers(1, 4)), draw(tiers)) for name in names))


@st.composite
def layouts(draw: st.DrawFn, parts: int) -> tuple[Layout, int]:
    """A layout and an extent that it can cut into `parts`."""
    kind = draw(st.sampled_from(["contiguous", "nested", "sections", "zigzag", "uneven", "padded"]))
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    if kind == "sections":
        return Sections(tuple(size * parts for size in sizes)), sum(sizes) * parts
    if kind == "nested":
        inner = draw(st.sampled_from([CONTIGUOUS, ZIGZAG]))
        return Nested(len(sizes), inner), len(sizes) * 2 * parts * sizes[0]
    if kind == "uneven":
        runs = tuple(draw(st.lists(st.integers(1, 4), min_size=parts, max_size=parts)))
        return Uneven(runs), sum(runs)
    if kind == "padded":
        return Padded((sizes[0],)), draw(st.integers(1, sizes[0] * parts))
    return (ZIGZAG, 2 * parts * sizes[0]) if kind == "zigzag" else (CONTIGUOUS, parts * sizes[0])


@st.composite
def states(draw: st.DrawFn) -> State:
    """Any state: an axis is in a dimension, partial, partial for the gradient, or nowhere."""
    rank = draw(st.integers(0, 3))
    dims: list[list[Shard]] = [[] for _ in range(rank)]
    partial, grads = [], []
    for axis in draw(st.lists(axis_names, unique=True)):
        use = draw(st.integers(-2, rank - 1))
        if use >= 0:
            dims[use].append(Shard(axis, draw(layouts(draw(st.integers(1, 3))))[0]))
        elif use == -1:
            partial.append(Partial(axis, draw(st.sampled_from(["sum", "max"]))))
        else:
            grads.append(axis)
    return State(tuple(map(tuple, dims)), tuple(partial), tuple(grads))


factor_names = st.sampled_from(["b", "s", "sq", "sk", "d0", "k"])
choices: st.SearchStrategy[Choice] = st.one_of(
    st.builds(
        Split, st.lists(factor_names, min_size=1, max_size=2, unique=True).map(tuple), layouts(2).map(lambda t: t[0])
    ),
    st.builds(Idle, st.booleans()),
    st.builds(Pass, st.one_of(st.none(), st.integers(0, 12))),
)
strategies = st.dictionaries(axis_names, choices).map(lambda chosen: Strategy(tuple(chosen.items())))


@st.composite
def body_plans(draw: st.DrawFn, name: str) -> BodyPlan:
    """Any body plan: what it names need not exist."""
    value_states = draw(st.dictionaries(any_names, states(), max_size=3))
    paths = draw(st.lists(any_names, max_size=2, unique=True))
    placements = states().map(lambda state: state.value)
    return BodyPlan(
        name=name,
        body=draw(any_names),
        strategies=tuple(draw(st.dictionaries(any_names, strategies, max_size=3)).items()),
        states=tuple(value_states.items()),
        storage=tuple(Storage(path, draw(placements), draw(placements), draw(placements)) for path in paths),
        recompute=tuple(draw(st.lists(any_names, max_size=3, unique=True))),
        regather=draw(st.booleans()),
        first=draw(st.integers(0, 3)),
    )


@st.composite
def decisions(draw: st.DrawFn) -> Decisions:
    """Any decisions that hold together by themselves; ranks of stages are disjoint or the same."""
    plans = [draw(body_plans(name)) for name in draw(st.lists(any_names, max_size=3, unique=True))]
    stages: list[StagePlan] = []
    start = 0
    for index in range(draw(st.integers(0, 3))):
        mesh = draw(meshes())
        ranks = tuple(draw(st.permutations(range(start, start + mesh.size))))
        start += mesh.size
        used = draw(st.lists(st.sampled_from([plan.name for plan in plans]), max_size=2, unique=True)) if plans else []
        stages.append(StagePlan(index, draw(st.integers(1, 99)), mesh, ranks, tuple(used)))
    if stages and draw(st.booleans()):
        stages.append(replace(stages[0], first=draw(st.integers(0, 99))))
    actions = tuple(map(tuple, draw(st.lists(st.lists(any_names, max_size=3), max_size=2))))
    schedule = Schedule(draw(st.sampled_from((*SCHEDULES, CUSTOM))), draw(st.integers(1, 99)), actions)
    waits = draw(st.booleans())
    offload = Offload(draw(st.booleans()), waits, draw(st.integers(0, 99)) if waits else 0)
    return Decisions(tuple(plans), tuple(stages), schedule, draw(any_names), draw(st.sampled_from(STYLES)), offload)
