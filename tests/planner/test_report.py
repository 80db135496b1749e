"""From an answered search to a plan: what is said beside the answer, of searches made by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.profile import published
from meshwright.ir.errors import (
    BatchIndivisible,
    HeadsIndivisible,
    MeshwrightError,
    PinValue,
    ScheduleNotExpressible,
)
from meshwright.ir.target.workload import Workload
from meshwright.planner.answer import report
from meshwright.planner.plan.types import Binding, Plan
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import Candidate, Custom
from meshwright.planner.search.emittable import Passed
from meshwright.planner.search.search import CUT_SHORT, Counts, Found
from tests.planner.handmade import config, held, plan, prediction, stage

DECISIONS = plan().decisions
MODULE = ModulePin("fix", "layers.*.mlp", "sharding", ("column",))

TARGET = SimpleNamespace(usual_schedule="1f1b")


def found(pins: str, step_s: float, lacks: float = -1.0, ranks: int = 8) -> Found:
    """One stage that lacks so many GiB of four; negative where it fits."""
    stages = (stage(0, held(4.0 + lacks, 5.0, 1.0)),)
    return Found(config(pins, ranks), prediction(step_time_s=step_s, stages=stages))


BEST = found("tp=2,zero=0", 2.0)


def solved(**words: Any) -> Any:
    """A search by time that found BEST alone, for one host of one."""
    search: dict[str, Any] = {"best": BEST, "found": {BEST.config: BEST}, "baselines": {}, "unpriced": {}}
    search |= {"emission": None, "counts": Counts(bases=2, priced=1)}
    search |= {"space": SimpleNamespace(truncated=("fewer ranks",), settled=lambda config: config)}
    search |= {name: words.pop(name) for name in list(words) if name in search and name != "best"}
    usual: dict[str, Any] = {
        "search": SimpleNamespace(**search),
        "best": BEST,
        "score": lambda one: one.step_s,
        "objective": "time",
        "refined": None,
        "asked": Asked(),
        "global_batch": 8,
        "setting": SimpleNamespace(
            decisions=lambda config, batch: DECISIONS, unwritten=lambda config: (), target=TARGET
        ),
        "hosts": 0,
        "notes": (),
        "complete": True,
        "proved": 1.5,
        "operators_s": 0.5,
        "more_axes_s": 0.4,
        "gap": 0.25,
    }
    return SimpleNamespace(**usual | words)


# What is beyond the space --------------------------------------------------------------------------------------------


def refined(**words: Any) -> Candidate:
    usual: dict[str, Any] = {"decisions": DECISIONS, "prediction": prediction(step_time_s=1.5), "counts": (3, 1)}
    return Candidate(**usual | {"idle": (), "config": config("pp=2,stage_blocks=3+1", 8)} | words)


LAYERS = "layers of the stages, shared out by what they take: 3+1"
FASTER = "the plan was refined beyond named degrees, 25.00 % faster than the best of them"
APART = replace(DECISIONS, stages=(*DECISIONS.stages[:2], replace(DECISIONS.stages[2], ranks=(4, 5, 7, 6))))
FAR = replace(DECISIONS, stages=(*DECISIONS.stages[:2], replace(DECISIONS.stages[2], ranks=(4, 5, 6, 8))))
MADE = "the pipeline's schedule was made for this plan: "
LEAST = "; no order of its work takes less than 1.25 s"


REFINED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, [FASTER, LAYERS]),
    ({"config": config("pp=2", 8)}, [FASTER]),
    (
        {"config": None},
        [FASTER, "its stages have meshes of their own; the configuration shown is the one that it was made of"],
    ),
    (
        {"decisions": APART},
        [FASTER, LAYERS, "ranks are placed where links and devices want them: see `ranks` of plan.json"],
    ),
    (
        {"decisions": FAR},
        [FASTER, LAYERS, "ranks are placed where links and devices want them: see `ranks` of plan.json"],
    ),
    (
        {"changed": ("block", "head")},
        [FASTER, LAYERS, "operators were planned anew in block, head: see `placements` of plan.json"],
    ),
    (
        {"custom": Custom("1f1b", 2.0, 1.25)},
        [FASTER, LAYERS, f"{MADE}25.00 % faster than with 1f1b{LEAST}"],
    ),
    ({"custom": Custom("1f1b", 1.5, 1.25)}, [FASTER, LAYERS, f"{MADE}as fast as with 1f1b{LEAST}"]),
    ({"custom": Custom("1f1b", 0.0, 1.25)}, [FASTER, LAYERS, f"{MADE}with 1f1b it does not fit{LEAST}"]),
    ({"idle": (6, 7)}, [FASTER, LAYERS, "2 ranks stay idle: 6, 7"]),
]


def test_what_was_refined_is_told() -> None:
    """The answer takes 1.5 s, the best configuration 2 s."""
    told = [(words, list(report._refinements(solved(refined=refined(**words))))) for words, _ in REFINED]
    assert told == REFINED


def test_what_a_refined_plan_is_held_against() -> None:
    """Nothing, where no configuration fits; what has the pins, where modules have some."""
    alone = report._refinements(solved(refined=refined(), search=SimpleNamespace(best=None)))
    assert next(alone) == "the plan was refined beyond named degrees"
    pinned = report._refinements(solved(refined=refined(), asked=Asked(modules=(MODULE,))))
    assert next(pinned) == f"{FASTER} that have the pins of modules"
    layers = Asked(Constraints({"stage_blocks": ("1+3",)}))
    assert list(report._refinements(solved(refined=refined(), asked=layers))) == [FASTER], "who asked for them knows"
    assert list(report._refinements(solved())) == []


def test_unequal_shares_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "shares_of", lambda decisions: (3, 1))
    monkeypatch.setattr(report, "weights_of", lambda decisions: (6, 1, 1))
    assert list(report._refinements(solved(refined=refined()))) == [
        FASTER,
        LAYERS,
        "copies on different devices take unequal shares of every micro-batch: 3:1",
        "of what ZeRO cuts they hold as much as they have room for: 75.0%:12.5%:12.5%",
    ]


# What no code is written for -----------------------------------------------------------------------------------------


ODD = PinValue(place="axis tp", cause="it is odd", fix="take another")
EVEN = HeadsIndivisible(place="axis cp", cause="it is even", fix="take another")


def passed(pins: str, step_s: float, refusal: MeshwrightError = ODD) -> Passed:
    one = found(pins, step_s)
    return Passed(one.config, one.prediction, refusal)


def test_what_the_answer_was_chosen_in_place_of() -> None:
    """Of what is better than the answer, by codes, the best first; what is as good is not said."""
    emission = SimpleNamespace(
        notes=lambda: ["a note", "said twice"],
        passed=[
            passed("tp=2,zero=1", 2.0),
            passed("tp=4,zero=0", 1.5, EVEN),
            passed("tp=8,zero=0", 1.75),
            passed("tp=1,zero=0", 1.0),
            passed("tp=4,zero=1", 1.9),
        ],
    )
    setting = SimpleNamespace(unwritten=lambda config: ("said twice", f"tp={config.tp}"))
    dp, tp = ("dp=8,zero=0,mbs=1,microbatches=1", "dp=2,zero=0,mbs=1,microbatches=4")
    over, rest = "passed over, for no code is written for it:", "recompute=none,schedule=1f1b"
    assert list(report._unwritten(solved(emission=emission, setting=setting), BEST)) == [
        "said twice",
        "tp=2",
        "a note",
        f"{over} tp=1,pp=1,{dp},{rest}, 1 s a step ({PinValue.code}: axis tp, it is odd), and of 2 more",
        f"{over} tp=4,pp=1,{tp},{rest}, 1.5 s a step ({HeadsIndivisible.code}: axis cp, it is even)",
    ]
    assert list(report._unwritten(solved(setting=setting), BEST)) == ["said twice", "tp=2"]


def test_what_is_held_against_the_plan_says_whether_it_is_emitted() -> None:
    """Not of the plan itself, of what does not fit, or of what cannot be decided here."""
    other = found("tp=4,zero=0", 3.0)
    asked: list[Config] = []

    def refusal(one: Config, decisions: object) -> MeshwrightError | None:
        asked.append(one)
        return None if one.tp == 8 else ODD

    def decided(one: Config, batch: int) -> object:
        if one.zero == 3 or batch != 8:
            raise EVEN
        return DECISIONS

    case = solved(emission=SimpleNamespace(refusal=refusal), setting=SimpleNamespace(decisions=decided, target=TARGET))
    assert report._code(case, other) == PinValue.code
    assert report._code(case, BEST) == report._code(case, found("tp=4", 1.0, 0.5)) == ""
    assert report._code(case, found("zero=3", 3.0)) == report._code(case, found("tp=8", 3.0)) == ""
    assert asked == [other.config, found("tp=8", 3.0).config]
    assert report._code(solved(), other) == ""


def test_baselines_in_the_order_of_their_names() -> None:
    fsdp, hsdp = found("zero=3", 3.0), found("zero=3,shard=4", 1.0, 0.5)
    case = solved(baselines={"hsdp": hsdp, "fsdp": fsdp}, unpriced={"data parallel": CUT_SHORT})
    first, second, third = report._baselines(case, BEST)
    assert (first.name, first.config, first.lost) == ("data parallel", None, CUT_SHORT)
    assert (first.step_time_s, first.peak_memory_bytes, first.slower, first.differences) == (0.0, 0.0, 0.0, ())
    assert (first.short_stage, first.short_bytes, first.fits) == (-1, 0.0, False)
    assert (second.name, second.config, second.slower, second.fits) == ("fsdp", fsdp.config, 1.5, True)
    assert (third.name, third.slower, third.lost) == ("hsdp", 0.5, "does not fit: short 512 MiB on stage 0")
    by_memory = solved(baselines={"fsdp": fsdp}, objective="memory")
    assert [one.lost for one in report._baselines(by_memory, BEST)] == ["+0 B"]


@pytest.mark.parametrize(
    ("step_s", "lacks", "near"), [(1.0, 0.5, True), (1.995, 0.5, True), (1.997, 0.5, False), (1.0, 0.0, False)]
)
def test_what_is_nearly_the_answer(step_s: float, lacks: float, near: bool) -> None:
    """Faster than 2 s by more than two thousandths, and too full."""
    one = found("tp=8", step_s, lacks)
    assert (report._nearly(solved(found={one.config: one}), BEST) is one) == near


# What binds ----------------------------------------------------------------------------------------------------------


def test_what_binds_in_its_order() -> None:
    """First what is faster and too full; then steps that are refused for a reason that has a name; then constraints."""
    full = found("tp=8,zero=0", 1.0, 0.5)
    best = found("tp=2,ep=2,zero=0", 2.0)

    def decided(one: Config, batch: int) -> None:
        if one.tp == 4:
            raise HeadsIndivisible(place="", cause="2 heads", fix="")
        if one.cp == 2:
            raise PinValue(place="", cause="for no such reason", fix="")
        if one.pp == 2:
            raise ScheduleNotExpressible(place="", cause="no such schedule", fix="")
        if one.ep == 4:
            raise BatchIndivisible(place="", cause="8 sequences", fix="")

    case = solved(
        found={full.config: full},
        setting=SimpleNamespace(decisions=decided, target=TARGET),
        asked=Asked(Constraints({"tp": (2, 4)}, {"zero": (3,), "cp": (2, 4)}), modules=(MODULE,)),
    )
    tight = "tp=8,pp=1,dp=1,zero=0,mbs=1,microbatches=8,recompute=none,schedule=1f1b"
    assert list(report._binding(case, best)) == [
        Binding(kind="memory", what=f"stage 0: {tight} would take 1 s, and is short 512 MiB"),
        Binding(kind="heads", what="tp=4: 2 heads"),
        Binding(kind="target", what="pp=2: no such schedule"),
        Binding(kind="batch", what="ep=4: 8 sequences"),
        Binding(kind="constraint", what="tp was to be 2 or 4"),
        Binding(kind="constraint", what="zero was not to be 3"),
        Binding(kind="constraint", what="cp was not to be 2 or 4"),
        Binding(kind="constraint", what="--fix layers.*.mlp:sharding=column"),
    ]
    assert list(report._binding(solved(setting=SimpleNamespace(decisions=lambda *_: None, target=TARGET)), best)) == []


# The plan ------------------------------------------------------------------------------------------------------------


def whole(monkeypatch: pytest.MonkeyPatch, workload: Workload, best: Found = BEST, **words: Any) -> Plan:
    """The plan of a search by hand: of model and machines only the names."""
    monkeypatch.setattr(report, "blocks_of", lambda decisions, fold: (fold,))
    monkeypatch.setattr(report.Model, "of", staticmethod(lambda *of: of))
    monkeypatch.setattr(report, "suspicions", lambda cluster: [f"{cluster.ranks} ranks"])
    setting = SimpleNamespace(
        target=TARGET,
        workload=workload,
        fold=lambda config: f"fold of {config.dp}",
        folds=SimpleNamespace(
            source=SimpleNamespace(config="{}"), first=lambda batch: SimpleNamespace(notes=(f"batch {batch}",))
        ),
        cautions=lambda: ("be careful",),
        decisions=lambda config, batch: DECISIONS,
        unwritten=lambda config: ("no code",),
    )
    ask = SimpleNamespace(
        model="m",
        cluster=read_cluster("1x8xA100"),
        cluster_reference="c",
        notes=("of the question",),
        seed=7,
        profile=published(),
    )
    case = solved(setting=setting, ask=ask, best=best, decisions=DECISIONS, notes=("of the search",), hosts=3, **words)
    return report.plan_of(case)


def test_a_plan_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes come in this order; cautions are for micro-batches; a recipe that is the stack's own is not said."""
    workload = Workload(global_batch=8, seq=64, recipe="fsdp")
    made = whole(monkeypatch, workload, objective="cost", refined=refined(idle=(7,)))
    assert made.notes == (
        "2 of 3 hosts stay idle: the plan is for the other 1",
        FASTER,
        LAYERS,
        "1 ranks stay idle: 7",
        "of the search",
        "of the question",
        "8 ranks",
        "batch 4",
        "be careful",
        "no code",
    )
    assert (made.decisions, made.config, made.prediction) == (DECISIONS, BEST.config, BEST.prediction)
    assert made.model == ("m", "fold of 4", "{}")
    assert (made.machines.ref, made.machines.ranks, made.blocks) == ("c", 8, ("fold of 4",))
    assert made.workload == replace(workload, recipe="")
    assert (made.provenance.weakest, made.provenance.seed) == ("datasheet", 7)
    bounds = made.bounds
    assert (bounds.objective, bounds.lower, bounds.upper, bounds.gap, bounds.complete) == ("cost", 1.5, 2.0, 0.25, True)
    assert bounds.truncated == (
        "fewer ranks",
        "numbers of hosts that do not divide the cluster's",
        "some devices of a host",
        "some hosts of several pools",
    )
    assert {name: number for name, number in bounds.counts.items() if number} == {"bases": 2, "priced": 1}


def test_another_recipe_is_said_and_one_micro_batch_needs_no_care(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(Constraints({"tp": (2,)}, {"zero": (3,)}), modules=(MODULE,))
    made = whole(
        monkeypatch,
        Workload(global_batch=8, seq=64, recipe="fp32"),
        found("zero=0", 2.0),
        asked=asked,
    )
    assert made.workload.recipe == "fp32"
    assert "be careful" not in made.notes
    assert (made.bounds.only, made.bounds.never, made.bounds.modules) == ({"tp": (2,)}, {"zero": (3,)}, (MODULE,))
    assert made.bounds.truncated == ("fewer ranks",)
    assert made.baselines == ()
    assert [(one.config, one.lost) for one in made.alternatives] == [(BEST.config, "as fast")]


@pytest.mark.parametrize(
    ("pins", "step_s", "lacks", "told"),
    [
        ("dp=8", 2.1, -1.0, True),
        ("dp=8", 2.001, -1.0, False),  # not worth a word
        ("dp=8", 4.0, -1.0, False),  # beyond the interval
        ("dp=8", 2.1, 1.0, False),  # does not fit
        ("dp=8", 1.9, -1.0, False),  # faster
    ],
)
def test_a_win_inside_the_interval_is_called_that(pins: str, step_s: float, lacks: float, told: bool) -> None:
    best = replace(BEST, prediction=replace(BEST.prediction, step_time_low_s=1.7, step_time_high_s=2.4))
    usual = {"megatron": found(pins, step_s, lacks), "fsdp": found("dp=8,zero=3", 9.0)}
    notes = list(report._unsure(solved(baselines=usual), best))
    assert notes == (
        ["megatron takes 5% longer by this count, which is inside the interval of the step time: measure both"]
        if told
        else []
    )
