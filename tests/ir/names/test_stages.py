"""Layers shared out among stages, of a model of six calls: a table, four layers and a head; and what words say of axes
that operators are cut by."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.analysis.loops import loops
from meshwright.ir.decisions.decisions import BodyPlan, Schedule, StagePlan
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import DegreeImpossible, LayersIndivisible
from meshwright.ir.graph.fold import Body, Fold, FromInput, Segment
from meshwright.ir.graph.graph import Input
from meshwright.ir.names import Degrees, cuts, even_cuts, loops_split, name_of, template
from meshwright.ir.names.stages import cuts_at, layer_calls, only_layer, shared, stage_plans, with_first
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from tests.build import Builder
from tests.llama_block import model

FOLD = model()
MESH = Mesh.parse("tp=2")


def test_what_is_no_layer_goes_with_the_layer_before_it() -> None:
    """The first stage has the table, the last the head; where layers have run out, the head alone."""
    assert layer_calls(FOLD) == [1, 2, 3, 4]
    table = {
        (4,): ((0, 6),),
        (2, 2): ((0, 3), (3, 6)),
        (1, 3): ((0, 2), (2, 6)),
        (4, 0): ((0, 5), (5, 6)),
        (0, 4): ((0, 1), (1, 6)),
        (0, 1, 3, 0): ((0, 1), (1, 2), (2, 5), (5, 6)),
    }
    assert {counts: cuts_at(FOLD, counts) for counts in table} == table
    assert cuts(FOLD, Degrees(pp=2, stage_blocks=(1, 3))) == ((0, 2), (2, 6))
    assert cuts(FOLD, Degrees(pp=3, split="ends")) == ((0, 2), (2, 4), (4, 6))
    assert even_cuts(FOLD, 3) == ((0, 2), (2, 3), (3, 6))


def without_table() -> Fold:
    """The same model on rows that are given: nothing is made before its first layer."""
    (_, layers, head), (_, labels) = FOLD.segments, FOLD.inputs
    graph = FOLD.body["block"].graph
    rows = (Input("rows", graph.inputs[0].labels), graph.types[graph.inputs[0].value])
    opening = Segment(("embed",), ("",), (), ((),), glue=True)
    bodies = (Body("embed", Builder().graph()), *FOLD.bodies[1:])
    return replace(
        FOLD,
        bodies=bodies,
        segments=(opening, replace(layers, entry=(FromInput("rows"),)), head),
        inputs=(rows, labels),
    )


def test_shares_that_do_not_go() -> None:
    for counts, cause, fix in (
        ((2, 1), "3 layers in 2 stages, the model has 4", "give numbers that add up to 4"),
        ((5, -1), "4 layers in 2 stages, the model has 4", "give numbers that add up to 4"),
        ((1, 2, 0, 1), "stage 2 of 4 holds nothing", "give it a layer"),
        ((0, 0, 4), "stage 1 of 3 holds nothing", "give it a layer"),
    ):
        with pytest.raises(LayersIndivisible) as refused:
            cuts_at(FOLD, counts)
        assert (refused.value.place, refused.value.cause, refused.value.fix) == ("stage_blocks", cause, fix)
    with pytest.raises(LayersIndivisible, match="stage 0 of 2 holds nothing"):
        cuts_at(without_table(), (0, 4))
    assert cuts_at(without_table(), (1, 3)) == ((0, 2), (2, 6))
    rest = "or split='spread', or stage_blocks with the layers of every stage"
    ends = "or split='ends', where embedding and head count as a layer each"
    for layers, stages, split, cause, fix in (
        (4, 3, "even", "4 layers for so 3 stages", f"use a pp * vp of one of 1, 2, 4; {ends}; {rest}"),
        (5, 3, "even", "5 layers for so 3 stages", f"use a pp * vp of one of 1, 5; {rest}"),
        (
            5,
            2,
            "ends",
            "5 layers with embedding and head for so 2 stages",
            f"use a pp * vp of one of 1, 5; {rest}",
        ),
    ):
        with pytest.raises(LayersIndivisible) as refused:
            shared(layers, stages, split, "so ")
        assert (refused.value.place, refused.value.cause, refused.value.fix) == ("pp", cause, fix)
    table = {(5, 1, "ends"): (5,), (10, 3, "ends"): (3, 4, 3), (4, 2, "ends"): (2, 2), (0, 1, "spread"): (0,)}
    assert {given: shared(*given) for given in table} == table


def test_first_layers_of_a_stage_have_a_plan_of_their_own() -> None:
    """Where a stage has more of them the usual one takes the rest; other bodies keep theirs."""
    stages = tuple(
        StagePlan(first, last, MESH, (0, 1), plans)
        for first, last, plans in (
            (0, 3, ("block", "embed")),
            (3, 4, ("block",)),
            (4, 6, ("block", "head")),
            (6, 6, ("head",)),
        )
    )
    for first, expected in (
        (1, [("first", "block", "embed"), ("first",), ("first", "head"), ("head",)]),
        (2, [("first", "embed"), ("first",), ("first", "head"), ("head",)]),
    ):
        made = with_first(FOLD, stages, BodyPlan("first", "block", first=first))
        assert [stage.plans for stage in made] == expected
        assert [replace(one, plans=()) for one in made] == [replace(one, plans=()) for one in stages]


def test_layers_of_several_kinds_cannot_be_first() -> None:
    assert only_layer(FOLD, "here") == "block"
    unlike: Any = SimpleNamespace(
        segments=[replace(segment, glue=segment.period == ("block",)) for segment in FOLD.segments]
    )
    with pytest.raises(DegreeImpossible) as refused:
        only_layer(unlike, "here")
    assert (refused.value.place, refused.value.cause, refused.value.fix) == (
        "here",
        "the first layers of a stage, and there are 2 kinds: embed, head",
        "treat all layers alike",
    )


def test_groups_of_ranks_hold_stages_as_the_schedule_says() -> None:
    """In a V the first group has the first and the last stage; interleaved ones go round."""
    for schedule, order in (("zbv", (0, 1, 1, 0)), ("1f1b", (0, 1, 0, 1))):
        degrees = Degrees(pp=2, vp=2, tp=2, schedule=schedule, microbatches=4)
        found = stage_plans(FOLD, degrees, MESH)
        assert [stage.ranks for stage in found] == [((0, 1), (2, 3))[group] for group in order]
        assert [(stage.first, stage.last) for stage in found] == [(0, 2), (2, 3), (3, 4), (4, 6)]
        assert [stage.plans for stage in found] == [("block", "embed"), ("block",), ("block",), ("block", "head")]


def test_a_template_is_what_degrees_say() -> None:
    degrees = Degrees(pp=2, microbatches=3, schedule="1f1b", recompute="full_layers:1", offload="optimizer")
    made = template(FOLD, degrees, "torch-gloo")
    assert (made.schedule, made.target, made.offload) == (Schedule("1f1b", 3), "torch-gloo", Offload.parse("optimizer"))
    first, *others = made.plans
    assert (first.body, first.first, bool(first.recompute)) == ("block", 1, True)
    assert [(plan.body, plan.first, bool(plan.recompute)) for plan in others] == [
        (body.name, 0, False) for body in FOLD.bodies
    ]
    assert [stage.plans for stage in made.stages] == [
        (first.name, others[1].name, others[0].name),
        (first.name, others[1].name, others[2].name),
    ]
    assert (template(FOLD, Degrees()).target, template(FOLD, Degrees()).schedule) == ("any", Schedule("gpipe", 1))


def test_what_people_call_an_axis() -> None:
    """By the loops that it splits, most first, of those as many by name."""
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    up = g.op("linear", x, g.param("up", (32, 16)), name="up")
    down = g.op("linear", g.op("relu", up, name="act"), g.param("down", (16, 32)), name="down")
    g.output(g.op("add", x, down, name="y"))
    graph = g.graph()
    found = loops(graph)
    ffn, hidden = (found.factors["up"][factor][0] for factor in ("n", "k"))
    table = (
        ({}, "-", {}),
        ({"up": "a=d0", "down": "a=d0", "y": "a=d0"}, "dp", {"b": 3}),
        ({"y": "a=d1"}, "cp", {"s": 1}),
        ({"y": "a=d0 c=d1"}, "dp", {"b": 1}),
        ({"up": "a=n", "act": "a=d2", "y": "a=d0"}, None, {ffn: 2, "b": 1}),
        ({"y": "a=d1", "up": "a=k", "act": "a=d1"}, None, {"s": 2, hidden: 1}),
        ({"y": "a=d0", "act": "a=d1"}, "cp", {"b": 1, "s": 1}),
    )
    for given, name, split in table:
        plan = BodyPlan("x", "x", tuple((op, Strategy.parse(text)) for op, text in given.items()))
        assert list(loops_split(plan, found, "a").items()) == list(split.items())
        if name is not None:
            assert name_of(plan, graph, found, "a") == name
