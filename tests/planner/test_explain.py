"""`plan explain` and `plan diff`: a saved plan asked further, and two of them side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import PlanBroken, PlanOfAnotherCluster, PlanOfAnotherModel
from meshwright.planner.answer.diff import kept
from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.words import short
from meshwright.planner.question.pins import Pins
from tests.planner.solved import ARGV


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plans of one question: the best, and the best with tp=4."""
    folder = tmp_path_factory.mktemp("plans")
    assert main([*ARGV, "--json", "--out", str(folder / "a")]) == 0
    assert main([*ARGV, "--json", "--out", str(folder / "b"), "--fix", "tp=4"]) == 0
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    return load_plan(folder / "a")


def asked(capsys: pytest.CaptureFixture[str], *argv: str, exit_code: int = 0) -> Any:
    assert main([*argv, "--json"]) == exit_code
    out = capsys.readouterr().out
    found = json.loads(out)
    assert exit_code or out == f"{json.dumps(found, indent=2, ensure_ascii=False)}\n"
    return found


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


# plan explain --------------------------------------------------------------------------------------------------------


def test_why_not_is_the_best_plan_with_it(capsys: pytest.CaptureFixture[str], folder: Path, plan: Plan) -> None:
    """The same as what a search with that pin found."""
    other = load_plan(folder / "b")
    answer = asked(capsys, "explain", str(folder / "a"), "--why-not", "tp=4")["why_not"]
    assert answer["verdict"] == "slower"
    assert answer["rival"]["config"] == other.config.to_json()
    assert answer["rival"]["step_time_s"] == other.prediction.step_time_s
    between_s = other.prediction.step_time_s - plan.prediction.step_time_s
    assert sum(answer["rival"]["differences"].values()) == pytest.approx(between_s, abs=1e-12)
    out = shown(capsys, "explain", str(folder / "a"), "--why-not", "tp=4")
    assert "why not  tp=4?  slower: the best plan with it takes " in out
    assert "there: tensor parallel 4" in out


def test_why_not_what_it_has(capsys: pytest.CaptureFixture[str], folder: Path, plan: Plan) -> None:
    answer = asked(capsys, "explain", str(folder / "a"), "--why-not", f"pp={plan.config.pp}")["why_not"]
    assert answer["verdict"] == "as fast"


@pytest.mark.parametrize(("pins", "said"), [("tp=8", "MW4071"), ("ep=2", "no experts"), ("tp=3", "3")])
def test_what_the_model_cannot_have_says_why(
    capsys: pytest.CaptureFixture[str], folder: Path, pins: str, said: str
) -> None:
    answer = asked(capsys, "explain", str(folder / "a"), "--why-not", pins)["why_not"]
    assert (answer["verdict"], answer["rival"]) == ("cannot be", None)
    assert said in answer["why"]


def test_a_plan_explains_itself(capsys: pytest.CaptureFixture[str], folder: Path, plan: Plan) -> None:
    out = shown(capsys, "explain", str(folder / "a" / "plan.json"))
    assert f"plan        {short(plan.config)}\n" in out
    assert len(shown(capsys, "explain", str(folder / "a"), "-q").splitlines()) == 2
    whole = shown(capsys, "explain", str(folder / "a"), "-v")
    assert f"whole plan    {plan.config}" in whole.replace(f",\n{' ' * 14}", ",")
    found = asked(capsys, "explain", str(folder / "a"))
    assert found["changed"] == []
    assert found["why_not"] is None
    assert sum(found["shares"].values()) == pytest.approx(found["plan"]["step_time_s"])


def test_another_cluster_is_warned_of_and_priced(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["explain", str(folder / "a"), "--cluster", "1x4xH100", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert "warning: the cluster has changed" in err
    assert found["plan"]["step_time_s"] != found["planned_step_time_s"]
    refused = asked(capsys, "explain", str(folder / "a"), "--cluster", "1x8xA100", exit_code=2)
    assert refused["error"]["kind"] == PlanOfAnotherCluster.__name__


def test_another_model_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    other = str(Path(ARGV[0]).parent / "tiny_decoder.toml")
    refused = asked(capsys, "explain", str(folder / "a"), "--model", other, exit_code=2)
    assert refused["error"]["kind"] == PlanOfAnotherModel.__name__
    assert "there is no embed" in refused["error"]["cause"] or " was " in refused["error"]["cause"]


def test_a_question_without_pins_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert asked(capsys, "explain", str(folder / "a"), "--why-not", "", exit_code=2)["error"]["code"] == "MW8005"


# plan diff -----------------------------------------------------------------------------------------------------------


def test_two_plans_differ_in_what_was_decided(capsys: pytest.CaptureFixture[str], folder: Path, plan: Plan) -> None:
    other = load_plan(folder / "b")
    found = asked(capsys, "diff", str(folder / "a"), str(folder / "b"))
    assert found["config"]["tp"] == ["2", "4"]
    assert found["about"] == {}
    assert found["step_time_s"] == other.prediction.step_time_s - plan.prediction.step_time_s
    assert sum(found["shares"].values()) == pytest.approx(found["step_time_s"], abs=1e-12)
    out = shown(capsys, "diff", str(folder / "a"), str(folder / "b"))
    assert "b: tensor parallel 4" in out
    assert "what b takes longer or less for" in out


def test_pins_too_long_for_a_file_are_pins(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["diff", str(folder / "a"), f"tp={'9' * 5000}"]) == 2
    assert "MW8005" in capsys.readouterr().err


def test_a_plan_does_not_differ_from_itself(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = asked(capsys, "diff", str(folder / "a"), str(folder / "a"))
    assert (found["config"], found["decisions"], found["about"], found["step_time_s"]) == ({}, {}, {}, 0.0)
    assert "they decide the same" in shown(capsys, "diff", str(folder / "a"), str(folder / "a"))


def test_decisions_changed_by_hand_are_named(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    data = json.loads((folder / "a" / "plan.json").read_text())
    name = next(iter(data["placements"]))
    data["placements"][name]["regather"] = not data["placements"][name]["regather"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    found = asked(capsys, "diff", str(folder / "a"), str(tmp_path))
    assert list(found["decisions"]) == [f"placements.{name}.regather"]


def test_pins_change_a_plan(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Copies and micro-batches follow; the price is the evaluator's."""
    found = asked(capsys, "diff", str(folder / "a"), "tp=4")
    assert found["config"]["tp"] == ["2", "4"]
    assert found["b"]["config"]["dp"] == 1
    same = asked(capsys, "diff", str(folder / "b"), "tp=4")
    assert same["step_time_s"] == pytest.approx(0.0, abs=1e-3)


def test_what_follows_from_a_pin_is_filled_in_anew(plan: Plan) -> None:
    left = kept(plan.config, Pins(tp=2)).to_json()
    assert not {"dp", "microbatches", "sp"} & set(left)
    assert left["zero"] == plan.config.zero


def test_a_plan_that_has_not_what_it_says_was_asked_for_is_refused(plan: Plan) -> None:
    told = replace(plan, bounds=replace(plan.bounds, only={"recompute": ("full",)}))
    with pytest.raises(PlanBroken, match="recompute"):
        reload(told)
