"""What two parts of a `plan.json` say differently: of a plan by hand that agrees with itself, one figure at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.ir.decisions.decisions import BodyPlan, Schedule, StagePlan
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import Workload
from meshwright.planner.plan.schema import AGAIN, contradictions
from meshwright.planner.plan.types import Machines, Plan, Rival
from tests.planner.handmade import GIB, bounds, config, held, plan, point, prediction, rival, stage

SPLIT = (("linear", Strategy((("tp", Split(("n",))),))),)
STAGES = tuple(
    stage(number, held(3.0, 5.0, 1.0, parameters=2.0, activations=1.0), ranks=ranks)
    for number, ranks in enumerate((2, 2, 4))
)


def agreed(**words: Any) -> Plan:
    """Eight ranks on two hosts, three stages of two calls, eight sequences of 64 tokens in two seconds: 32 tokens a
    second on each."""
    decisions = replace(
        plan().decisions,
        plans=(BodyPlan("block", "block", SPLIT), BodyPlan("head", "head")),
        schedule=Schedule("1f1b", 8),
    )
    usual: dict[str, Any] = {
        "decisions": decisions,
        "config": config("tp=2,pp=3", 6),
        "machines": Machines.of("c", read_cluster("2x4xA100,price=3600")),
        "workload": Workload(global_batch=8, seq=64),
        "prediction": prediction(tokens_per_s_per_gpu=32.0, stages=STAGES),
        "baselines": (rival("data parallel", None, "not possible"),),
        "alternatives": (slower(),),
    }
    return plan(**usual | words)


def slower(**words: Any) -> Rival:
    """Three seconds instead of two, in 3 GiB."""
    return replace(rival("fsdp", "zero=3", "+1 s tensor", slower=1.5), differences=(("tensor", 1.0),), **words)


def with_(part: str, **words: Any) -> Plan:
    """The same, and other values in one part of it."""
    one = agreed()
    return replace(one, **{part: replace(getattr(one, part), **words)})


def staged(at: int, **words: Any) -> Plan:
    """The same, and other values in one predicted stage."""
    one = agreed().prediction
    stages = tuple(replace(own, **words) if own.stage == at else own for own in one.stages)
    return with_("prediction", stages=stages)


def placed(at: int, **words: Any) -> Plan:
    """The same, and other values in one stage of the decisions."""
    stages = list(agreed().decisions.stages)
    stages[at] = replace(stages[at], **words)
    return with_("decisions", stages=tuple(stages))


HALF_PRICED = """
[[pool]]
name = "a"
hosts = 1
gpu = "A100"
gpus_per_host = 4
price_per_gpu_hour = 2
[[pool]]
name = "b"
hosts = 1
gpu = "A100"
gpus_per_host = 4
[[link]]
between = ["a", "b"]
kind = "ethernet"
gbps = 100
latency_us = 5
"""
FIX, FOLLOW = "correct one of them", "let stages follow one another, each with a call at least"
P, O = ("predicted",), ("bounds", "objective")  # noqa: E741
PLACES = (*P, "stages", 1)
LIST = "lists of actions say the order of work where the schedule is custom, and nowhere else"
SP = "it is True, and tp is 1"
CASES: dict[str, tuple[Plan, list[tuple[tuple[str | int, ...], str, str]]]] = {
    "nothing": (agreed(), []),
    "hosts": (with_("machines", hosts=3), [(("cluster", "hosts"), "it is 3, and cluster.toml has 2", FIX)]),
    "ranks": (with_("machines", ranks=7), [(("cluster", "ranks"), "it is 7, and cluster.toml has 8", FIX)]),
    "devices": (
        with_("machines", devices=("B200",)),
        [(("cluster", "devices"), "it is ('B200',), and cluster.toml has ('A100-80G',)", FIX)],
    ),
    "a rank of no device": (
        placed(2, ranks=(4, 5, 6, 8)),
        [(("ranks", 2), "rank 8 of a cluster of 8", "use 0 to 7")],
    ),
    "a gap between stages": (
        placed(1, first=3),
        [
            (("stages", 1, "first"), "it runs calls 3..4, and those before it end at 2", FOLLOW),
            (("stages", 1, "blocks"), "2 blocks for calls 3..4", "count every call once"),
        ],
    ),
    "a first stage that begins late": (
        placed(0, first=1),
        [
            (("stages", 0, "first"), "it runs calls 1..2, and those before it end at 0", FOLLOW),
            (("stages", 0, "blocks"), "2 blocks for calls 1..2", "count every call once"),
        ],
    ),
    "a stage of nothing": (
        replace(placed(2, last=4), blocks=((("Block", 2),), (("Block", 2),), ())),
        [(("stages", 2, "first"), "it runs calls 4..4, and those before it end at 4", FOLLOW)],
    ),
    "what runs there": (
        agreed(blocks=((("Block", 2),), (("Block", 1), ("Head", 2)), (("Block", 1), ("Head", 1)))),
        [(("stages", 1, "blocks"), "3 blocks for calls 2..4", "count every call once")],
    ),
    "no strategies": (
        with_("decisions", plans=(BodyPlan("block", "block"), BodyPlan("head", "head", SPLIT))),
        [],
    ),
    "a plan of no stage": (
        with_("decisions", plans=(*agreed().decisions.plans, BodyPlan("tail", "tail"))),
        [(("placements", "tail"), "no stage has this plan", "remove it, or name it in a stage")],
    ),
    "actions": (
        with_("decisions", schedule=Schedule("1f1b", 8, (("F0",),))),
        [(("schedule", "actions"), LIST, FIX)],
    ),
    "no actions": (with_("decisions", schedule=Schedule("custom", 8)), [(("schedule", "actions"), LIST, FIX)]),
    "actions that are made": (with_("decisions", schedule=Schedule("custom", 8, (("F0",),))), []),
    "micro-batches": (
        with_("decisions", schedule=Schedule("1f1b", 4)),
        [(("config", "microbatches"), "it makes 8, and the decisions have 4", FIX)],
    ),
    "stages of the names, where some have meshes of their own": (
        agreed(config=replace(config("tp=2,pp=3", 6), vp=2)),
        [],
    ),
    "more ranks than there are": (
        agreed(config=replace(config("tp=2,pp=3", 6), cp=2)),
        [(("config",), "it has more ranks than the 8 of the cluster", FIX)],
    ),
    "sequences": (
        agreed(config=replace(config("tp=2,pp=3", 6), mbs=2)),
        [(("config",), "1 copies with 8 micro-batches of 2 sequences are not 8 sequences", FIX)],
    ),
    "switches without a degree": (
        agreed(config=replace(config("pp=3", 3), sp=True, zigzag=True)),
        [(("config", "sp"), SP, FIX), (("config", "zigzag"), "it is True, and cp is 1", FIX)],
    ),
    "predicted stages": (
        with_("prediction", stages=STAGES[:2]),
        [((*P, "stages"), "2 of them, and the decisions have 3", AGAIN)],
    ),
    "too slow for its interval": (
        with_("prediction", step_time_high_s=1.75),
        [((*P, "step_time_s"), "2.0 is not within 1.5 to 1.75", AGAIN)],
    ),
    "too fast for its interval": (
        with_("prediction", step_time_low_s=2.25),
        [((*P, "step_time_s"), "2.0 is not within 2.25 to 4.0", AGAIN)],
    ),
    "ends of its interval": (with_("prediction", step_time_low_s=2.0, step_time_high_s=2.0), []),
    "shares": (
        with_("prediction", shares=(("matmul", 1.5), ("bubble", 0.75))),
        [((*P, "shares"), "it is 2.25, and the step time is 2.0", AGAIN)],
    ),
    "shares but for rounding": (with_("prediction", shares=(("matmul", 1.5), ("bubble", 0.500001))), []),
    "speed": (
        with_("prediction", tokens_per_s_per_gpu=31.0),
        [((*P, "tokens_per_s_per_gpu"), "it is 31.0, and what the step time gives is 32.0", AGAIN)],
    ),
    "provenance": (
        with_("prediction", provenance=(("compute", "fitted"), ("memory", "measured"))),
        [(("provenance", "weakest"), "it is datasheet, and predicted.provenance has fitted, measured", AGAIN)],
    ),
    "no provenance": (
        with_("prediction", provenance=()),
        [(("provenance", "weakest"), "it is datasheet, and predicted.provenance has nothing", AGAIN)],
    ),
    "the number of a stage": (
        staged(1, stage=2),
        [((*PLACES, "stage"), "it is 2, and its place is 1", AGAIN)],
    ),
    "ranks of a stage": (
        staged(1, ranks=4),
        [((*PLACES, "ranks"), "it is 4, and the number of its ranks is 2", AGAIN)],
    ),
    "memory of a stage": (
        staged(1, memory=held(3.0, 5.0, 1.0, parameters=2.0, activations=2.0)),
        [((*PLACES, "memory"), f"it is {4.0 * GIB!r}, and peak_memory_bytes is {3.0 * GIB!r}", AGAIN)],
    ),
    "weights of a backward pass": (
        staged(1, weight_s=0.03),
        [((*PLACES, "weight_s"), "0.03 of a backward pass of 0.02", AGAIN)],
    ),
    "nothing but weights": (staged(1, weight_s=0.02), []),
    "nothing but weights, and rounding": (staged(1, weight_s=0.02 * (1 + 5e-7)), []),
    "a lower bound": (
        with_("bounds", lower=2.5, gap=-0.25),
        [((*O, "lower"), "2.5 is above the upper bound, 2.0", AGAIN)],
    ),
    "bounds that meet": (with_("bounds", lower=2.0, gap=0.0), []),
    "an upper bound": (
        with_("bounds", upper=2.5, gap=0.4),
        [((*O, "upper"), "it is 2.5, and what is predicted is 2.0", AGAIN)],
    ),
    "memory as the objective": (with_("bounds", objective="memory", lower=0.75 * GIB, upper=3.0 * GIB, gap=0.75), []),
    # eight devices at one unit a second each
    "cost as the objective": (with_("bounds", objective="cost", lower=12.0, upper=16.0), []),
    "cost without prices": (
        agreed(
            machines=Machines.of("c", read_cluster("2x4xA100")), bounds=bounds(objective="cost", lower=12.0, upper=16.0)
        ),
        [((*O, "name"), "plans by cost, and the cluster has no prices", AGAIN)],
    ),
    "cost with some prices": (
        agreed(machines=Machines.of("c", read(HALF_PRICED)), bounds=bounds(objective="cost", lower=12.0, upper=16.0)),
        [((*O, "name"), "plans by cost, and the cluster has no prices", AGAIN)],
    ),
    "a gap": (with_("bounds", gap=0.3), [(("bounds", "gap"), "it is 0.3, and that of the bounds is 0.25", AGAIN)]),
    "a smaller gap": (
        with_("bounds", gap=0.2),
        [(("bounds", "gap"), "it is 0.2, and that of the bounds is 0.25", AGAIN)],
    ),
}
NONE = "it costs something, and is no configuration"
for _name, _words in {
    "time": {"step_time_s": 1.0},
    "memory": {"peak_memory_bytes": 1.0},
    "a factor": {"slower": 1.0},
    "differences": {"differences": (("tensor", 1.0),)},
    "a lack": {"short_stage": 0},
}.items():
    _one = replace(rival("fsdp", None, "not possible"), **_words)  # type: ignore[arg-type]
    CASES[f"{_name} of what cannot be"] = (
        agreed(alternatives=(slower(), _one)),
        [(("alternatives", 1, "config"), NONE, AGAIN)],
    )
for _name, _after in {
    "time": point("zero=3", 1.0, 2.0),
    "as long": point("zero=3", 1.5, 2.0),
    "memory": point("zero=3", 2.0, 4.0),
}.items():
    CASES[f"a frontier that turns back in {_name}"] = (
        agreed(frontier=(point("zero=1", 1.5, 4.0), _after)),
        [(("frontier", 1), "the one before takes less time, or no more memory", AGAIN)],
    )
CASES["another batch on the frontier"] = (
    agreed(frontier=(replace(point("zero=1", 1.5, 4.0), config=config("tp=2", 2, 4)),)),
    [(("frontier", 0, "config"), "1 copies with 4 micro-batches of 1 sequences are not 8 sequences", FIX)],
)
R = ("baselines", 0)
CASES |= {
    "another's sequences": (
        agreed(baselines=(replace(slower(), config=config("tp=2", 2, 4)),)),
        [((*R, "config"), "1 copies with 4 micro-batches of 1 sequences are not 8 sequences", FIX)],
    ),
    "another's virtual stages": (
        agreed(baselines=(replace(slower(), config=replace(config("", 8), vp=2)),)),
        [((*R, "config", "vp"), "it is 2, and pp is 1", FIX)],
    ),
    "another that lacks more than it holds": (
        agreed(baselines=(slower(short_stage=0, short_bytes=3.0 * GIB),)),
        [((*R, "peak_memory_bytes"), f"{3.0 * GIB} bytes, {3.0 * GIB} too many", AGAIN)],
    ),
    "another that lacks something": (agreed(baselines=(slower(short_stage=0, short_bytes=2.9 * GIB),)), []),
    "another's factor": (
        agreed(baselines=(slower(slower=1.25),)),
        [((*R, "slower"), "it is 1.25, and what the step times give is 1.5", AGAIN)],
    ),
    "another's differences": (
        agreed(baselines=(replace(slower(), differences=(("tensor", 1.0), ("bubble", -0.5))),)),
        [((*R, "differences"), "they do not add up to the 1.0 s that it takes longer", AGAIN)],
    ),
    "another's larger differences": (
        agreed(baselines=(replace(slower(), differences=(("tensor", 1.5),)),)),
        [((*R, "differences"), "they do not add up to the 1.0 s that it takes longer", AGAIN)],
    ),
    # a millionth of three seconds is rounding, of two it is not
    "another's differences but for rounding": (
        agreed(baselines=(replace(slower(), differences=(("tensor", 1.0000025),)),)),
        [],
    ),
}


def test_what_two_parts_say_differently() -> None:
    wrong = {}
    for what, (one, faults) in CASES.items():
        found = [(fault.path, fault.cause, fault.fix) for fault in contradictions(one)]
        if found != faults:
            wrong[what] = found
    assert not wrong


def test_stages_are_those_of_the_names() -> None:
    """Where all have the mesh that these mean."""
    one = agreed(config=replace(config("tp=2,pp=3", 6), vp=2))
    mesh = one.decisions.stages[0].mesh
    stages = tuple(replace(own, mesh=mesh, ranks=(2 * n, 2 * n + 1)) for n, own in enumerate(one.decisions.stages))
    alike = replace(one, decisions=replace(one.decisions, stages=stages))
    assert (("config", "vp"), "it makes 6, and the decisions have 3", FIX) in [
        (fault.path, fault.cause, fault.fix) for fault in contradictions(alike)
    ]


def test_a_plan_on_one_rank_splits_nothing() -> None:
    """Nor need it."""
    one = agreed()
    alone = (StagePlan(0, 6, Mesh(), (0,), ("block", "head")),)
    decisions = replace(one.decisions, plans=(BodyPlan("block", "block"), BodyPlan("head", "head")), stages=alone)
    single = replace(
        one,
        decisions=decisions,
        config=config("", 1),
        blocks=((("Block", 5), ("Head", 1)),),
        prediction=replace(one.prediction, tokens_per_s_per_gpu=256.0, stages=(replace(STAGES[0], ranks=1),)),
    )
    assert [(fault.path, fault.cause) for fault in contradictions(single)] == []
