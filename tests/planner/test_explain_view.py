"""Why a plan is not another one: every verdict in full, and an explanation as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import ModulePinUnmet, PinValue
from meshwright.planner.answer import explain
from meshwright.planner.answer.explain import Verdict, pins_text, to_json, why_not
from meshwright.planner.cli.views.plans.explain import show_explained
from meshwright.planner.plan.file import rival_to_json
from meshwright.planner.plan.reload import Reloaded
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Pins
from meshwright.planner.search.emittable import Passed
from meshwright.planner.search.search import Found
from tests.planner.handmade import GIB, config, held, plan, prediction, rival, stage

MODULE = ModulePin("fix", "layers.*.mlp", "sharding", ("column",))
BUBBLE = ("matmul", 1.5), ("bubble", 1.0), ("host", 0.0)


def reloaded(one: Plan | None = None, changed: tuple[str, ...] = (), step_s: float = 2.0) -> Reloaded:
    """A plan taken up again, of two seconds a step."""
    nothing: Any = SimpleNamespace()
    made = one or plan()
    return Reloaded(
        plan=made,
        ask=nothing,
        asked=Asked(Constraints({"tp": (2,)})),
        setting=nothing,
        prediction=replace(made.prediction, step_time_s=step_s),
        changed=changed,
    )


def lacking(pins: str, *lacks: float, step_s: float = 1.0) -> Found:
    """Stages that lack so many GiB of four."""
    stages = tuple(stage(number, held(4.0 + lack, 5.0, 1.0)) for number, lack in enumerate(lacks))
    return Found(config(pins, 8), prediction(step_time_s=step_s, stages=stages))


def answered(
    monkeypatch: pytest.MonkeyPatch, pins: Pins, modules: tuple[ModulePin, ...] = (), **solved: Any
) -> Verdict:
    """The verdict where the search ends so."""
    usual: dict[str, Any] = {"best": None, "complete": True, "found": (), "passed": None, "refusal": None} | solved
    asked: list[Asked] = []

    def decided(*_: object) -> None:
        if usual["refusal"]:
            raise usual["refusal"]

    def solve(_: object, __: object, asked_: Asked, *___: object) -> Any:
        asked.append(asked_)
        found = {one.config: one for one in usual["found"]}
        emission = None if usual["passed"] is None else SimpleNamespace(passed=usual["passed"])
        search = SimpleNamespace(found=found, emission=emission, space=SimpleNamespace(ranks=8, global_batch=8))
        setting = SimpleNamespace(settled=lambda config, _: config, decisions=decided)
        return SimpleNamespace(best=usual["best"], complete=usual["complete"], search=search, setting=setting)

    monkeypatch.setattr(explain, "solve", solve)
    verdict = why_not(reloaded(), pins, modules=modules)
    assert asked[0].modules == modules
    assert asked[0].constraints.only == {"tp": (pins.given["tp"],)}
    return verdict


@pytest.mark.parametrize(
    ("step_s", "shares", "word", "why"),
    [
        (2.5, BUBBLE, "slower", "the best plan with it takes 500 ms (25.00 %) longer: +500 ms bubble"),
        (
            1.0,
            (("matmul", 1.0),),
            "faster",
            "the best plan with it takes 1 s (50.00 %) less: faster: -500 ms bubble, -500 ms matmul",
        ),
        (2.0, BUBBLE, "as fast", "it takes as long"),
        (2.0 + 1.9e-9, BUBBLE, "as fast", "it takes as long"),
        (2.0 + 2.1e-9, (), "slower", "the best plan with it takes 0.0021 µs (0.00 %) longer: hardly slower"),
    ],
)
def test_the_best_plan_with_it(
    monkeypatch: pytest.MonkeyPatch, step_s: float, shares: Any, word: str, why: str
) -> None:
    """The saved plan takes two seconds, of which half a second is bubble; less than a billionth of that is nothing."""
    best = Found(config("tp=4", 8), prediction(step_time_s=step_s, shares=shares or plan().prediction.shares))
    found = answered(monkeypatch, Pins(tp=4), best=best)
    assert (found.word, found.why) == (word, why)
    assert found.rival is not None
    assert (found.rival.name, found.rival.config, found.rival.slower) == ("", best.config, step_s / 2.0)


def passed(*pins: str) -> Sequence[Passed]:
    refusal = PinValue(place="here", cause="it is odd", fix="take another")
    return [Passed(config(one, 8), prediction(), refusal) for one in pins]


REFUSED = ModulePinUnmet(place="there", cause="it cannot be", fix="take it back")


@pytest.mark.parametrize(
    ("solved", "word", "why"),
    [
        ({"complete": False}, "unknown", "the search was interrupted before anything that fits was found"),
        ({"complete": False, "passed": passed("tp=4")}, "unknown", "the search was interrupted before anything that "),
        (
            {"passed": passed("tp=4,zero=0", "tp=4,zero=1"), "found": [lacking("tp=4", 1.0)]},
            "cannot be",
            f"no code is written for any plan that fits: {PinValue.code} at here, it is odd (",
        ),
        ({"passed": []}, "cannot be", "no plan can have these together, beside what was asked for"),
        ({}, "cannot be", "no plan can have these together, beside what was asked for"),
        ({"refusal": REFUSED}, "cannot be", f"it cannot be ({ModulePinUnmet.code}); take it back"),
    ],
)
def test_there_is_none(monkeypatch: pytest.MonkeyPatch, solved: dict[str, Any], word: str, why: str) -> None:
    found = answered(monkeypatch, Pins(tp=4), **solved)
    assert (found.word, found.rival) == (word, None)
    assert found.why.startswith(why)


@pytest.mark.parametrize("refusal", [None, REFUSED])
def test_the_nearest_does_not_fit(monkeypatch: pytest.MonkeyPatch, refusal: Any) -> None:
    """Of what lacks least the fastest; what names alone would be refused for is then not said."""
    every = (
        lacking("tp=4,zero=0", 0.5, 2.0),
        lacking("tp=4,zero=1", -1.0, 1.0, 0.5, step_s=3.0),
        lacking("tp=4,zero=2", -1.0, 0.5, 1.0, step_s=2.5),
        lacking("tp=4,zero=3", -1.0, 0.5, 1.0, step_s=4.0),
    )
    found = answered(monkeypatch, Pins(tp=4), (MODULE,), found=every, refusal=refusal)
    assert found.word == "does not fit"
    assert found.why == "of all plans with it, the one that lacks least is short 1.00 GiB on stage 2"
    assert found.rival is not None
    assert (found.rival.name, found.rival.config) == ("tp=4,layers.*.mlp:sharding=column", every[2].config)
    assert (found.rival.short_stage, found.rival.short_bytes, found.rival.slower) == (2, GIB, 1.25)


def test_pins_as_they_are_asked() -> None:
    assert pins_text(Pins(tp=4, sp=False)) == "tp=4,sp=off"
    assert pins_text(Pins(), (MODULE,)) == "layers.*.mlp:sharding=column"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that everything fits on."""
    monkeypatch.setenv("COLUMNS", "200")


# In print ------------------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *what: Any) -> list[str]:
    show_explained(*what)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


PLAN = "plan     tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b"


TENSOR = (
    "tensor parallel 8: heads, widths and vocabulary are split, activations between blocks split along the sequence"
)


def test_a_verdict_in_print(capsys: pytest.CaptureFixture[str]) -> None:
    """What the other does, and the plan does not; not what both do."""
    other = replace(rival("", "tp=8,zero=0", "lost", slower=1.5), differences=(("host", 1.5), ("bubble", -0.5)))
    lines = printed(capsys, reloaded(step_s=2.25), "tp=8", Verdict(word="slower", why="so it is", rival=other))
    assert lines == [
        f"{PLAN}  2.25 s",
        "why not  tp=8?  slower: so it is",
        "best     tp=8,dp=1,mbs=1  3 s, peak memory 3.00 GiB",
        "",
        f"there: {TENSOR}",
        "there: no copies to share",
        "there: 8 micro-batches of 1 sequence",
        "there: computed again in the backward pass: nothing",
        "",
        "what it takes longer or less for",
        "             time",
        "host       +1.5 s  waiting for the host",
        "bubble    -500 ms  ranks that wait for others",
        "together     +1 s",
    ]


@pytest.mark.parametrize("other", [None, rival("", None, "not possible")])
def test_a_verdict_without_another_plan(capsys: pytest.CaptureFixture[str], other: Any) -> None:
    lines = printed(capsys, reloaded(), "tp=8", Verdict(word="cannot be", why="so it is", rival=other))
    assert lines == [f"{PLAN}  2 s", "why not  tp=8?  cannot be: so it is"]


def test_a_plan_is_shown_and_priced_again_where_something_changed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, reloaded(), "", None)
    assert lines[0] == "plan        tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b"
    assert lines[-2] == "note: another"
    again = printed(capsys, reloaded(changed=("the cluster",), step_s=3.0), "", None)
    assert again == [*lines, "priced again: a step takes 3 s; it was planned to take 2 s"]


def test_an_explanation_as_json() -> None:
    other = rival("", "tp=8,zero=0", "lost", slower=1.5)
    again = reloaded(changed=("the cluster",), step_s=3.0)
    told = to_json(again, Pins(tp=8), Verdict(word="slower", why="so it is", rival=other), (MODULE,))
    assert told == {
        "plan": {"file": "plan.json", "config": again.plan.config.to_json(), "step_time_s": 3.0},
        "changed": ["the cluster"],
        "planned_step_time_s": 2.0,
        "shares": {"matmul": 1.5, "bubble": 0.5, "host": 0.0},
        "binding_constraints": [
            {"kind": "heads", "what": "tp=8: 4 heads"},
            {"kind": "constraint", "what": "tp was to be 2"},
        ],
        "why_not": {
            "pins": {"tp": 8},
            "modules": ["layers.*.mlp:sharding=column"],
            "verdict": "slower",
            "why": "so it is",
            "rival": rival_to_json(other),
        },
    }
    assert to_json(again, Pins(), None)["why_not"] is None
    assert to_json(again, Pins(), Verdict(word="unknown", why="", rival=None))["why_not"]["rival"] is None
