"""Sizes of twins, worked out by hand. That plans for twins are exact is shown in tests/planner/test_twin.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.decisions.project import Sizes, layers_of, projected, sizes_of
from meshwright.ir.errors import NoTwin
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import Sections
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from tests.build import Builder
from tests.llama_block import Sizes as Model
from tests.llama_block import model

DEEP = model(Model(layers=14))
"""Sixteen calls: embedding, fourteen blocks, head."""


def pipeline(*meshes: str, groups: int = 0, microbatches: int = 1, calls: int = 16) -> Decisions:
    """A stage on every mesh, with equal numbers of calls, in a loop over groups of ranks."""
    count, held, start = len(meshes), dict[int, tuple[int, ...]](), 0
    for at in range(groups or count):
        size = Mesh.parse(meshes[at]).size
        held[at], start = tuple(range(start, start + size)), start + size
    bounds = [calls * at // count for at in range(count + 1)]
    stages = tuple(
        StagePlan(bounds[at], bounds[at + 1], Mesh.parse(mesh), held[at % len(held)], ("block",))
        for at, mesh in enumerate(meshes)
    )
    return Decisions((BodyPlan("block", "block"),), stages, Schedule("1f1b", microbatches))


def said(sizes: Sizes) -> tuple[list[str], tuple[int, ...], int]:
    return [str(mesh) for mesh in sizes.meshes], sizes.stands_for, sizes.microbatches


@pytest.mark.parametrize(
    ("decisions", "most", "enough", "expected"),
    [
        # As few ranks as keep every degree at two; no more are wanted.
        (pipeline("dp=8 tp=8"), 8, 4, (["dp=2 tp=2"], (0,), 1)),
        # Eight: the axis that has shrunk most is doubled, of two the later name.
        (pipeline("dp=8 tp=8"), 8, 8, (["dp=2 tp=4"], (0,), 1)),
        (pipeline("dp=8 tp=8"), 8, 15, (["dp=2 tp=4"], (0,), 1)),
        (pipeline("dp=16 tp=8"), 8, 8, (["dp=4 tp=2"], (0,), 1)),
        (pipeline("dp=8 tp=8"), 8, 16, (["dp=4 tp=4"], (0,), 1)),
        (pipeline("dp=8 tp=8"), 8, 4096, (["dp=8 tp=8"], (0,), 1)),
        (pipeline("dp=6"), 8, 8, (["dp=4"], (0,), 1)),
        (pipeline("dp=3"), 8, 8, (["dp=2"], (0,), 1)),
        # Outer axes are given up where two along each are too many.
        (pipeline("dp=8 tp=8"), 2, 2, (["dp=1 tp=2"], (0,), 1)),
        (pipeline("dp=8 cp=2 tp=8"), 4, 4, (["dp=1 cp=2 tp=2"], (0,), 1)),
        (pipeline("dp=8 cp=2 tp=8"), 1, 1, (["dp=1 cp=1 tp=1"], (0,), 1)),
        (pipeline("dp=8 cp=1"), 1, 1, (["dp=1 cp=1"], (0,), 1)),
        (pipeline("dp=2 tp=1"), 8, 8, (["dp=2 tp=1"], (0,), 1)),
        # Two groups, which share the ranks; micro-batches are twice the groups.
        (pipeline(*["dp=4"] * 8, microbatches=16), 8, 8, (["dp=4"] * 2, (0, 4), 4)),
        (pipeline(*["dp=4"] * 8, microbatches=3), 4, 4, (["dp=2"] * 2, (0, 4), 3)),
        (pipeline(*["dp=4"] * 8, microbatches=16), 2, 2, (["dp=1"] * 2, (0, 4), 4)),
        (pipeline("dp=4", microbatches=16), 2, 2, (["dp=2"], (0,), 2)),
        # Virtual stages stay: of three groups with two each, two with two each.
        (pipeline(*["dp=2"] * 6, groups=3, microbatches=9), 8, 8, (["dp=2"] * 2, (0, 1, 3, 4), 4)),
        (pipeline(*["dp=2"] * 4, groups=2, microbatches=9), 8, 8, (["dp=2"] * 2, (0, 1, 2, 3), 4)),
        # Neighbours of one mesh become one; between the first and the last as many as there is room for.
        (pipeline("dp=8", "dp=8", "tp=8", microbatches=9), 8, 8, (["dp=2", "tp=2"], (0, 2), 4)),
        (pipeline("dp=8", "tp=8", "dp=4", microbatches=9), 6, 8, (["dp=2", "tp=2", "dp=2"], (0, 1, 2), 6)),
        (pipeline("dp=8", "tp=8", "dp=4", microbatches=9), 5, 8, (["dp=2", "dp=2"], (0, 2), 4)),
        (pipeline("dp=8", "tp=8", "cp=4", "dp=4", microbatches=9), 6, 8, (["dp=2", "tp=2", "dp=2"], (0, 1, 3), 6)),
        (pipeline("dp=8 tp=4", "tp=8", microbatches=3), 4, 8, (["dp=1 tp=2", "tp=2"], (0, 1), 3)),
        (pipeline("dp=8 tp=4", "tp=8"), 8, 8, (["dp=2 tp=2", "tp=2"], (0, 1), 1)),
    ],
)
def test_twins_are_small_and_keep_their_structure(
    decisions: Decisions, most: int, enough: int, expected: tuple[list[str], tuple[int, ...], int]
) -> None:
    sizes = sizes_of(decisions, most, enough)
    assert said(sizes) == expected
    assert sizes.groups == len(sizes.meshes)
    assert sizes.ranks == sum(mesh.size for mesh in sizes.meshes)


def test_an_axis_is_as_long_as_where_it_is_longest() -> None:
    sizes = Sizes((Mesh.parse("dp=2 tp=2"), Mesh.parse("dp=3"), Mesh.parse("cp=2")), (0, 1, 2), 1)
    assert [sizes.axis(name) for name in ("dp", "tp", "cp", "ep")] == [3, 2, 2, 1]


def block(*widths: int, cast: bool = False, module: str = "m", constants: int = 0, extra: str = "") -> Graph:
    """Linears of these widths, the first of which is cut into halves; with what half precision needs besides."""
    g = Builder()
    x = g.input((2, 8), labels=("b", ""), requires_grad=True)
    for _ in range(constants):
        x = g.op("add", x, g.op("constant", shape=(8,), dtype="f32", law="cos:1"))
    y = g.op("cast", x, dtype="f32") if cast else x
    for at, width in enumerate(widths):
        y = g.op("linear", y, g.param(f"w{at}", (width, g.types[y].shape[-1])), module=module, name=f"{module}{at}")
        if width % 4 == 0 and width > 8:
            low, high = g.many("split", y, dim=-1, sizes=(width // 4, 3 * width // 4))
            y = g.op("mul", high, g.op("mean", low, dim=-1, keepdim=True))
    y = g.op("linear", y, g.param("out", (8, g.types[y].shape[-1])))
    g.output(g.op(extra, y) if extra else y)
    return g.graph()


def fold(graph: Graph, layers: int = 2, second: Graph | None = None) -> Fold:
    """Layers of one kind, or two by turns."""
    period = ("one",) if second is None else ("one", "two")
    entry, again = (FromInput("x"),), (FromPrevious(0),)
    bodies = (Body("one", graph), *(() if second is None else (Body("two", second),)))
    paths = tuple(f"l.{at}" for at in range(layers))
    return Fold(
        bodies,
        (Segment(period, paths, entry, (again,) * len(period)),),
        ((graph.inputs[0], graph.types["x"]),),
        (FromPrevious(0),),
    )


@pytest.mark.parametrize(
    ("made", "meshes", "stands_for", "layers"),
    [
        (model(), 1, 1, 2),
        (model(Model(layers=1)), 1, 1, 2),
        (model(), 2, 2, 4),
        (model(), 2, 4, 8),
        (model(), 1, 4, 2),
        (fold(block(8), 8, block(8)), 1, 1, 4),
        (fold(block(8), 2, block(8)), 1, 1, 2),
        (fold(block(8), 8, block(8)), 2, 2, 4),
        (fold(block(8), 8, block(8)), 2, 3, 6),
    ],
)
def test_twins_have_two_layers_of_each_kind_and_two_for_each_stage(
    made: Fold, meshes: int, stands_for: int, layers: int
) -> None:
    sizes = Sizes((Mesh.parse("dp=2"),) * meshes, tuple(range(stands_for)), 1)
    assert layers_of(pipeline("dp=2"), made, sizes) == layers


def planned(
    graph: Graph, strategies: dict[str, Strategy], states: dict[str, str], again: tuple[str, ...] = (), first: int = 0
) -> Decisions:
    storage = Storage("w0", Placement.parse("[dp, -]"), Placement.parse("[-, -]"), Placement.parse("[-, dp]"))
    plan = BodyPlan(
        "p", "one", tuple(strategies.items()), tuple((name, State.parse(text)) for name, text in states.items()),
        (storage,), again, first=first,
    )  # fmt: skip
    return Decisions((plan, BodyPlan("q", "one")), (StagePlan(0, 2, Mesh.parse("dp=4"), (0, 1, 2, 3), ("p", "q")),))


SMALL = Sizes((Mesh.parse("dp=2"),), (0,), 1)


def test_a_plan_is_said_in_the_names_of_the_twin() -> None:
    """Casts that the twin lacks stand for what they read; sections have its sizes; first layers are one."""
    big, twin = block(32, cast=True), block(16, module="m")
    halves = Strategy((("dp", Split(("n",), Sections((8, 24)))),))
    plain = Strategy.parse("dp=d0")
    decisions = planned(
        big,
        {"cast": plain, "m0": halves, "mul": plain},
        {"x": "[dp, -]", "cast": "[-, -]", "mul": "[-, dp]"},
        again=("cast", "x", "m0"),
        first=3,
    )
    found = projected(decisions, fold(big), fold(twin), SMALL, "there")
    plan = found.plan["p"]
    assert dict(plan.strategies) == {"m0": Strategy((("dp", Split(("n",), Sections((4, 12)))),)), "mul": plain}
    assert {name: str(state) for name, state in plan.states} == {"x": "[dp, -]", "mul": "[-, dp]"}
    assert plan.recompute == ("x", "m0")
    assert plan.first == 1
    assert [str(one) for one in (plan.storage[0].params, plan.storage[0].optimizer)] == ["[dp, -]", "[-, dp]"]
    assert (found.target, found.style, found.schedule) == ("there", "eager", Schedule("gpipe", 1))
    (stage,) = found.stages
    assert (stage.first, stage.last, str(stage.mesh), stage.ranks, stage.plans) == (0, 2, "dp=2", (0, 1), ("p", "q"))


def merged(tokens: int, samples: int) -> Graph:
    """A product over tokens and samples that are one dimension."""
    g = Builder()
    x = g.input((tokens, samples, 8), labels=("s", "b", ""), requires_grad=True)
    y = g.op("linear", g.op("view", x, shape=(tokens * samples, 8)), g.param("w0", (8, 8)), name="m0")
    g.output(g.op("view", y, shape=(tokens, samples, 8), name="apart"))
    return g.graph()


def test_an_inner_loop_is_cut_as_often_as_outer_ones_run_there() -> None:
    """Samples are cut in every token, of which there are fewer in the twin; and where an axis cuts the tokens, in every
    token that a rank has."""
    big, twin = merged(512, 8), merged(32, 2)
    whole, own = Strategy.parse("dp=d0:nested(512)"), Strategy.parse("cp=d0 dp=d0:nested(128)")
    found = projected(planned(big, {"m0": whole}, {"view": "[dp:nested(512), -]"}), fold(big), fold(twin), SMALL, "x")
    assert dict(found.plan["p"].strategies) == {"m0": Strategy.parse("dp=d0:nested(32)")}
    assert [str(state) for _, state in found.plan["p"].states] == ["[dp:nested(32), -]"]
    decisions = planned(big, {"m0": own}, {})
    mesh = Mesh.parse("cp=4 dp=2")
    stages = (replace(decisions.stages[0], mesh=mesh, ranks=tuple(range(8))),)
    few = Sizes((Mesh.parse("cp=2 dp=2"),), (0,), 1)
    found = projected(replace(decisions, stages=stages), fold(big), fold(twin), few, "x")
    assert dict(found.plan["p"].strategies) == {"m0": Strategy.parse("cp=d0 dp=d0:nested(16)")}


def test_constants_that_repeat_may_be_fewer_in_the_twin() -> None:
    big, twin = block(8, constants=1), block(8, constants=1)
    again = Builder()
    x = again.input((2, 8), labels=("b", ""), requires_grad=True)
    first = again.op("constant", shape=(8,), dtype="f32", law="cos:1")
    x = again.op("add", x, first)
    y = again.op("linear", x, again.param("w0", (8, 8)), module="m", name="m0")
    again.op("constant", shape=(8,), dtype="f32", law="cos:1", name="second")
    again.output(again.op("linear", y, again.param("out", (8, 8))))
    found = projected(planned(again.graph(), {}, {"second": "[dp]"}), fold(again.graph()), fold(twin), SMALL, "there")
    assert {name: str(state) for name, state in found.plan["p"].states} == {"constant": "[dp]"}
    assert projected(planned(big, {}, {}), fold(big), fold(twin), SMALL, "there").plan["p"].states == ()


@pytest.mark.parametrize(
    ("twin", "place", "cause"),
    [
        (
            fold(block(8, extra="relu")),
            "body one",
            "the twin has another structure: the twin has %relu (relu) of ",
        ),
        (
            fold(block(8, module="n")),
            "body one, %m0 (linear) of m",
            "the twin has another structure: the twin has %n0 (linear) of n",
        ),
        (
            fold(block(8, 8)),
            "body one",
            "the twin has another structure: parameters w1 are in one of both",
        ),
        (
            fold(block(8), 2, block(8)),
            "the twin's blocks",
            "one+two x 1 there, one x 2 in the model",
        ),
    ],
)
def test_a_twin_of_another_structure_is_refused(twin: Fold, place: str, cause: str) -> None:
    big = block(8)
    with pytest.raises(NoTwin) as refusal:
        projected(planned(big, {}, {}), fold(big), twin, SMALL, "there")
    assert (refusal.value.place, refusal.value.cause) == (place, cause)


def test_what_the_twin_lacks_is_named() -> None:
    big = block(8, extra="relu")
    with pytest.raises(NoTwin) as refusal:
        projected(planned(big, {}, {}), fold(big), fold(block(8)), SMALL, "there")
    assert (refusal.value.place, refusal.value.cause) == (
        "body one, %relu (relu) of the model",
        "the twin has another structure: the twin has no more operators",
    )


def test_products_that_are_cut_alike_are_cut_alike_there() -> None:
    big, twin = block(32, 32), block(16, 12)
    with pytest.raises(NoTwin, match=r"what is \(8, 24\) is cut in several ways there"):
        projected(planned(big, {}, {}), fold(big), fold(twin), SMALL, "there")
    assert projected(planned(big, {}, {}), fold(big), fold(block(16, 16)), SMALL, "there").plan["p"].body == "one"


def staged(bounds: list[tuple[int, int]], ranks: list[int], meshes: list[str], schedule: Schedule) -> Decisions:
    plans = tuple(
        BodyPlan(f"{body}{mesh}", body) for mesh in dict.fromkeys(meshes) for body in ("embed", "block", "head")
    )
    bodies = ["embed", *["block"] * 14, "head"]
    return Decisions(
        plans,
        tuple(
            StagePlan(
                first, last, Mesh.parse(mesh), tuple(range(2 * on, 2 * on + 2)),
                tuple(f"{body}{mesh}" for body in dict.fromkeys(bodies[first:last])),
            )
            for (first, last), on, mesh in zip(bounds, ranks, meshes, strict=True)
        ),
        schedule,
    )  # fmt: skip


TWIN = model(Model(layers=4))
LOOP = [(0, 2, (0, 1)), (2, 3, (2, 3)), (3, 4, (0, 1)), (4, 6, (2, 3))]
VEE = [(0, 2, (0, 1)), (2, 3, (2, 3)), (3, 4, (2, 3)), (4, 6, (0, 1))]


@pytest.mark.parametrize(
    ("ranks", "schedule", "stages", "named"),
    [
        # Four groups of a stage each: the first of two stages begins with the model, the second in its middle.
        ([0, 1, 2, 3], Schedule("1f1b", 8), [(0, 3, (0, 1)), (3, 6, (2, 3))], "1f1b x 4"),
        ([0, 1, 2, 3], Schedule("custom", 8, (("0F0",),)), [(0, 3, (0, 1)), (3, 6, (2, 3))], "1f1b x 4"),
        # Two groups of two stages, in a loop and folded to a V.
        ([0, 1, 0, 1], Schedule("interleaved", 2), LOOP, "interleaved x 2"),
        ([0, 1, 0, 1], Schedule("custom", 2, (("0W0",),)), LOOP, "interleaved x 2"),
        ([0, 1, 1, 0], Schedule("zbv", 2), VEE, "zbv x 2"),
        ([0, 1, 1, 0], Schedule("custom", 2, (("0F0",), ("0W0",))), VEE, "zbv x 2"),
        ([0, 1, 1, 0], Schedule("custom", 2, (("0F0", "0B0"),)), LOOP, "interleaved x 2"),
    ],
)  # fmt: skip
def test_stages_of_the_twin_begin_where_those_of_the_plan_do(
    ranks: list[int], schedule: Schedule, stages: list[tuple[int, int, tuple[int, ...]]], named: str
) -> None:
    """Fourteen blocks are four there: what begins behind 4, 7 or 11 of them begins behind 1, 2 or 3."""
    decisions = staged([(0, 5), (5, 8), (8, 12), (12, 16)], ranks, ["dp=2"] * 4, schedule)
    found = projected(decisions, DEEP, TWIN, sizes_of(decisions, 4, 4), "there")
    assert [(one.first, one.last, one.ranks) for one in found.stages] == stages
    assert f"{found.schedule.name} x {found.schedule.microbatches}" == named
    assert not found.schedule.actions


def test_stages_of_one_mesh_become_one_with_the_plans_of_all() -> None:
    """A mesh without a plan for the body that the twin has there is refused."""
    bounds, meshes = [(0, 5), (5, 10), (10, 16)], ["dp=2", "dp=2", "tp=2"]
    decisions = staged(bounds, [0, 1, 2], meshes, Schedule("1f1b", 4))
    sizes = sizes_of(decisions, 4, 4)
    assert said(sizes) == (["dp=2", "tp=2"], (0, 2), 4)
    found = projected(decisions, DEEP, TWIN, sizes, "there")
    assert [(one.first, one.last, one.plans) for one in found.stages] == [
        (0, 4, ("embeddp=2", "blockdp=2")),
        (4, 6, ("blocktp=2", "headtp=2")),
    ]
    alone = staged([(0, 15), (15, 16)], [0, 1], ["dp=2", "tp=2"], Schedule("1f1b", 4))
    found = projected(alone, DEEP, TWIN, sizes_of(alone, 4, 4), "there")
    assert [(one.first, one.last) for one in found.stages] == [(0, 5), (5, 6)]
    late = staged([(0, 1), (1, 16)], [0, 1], ["dp=2", "tp=2"], Schedule("1f1b", 4))
    found = projected(late, DEEP, TWIN, sizes_of(late, 4, 4), "there")
    assert [(one.first, one.last) for one in found.stages] == [(0, 1), (1, 6)]


@pytest.mark.parametrize(
    ("bounds", "there"),
    [
        ([0, 1, 14], [0, 1, 4]),
        ([0, 13, 14], [0, 3, 4]),
        ([0, 7, 14], [0, 2, 4]),
        ([0, 1, 2, 14], [0, 1, 2, 4]),
        ([0, 12, 13, 14], [0, 2, 3, 4]),
        ([0, 1, 2, 3, 14], [0, 1, 2, 3, 4]),
    ],
)
def test_every_stage_of_the_twin_has_a_call(bounds: list[int], there: list[int]) -> None:
    """Fourteen layers are four there. Stages of meshes by turns, so that each stays one."""
    big, twin = fold(block(8), 14), fold(block(8), 4)
    meshes = ["dp=2", "tp=2", "dp=2", "tp=2"][: len(bounds) - 1]
    stages = tuple(
        StagePlan(bounds[at], bounds[at + 1], Mesh.parse(mesh), (2 * at, 2 * at + 1), (mesh,))
        for at, mesh in enumerate(meshes)
    )
    decisions = Decisions(tuple(BodyPlan(mesh, "one") for mesh in dict.fromkeys(meshes)), stages, Schedule("1f1b", 2))
    found = projected(decisions, big, twin, sizes_of(decisions, 8, 8), "there")
    assert [one.first for one in found.stages] == there[:-1]
    assert [one.last for one in found.stages] == there[1:]
