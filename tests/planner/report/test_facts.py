"""Memory, traffic, placements and prices of a report, held against the prediction and the plan that they are of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.traffic import loads
from meshwright.planner.report.facts.memory import fullest, memory_of
from meshwright.planner.report.facts.placements import BodyUse, placements_of
from meshwright.planner.report.facts.priced import priced_of
from meshwright.planner.report.facts.summary import beside, summary_of
from meshwright.planner.report.facts.traffic import REASONS, TIERS, flows_of, traffic_of
from tests.planner.handmade import GIB, ROOMY, held, plan, point, prediction, rival, stage
from tests.planner.refining import Case

CLUSTER = read_cluster("2x4xA100")


def test_memory_is_the_predictions_and_neighbours_that_hold_the_same_are_one() -> None:
    full = held(6.0, 10.0, 1.0, parameters=1.0, activations=2.0, recomputed=0.5, logits=1.5, context=1.0)
    stages = tuple(stage(number, full) for number in range(3))
    found = memory_of(prediction(stages=(*stages, stage(3, held(2.0, 10.0, 1.0)))), (0, 1, 2, 3))
    assert [(one.name, one.peak_bytes / GIB) for one in found] == [("stages 0-2", 6.0), ("stage 3", 2.0)]
    assert dict(found[0].parts) == {
        "parameters": 1 * GIB,
        "gradients": 0,
        "optimizer": 0,
        "saved activations": 2.5 * GIB,
        "working memory": 1.5 * GIB,
        "runtime": 1 * GIB,
    }
    assert fullest(found).name == "stages 0-2"
    assert fullest(memory_of(prediction(stages=ROOMY), (0, 1, 2))).name == "stage 2"


def test_stages_that_share_ranks_are_one_group() -> None:
    one, other = held(6.0, 10.0, 1.0, parameters=6.0), held(5.0, 10.0, 1.0, parameters=5.0)
    stages = tuple(stage(number, one if number % 2 else other) for number in range(4))
    found = memory_of(prediction(stages=stages), (0, 1, 0, 1))
    assert [(own.name, own.peak_bytes / GIB) for own in found] == [("group 0", 5.0), ("group 1", 6.0)]


PINS = [
    "pp=1,tp=2,dp=4,mbs=1,zero=1",
    "pp=4,tp=2,mbs=1,schedule=1f1b",
    "pp=2,dp=2,tp=2,vp=2,mbs=1,schedule=interleaved",
    "pp=1,dp=4,cp=2,mbs=1,zero=3",
]


@pytest.mark.parametrize("pins", PINS)
def test_flows_add_up_to_the_predicted_traffic(small: str, pins: str) -> None:
    case = Case(small, CLUSTER, seq=512, batch=32)
    program = case.lowered(*case.plan(pins))
    step = case.evaluator.step(program)
    received = tuple(loads(program, CLUSTER, step.ledgers, step.workload))
    found = traffic_of(received, program, CLUSTER)
    by_tier = Counter[str]()
    for flow in found.flows:
        by_tier[flow.tier] += flow.nbytes
        assert flow.reason in REASONS
        assert flow.ranks > 1
    assert dict(by_tier) == pytest.approx({tier: size for tier, size in step.prediction().traffic if size})
    assert [flow.tier for flow in found.flows] == sorted((f.tier for f in found.flows), key=list(TIERS).index)
    (pool,) = found.pools
    seats = {seat.rank: seat.stages for seat in (*pool.first, *pool.last)}
    assert seats == {
        rank: tuple(index for index, one in enumerate(program.stages) if rank in one.ranks) for rank in range(8)
    }


def test_flows_of_one_kind_are_added_and_nothing_is_no_flow(small: str) -> None:
    case = Case(small, CLUSTER, seq=512, batch=32)
    program = case.lowered(*case.plan("pp=4,tp=2,mbs=1,schedule=1f1b"))
    step = case.evaluator.step(program)
    received = list(loads(program, CLUSTER, step.ledgers, step.workload))
    assert len(flows_of(received)) < len(received)
    assert flows_of([one._replace(nbytes=0.0) for one in received]) == ()


def uses(small: str, pins: str) -> dict[str, BodyUse]:
    case = Case(small, CLUSTER, seq=512, batch=32)
    fold, decisions = case.plan(pins)
    found = placements_of(decisions, fold)
    assert sum(one.calls for one in found) == len(list(fold.calls()))
    for one in found:
        for axis in {use.axis for use in one.uses}:
            assert sum(len(use.operators) for use in one.uses if use.axis == axis) == one.operators
    return {one.plans[0]: one for one in found}


def test_axes_are_told_by_the_loops_that_they_cut(small: str) -> None:
    """Tensor parallelism as Megatron has it: heads of attention, the width of the perceptron, the vocabulary."""
    found = uses(small, "pp=1,tp=2,dp=4,mbs=1,zero=1,sp=off")
    block = max(found.values(), key=lambda one: one.calls)
    assert block.calls == 8
    assert {use.named for use in block.uses if use.axis == "tp"} == {"tp"}
    assert {use.named for use in block.uses if use.axis == "dp"} == {"dp"}
    cut = {use.what: use.operators for use in block.uses if use.axis == "tp"}
    assert {"cuts heads", "cuts ffn"} <= set(cut)
    assert any("attention" in name for name in cut["cuts heads"])
    assert {use.what for use in block.uses if use.axis == "dp" and any("linear" in op for op in use.operators)} == {
        "cuts b"
    }
    head = list(found.values())[-1]
    assert any(use.what == "cuts vocab" for use in head.uses if use.axis == "tp")


def test_storage_is_told_of_every_parameter_once(small: str) -> None:
    found = uses(small, "pp=1,dp=8,mbs=1,zero=1")
    block = max(found.values(), key=lambda one: one.calls)
    paths = [path for one in block.stored for path in one.paths]
    assert len(set(paths)) == len(paths) > 0
    assert all("dp" not in one.parameters and "dp" in one.optimizer for one in block.stored)


def test_prices_are_those_of_the_file_and_the_plan_as_it_is_priced_now() -> None:
    own = plan()
    known, other = point("zero=3", 3.0, 3.0), point("zero=1", 5.0, 1.0, fits=False)
    one = replace(own, baselines=(replace(own.baselines[1], config=known.config),), frontier=(known, other))
    found = priced_of(one, prediction(step_time_s=2.5, step_time_high_s=4.0))
    assert [(p.kind, p.name, p.step_s, p.fits) for p in found] == [
        ("plan", "the plan", 2.5, True),
        ("baseline", "fsdp", 3.0, True),
        ("alternative", "alternative 1", 4.0, True),
        ("frontier", "priced 1", 5.0, False),
    ]


@pytest.mark.parametrize(
    ("rivals", "said"),
    [
        ((), "None of the plans that a person would write can be had here."),
        ((rival("a", None, "no"),), "None of the plans that a person would write can be had here."),
        (
            (replace(rival("a", "zero=3", "x"), short_stage=0, short_bytes=1.0),),
            "None of the plans that a person would write fits in memory.",
        ),
        ((rival("a", "zero=3", "as fast"),), "It is as fast as the best plan that a person would write (a, 2 s)."),
        (
            (rival("a", "zero=3", "plan emit refuses it", slower=0.5),),
            "It takes 2.00 times as long as the best plan that a person would write (a, 1 s).",
        ),
        (
            (rival("a", "zero=3", "x", slower=4.0), rival("b", "zero=1", "x", slower=2.0)),
            "It is 2.00 times as fast as the best plan that a person would write (b, 4 s), and saves 50.00 % of that.",
        ),
    ],
)
def test_a_plan_against_what_a_person_would_write(rivals: tuple[object, ...], said: str) -> None:
    assert beside(rivals) == said  # type: ignore[arg-type]


def test_a_summary_has_the_prediction_of_now() -> None:
    found = summary_of(plan(), prediction(step_time_s=2.5), ["the cluster is another"])
    assert (found.step_s, found.changed) == (2.5, ("the cluster is another",))
    assert found.beside.startswith("It is 1.50 times as fast")
    assert found.gap == "25.00 %: nothing that was searched is below 1.5 s"
