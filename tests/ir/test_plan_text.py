"""Plans and programs as text and JSON: writing and reading are inverse, and what cannot be read is placed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.decisions.json import KEYS, decisions_from_json, decisions_to_json, key_of
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.decisions.text import decisions_text, parse_decisions
from meshwright.ir.errors import (
    MeshSyntax,
    MeshwrightError,
    PlacementSyntax,
    PlanKeyMissing,
    PlanKeyUnknown,
    PlanSyntax,
    PlanValue,
    PlanVersion,
    RanksOverlap,
)
from meshwright.ir.graph.graph import Graph, Update
from meshwright.ir.limits import GLOBAL_BATCH
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.ir.program.reading import parse_program
from meshwright.ir.program.text import program_text
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.target.workload import STACKS, Workload
from tests.build import Builder
from tests.ir.strategies import any_names, decisions, graphs
from tests.ir.test_interp_step import PLANS
from tests.llama_block import model

FOLD = model()
SMALL = template(FOLD, Degrees(dp=2, tp=2, pp=2, zero=1, schedule="1f1b", microbatches=2))


# Decisions -----------------------------------------------------------------------------------------------------------


@given(decisions())
def test_decisions_round_trip_as_text(plan: Decisions) -> None:
    text = decisions_text(plan)
    assert parse_decisions(text) == plan
    assert decisions_text(parse_decisions(text)) == text


@given(decisions())
def test_decisions_round_trip_as_json(plan: Decisions) -> None:
    written = json.dumps(decisions_to_json(plan))
    assert decisions_from_json(json.loads(written)) == plan
    assert json.dumps(decisions_to_json(decisions_from_json(json.loads(written)))) == written


@pytest.mark.parametrize("name", PLANS)
def test_templates_round_trip(name: str) -> None:
    plan = template(FOLD, PLANS[name])
    assert parse_decisions(decisions_text(plan)) == plan
    assert decisions_from_json(json.loads(json.dumps(decisions_to_json(plan)))) == plan


def test_idle_strategies_are_left_out() -> None:
    plan = BodyPlan("p", "b", (("x", Strategy()), ("y", Strategy.parse("dp=d0")), ("z", Strategy.parse("tp=-"))))
    assert plan.strategies == (("y", Strategy.parse("dp=d0")),)
    assert decisions_to_json(Decisions((plan,), ()))["placements"]["p"]["strategies"] == {"y": "dp=d0"}


def test_json_has_the_promised_keys() -> None:
    data = decisions_to_json(SMALL)
    assert tuple(data) == KEYS
    assert list(data["stages"][0]) == ["first", "last", "mesh", "plans"]
    assert data["stages"][0]["mesh"] == "dp=2 tp=2"
    assert data["ranks"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert data["schedule"] == {"name": "1f1b", "microbatches": 2, "actions": []}
    assert data["placements"]["block"]["strategies"]["q"] == "dp=d0 tp=n"
    assert data["storage"]["head"]["norm.weight"] == {"params": "[-]", "grads": "[-]", "optimizer": "[dp]"}


BAD_JSON: dict[str, tuple[list[str | int], Any, type[MeshwrightError], str]] = {
    "another version": (["format_version"], 99, PlanVersion, "plan: format_version"),
    "a version that is no number": (["format_version"], True, PlanValue, "plan: format_version"),
    "a key left out": (["target"], None, PlanKeyMissing, "plan: target"),
    "a nested key left out": (["stages", 1, "mesh"], None, PlanKeyMissing, "plan: stages[1].mesh"),
    "an unknown key": (["stagess"], [], PlanKeyUnknown, "plan: stagess"),
    "an unknown nested key": (["schedule", "kind"], "1f1b", PlanKeyUnknown, "plan: schedule.kind"),
    "storage of an unknown plan": (["storage", "blok"], {}, PlanKeyUnknown, "plan: storage.blok"),
    "a list for an object": (["placements"], [], PlanValue, "plan: placements"),
    "a string for a list": (["ranks", 0], "0..3", PlanValue, "plan: ranks[0]"),
    "a string for a number": (["schedule", "microbatches"], "2", PlanValue, "plan: schedule.microbatches"),
    "a number for a string": (["stages", 0, "mesh"], 4, PlanValue, "plan: stages[0].mesh"),
    "a number for true": (["placements", "head", "regather"], 1, PlanValue, "plan: placements.head.regather"),
    "ranks of one stage": (["ranks"], [[0, 1, 2, 3]], PlanValue, "plan: ranks"),
    "a mesh that cannot be read": (["stages", 0, "mesh"], "dp:2", MeshSyntax, "plan: stages[0].mesh (mesh 'dp:2')"),
    "a state that cannot be read": (
        ["placements", "block", "states", "x"],
        "dp",
        PlacementSyntax,
        "plan: placements.block.states.x ('dp')",
    ),
}


def test_bad_json_is_refused_at_its_path() -> None:
    for path, value, kind, place in BAD_JSON.values():
        data = decisions_to_json(SMALL)
        inside: Any = data
        for key in path[:-1]:
            inside = inside[key]
        if value is None:
            del inside[path[-1]]
        else:
            inside[path[-1]] = value
        with pytest.raises(kind) as caught:
            decisions_from_json(data)
        assert type(caught.value) is kind
        assert caught.value.place == place


def test_an_unknown_key_is_met_with_a_suggestion() -> None:
    with pytest.raises(PlanKeyUnknown, match="did you mean 'stages'"):
        decisions_from_json(decisions_to_json(SMALL) | {"stagess": []})


EXAMPLE = """\
decisions
  target torch-cuda
  style eager
  stage 0..4 on (dp=2@rail tp=4@nvlink) ranks 0..7: layer
  plan layer for LlamaDecoderLayer
    state %x  [dp, tp, -]
    op %q  dp=d0 tp=n
    store "q.weight" params [tp.dp, -] grads [tp.dp, -] optimizer [tp.dp, -]
  schedule 1f1b x 8
"""


def test_decisions_read_and_write() -> None:
    plan = parse_decisions(EXAMPLE)
    assert decisions_text(plan) == EXAMPLE
    assert plan.stages[0].ranks == tuple(range(8))
    assert plan.stages[0].mesh == Mesh.parse("dp=2@rail tp=4@nvlink")
    assert plan.schedule == Schedule("1f1b", 8)
    assert plan.plan["layer"].strategy("q") == Strategy.parse("dp=d0 tp=n")


WHAT_CANNOT_BE_READ_IS_PLACED: list[tuple[str, str, str, str]] = [
    ("decisions", "decision", "line 1, column 1", "'decisions'"),
    ("  style eager\n", "", "line 3, column 3", "'style'"),
    ("ranks 0..7", "ranks 0..", "line 4, column 50", "a number"),
    ("dp=2@rail", "dp@rail", "line 4, column 18", "NAME=SIZE"),
    ("%x  [dp", "%x  dp", "line 6, column 15", "a state"),
    ("tp=n", "tp=!", "line 7, column 12", "no such choice"),
    ('"q.weight"', '"\\q"', "line 8, column 11", "no JSON string"),
    ("x 8", "x 8 9", "line 9, column 21", "nothing more"),
    ("x 8\n", "x 8\n  plan", "line 10, column 3", "a line of the grammar"),
]


def test_what_cannot_be_read_is_placed() -> None:
    for old, new, place, words in WHAT_CANNOT_BE_READ_IS_PLACED:
        with pytest.raises(PlanSyntax, match=re.escape(words)) as caught:
            parse_decisions(EXAMPLE.replace(old, new, 1))
        assert caught.value.place == place


def test_comments_and_blank_lines_are_skipped() -> None:
    assert parse_decisions("# a\n\n" + EXAMPLE.replace("eager", "eager  # b\n")) == parse_decisions(EXAMPLE)


JSON = """{
  "format_version": 1,
  "target": "torch-cuda",
  "style": "fused",
  "stages": [
    {"first": 0, "last": 3, "mesh": "dp=2@rail", "plans": ["first", "layer"]},
    {"first": 3, "last": 4, "mesh": "dp=2", "plans": ["layer"]}
  ],
  "placements": {
    "first": {"body": "Layer", "regather": false, "first": 2, "states": {"x": "[dp, -]"}, "strategies": {}},
    "layer": {"body": "Layer", "regather": true, "first": 0, "states": {}, "strategies": {"q": "dp=d0"}}
  },
  "storage": {"layer": {"w": {"params": "[-]", "grads": "[dp]", "optimizer": "[dp]"}}},
  "recompute": {"first": ["q", "k"]},
  "offload": ["activations:4"],
  "schedule": {"name": "custom", "microbatches": 3, "actions": [["0F0"], ["1F0", "1B0"]]},
  "ranks": [[4, 5], [0, 1]]
}"""


def test_a_plan_as_json() -> None:
    """Every field of every part, written by hand: what is one way in the first plan is another in the second."""
    state, whole, cut = State.parse("[dp, -]"), Placement.parse("[-]"), Placement.parse("[dp]")
    plan = Decisions(
        plans=(
            BodyPlan("first", "Layer", states=(("x", state),), recompute=("q", "k"), regather=False, first=2),
            BodyPlan("layer", "Layer", (("q", Strategy.parse("dp=d0")),), storage=(Storage("w", whole, cut, cut),)),
        ),
        stages=(
            StagePlan(0, 3, Mesh.parse("dp=2@rail"), (4, 5), ("first", "layer")),
            StagePlan(3, 4, Mesh.parse("dp=2"), (0, 1), ("layer",)),
        ),
        schedule=Schedule("custom", 3, (("0F0",), ("1F0", "1B0"))),
        target="torch-cuda",
        style="fused",
        offload=Offload.of(("activations:4",)),
    )
    assert json.dumps(decisions_to_json(plan)) == json.dumps(json.loads(JSON))
    assert decisions_from_json(json.loads(JSON)) == plan


def test_refusals_of_decisions_are_at_keys_of_the_file() -> None:
    for place, key in {
        "stage 1": "stages[1]",
        "stage 1, x": "stages[1], x",
        "plan a b, %x, y": "placements.a b, %x, y",
        "plans": "placements",
        "schedule": "schedule",
        "offload kinds": "offload kinds",
    }.items():
        assert key_of(place) == key
    data = json.loads(JSON)
    data["ranks"][1] = [4, 6]
    with pytest.raises(RanksOverlap) as refusal:
        decisions_from_json(data, "here")
    assert refusal.value.place == "here: stages[1]"


def test_plans_that_are_not_there_are_met_with_what_is_near() -> None:
    """In each of the two keys that name plans."""
    for key, name, fix in (
        ("storage", "laier", "did you mean 'layer'?"),
        ("recompute", "laier", "did you mean 'layer'?"),
        ("recompute", "?", "remove it"),
    ):
        data = json.loads(JSON)
        data[key] = data[key] | {name: {} if key == "storage" else []}
        with pytest.raises(PlanKeyUnknown) as refusal:
            decisions_from_json(data)
        assert (refusal.value.place, refusal.value.fix) == (f"plan: {key}.{name}", fix)


def test_counts_of_a_plan_are_taken_on_up_to_their_limits() -> None:
    """Whole numbers from 0 or 1; beyond the limits of `ir.limits` nothing is read further."""
    for path, value, place in (
        (("schedule", "microbatches"), 0, "plan: schedule.microbatches"),
        (("schedule", "microbatches"), GLOBAL_BATCH.most + 1, "plan: schedule.microbatches"),
        (("stages", 0, "last"), 0, "plan: stages[0].last"),
        (("stages", 0, "first"), -1, "plan: stages[0].first"),
        (("placements", "first", "first"), -1, "plan: placements.first.first"),
        (("ranks", 0, 0), -1, "plan: ranks[0][0]"),
    ):
        data: Any = json.loads(JSON)
        inside = data
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = value
        with pytest.raises(PlanValue) as refusal:
            decisions_from_json(data)
        assert refusal.value.place == place
    most = json.loads(JSON)
    most["schedule"]["microbatches"] = GLOBAL_BATCH.most
    assert decisions_from_json(most).schedule.microbatches == 262144


# Programs ------------------------------------------------------------------------------------------------------------


def round_trips(program: Program) -> None:
    for one in (program, replace(program, workload=Workload(global_batch=8, seq=16, stack=STACKS["megatron"]))):
        text = program_text(one)
        assert parse_program(text) == one
        assert program_text(parse_program(text)) == text


@pytest.mark.parametrize("name", PLANS)
def test_programs_round_trip(name: str) -> None:
    for tied in (False, True):
        fold = model(tied=tied)
        round_trips(lower(fold, template(fold, PLANS[name])))


def alone(body: BodyProgram) -> Program:
    return Program((body,), (), (), ())


@given(graphs(), any_names)
def test_any_names_and_attributes_round_trip(graph: Graph, name: str) -> None:
    """Graphs that mean nothing: what the lowering makes of their names is beside the point, so they are taken over."""
    body = lower_body(small(), BodyPlan("p", "b"), Mesh(), Lowering())
    renamed = replace(
        body,
        name=name,
        forward=tuple(
            replace(
                body.forward[0],
                signature=replace(body.forward[0].signature, kind=op.kind, operands=types, attrs=op.attrs),
                operands=op.operands,
                results=op.results,
                op=op.results[0],
            )
            for op in graph.ops
            for types in [tuple(graph.types[value] for value in op.operands)]
        ),
        updates=tuple(Update(update.buffer, update.value, update.reduction) for update in graph.updates),
    )
    round_trips(alone(renamed))


def small() -> Graph:
    g = Builder()
    x = g.input((4, 8), requires_grad=True)
    mean = g.buffer("mean", (8,))
    g.output(g.op("relu", g.op("add", x, mean)))
    g.update("mean", mean, "mean")
    return g.graph()


def test_buffers_and_updates_round_trip() -> None:
    round_trips(alone(lower_body(small(), BodyPlan("p", "b"), Mesh.parse("dp=2"), Lowering())))


def test_a_program_reads_like_this() -> None:
    g = Builder()
    x = g.input((4, 8), requires_grad=True)
    g.output(g.op("linear", x, g.param("w", (8, 8)), name="y"))
    plan = BodyPlan("p", "b", (("y", Strategy.parse("dp=d0")),))
    body = lower_body(g.graph(), plan, Mesh.parse("dp=2"), Lowering())
    assert program_text(alone(body)).split("\n")[-10:] == [
        "    forward",
        "      %x@1 = slice(dp, dim 0) %x  for value",
        "      %y = linear(%x@1, %p.w)  {dp=d0}  as %y",
        "    backward",
        "      %dx@2, %dp.w@3 = linear'(%x@1, %p.w)  grads %dy!out0 of %y wanted 0, 1  {dp=d0}  as %y",
        "      %dx@4 = all_gather(dp, dim 0) %dx@2  for gradient",
        "    sync",
        "      %dp.w@5 = all_reduce(dp) %dp.w@3  for sync",
        "    publish",
        "",
    ]


def test_an_operand_without_a_type_is_refused() -> None:
    text = program_text(lower(FOLD, SMALL))
    broken = re.sub(r"    local %x .*\n", "", text, count=1)
    with pytest.raises(PlanSyntax, match="has no type"):
        parse_program(broken)
