"""`plan MODEL`: the answer of a search as a plan, printed, written and read back.

One search on a small model (`tests.planner.solved`) serves most of these; what a search finds is tested elsewhere.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import (
    MeshwrightError,
    PlanBroken,
    PlanNotJson,
    PlanOfAnotherModel,
    PlanOfAnotherRelease,
    PlanUnreadable,
    PlanUnwritable,
)
from meshwright.ir.program.lower import lower
from meshwright.planner.answer.report import plan_of, rival
from meshwright.planner.answer.solve import Solved, Stop, solve
from meshwright.planner.cli.main import VERBS, main, with_verb
from meshwright.planner.cli.progress import Progress
from meshwright.planner.plan.file import FILE, load_plan, plan_text, read_plan
from meshwright.planner.plan.types import Model, Plan, changes, same_model
from meshwright.planner.plan.words import in_words, short
from meshwright.planner.search.phases import REFINING
from meshwright.planner.search.search import Found, Search
from tests.planner.solved import ARGV, TINY, question

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def solved() -> Solved:
    ask, setting, wished = question()
    return solve(ask, setting, wished)


@pytest.fixture(scope="module")
def plan(solved: Solved) -> Plan:
    return plan_of(solved)


@pytest.fixture(scope="module")
def text(plan: Plan) -> str:
    return plan_text(plan)


# The answer ----------------------------------------------------------------------------------------------------------


def test_the_plan_is_no_worse_than_any_baseline(plan: Plan) -> None:
    assert len(plan.baselines) >= 3
    for one in plan.baselines:
        assert not one.fits or one.step_time_s >= plan.prediction.step_time_s
    assert plan.bounds.lower <= plan.prediction.step_time_s == plan.bounds.upper
    assert plan.bounds.gap == pytest.approx(1 - plan.bounds.lower / plan.bounds.upper)


def test_differences_add_up_to_the_time_between_two_plans(plan: Plan) -> None:
    for one in (*plan.baselines, *plan.alternatives):
        if one.config:
            between_s = one.step_time_s - plan.prediction.step_time_s
            assert sum(more_s for _, more_s in one.differences) == pytest.approx(between_s, rel=1e-6, abs=1e-12)
            assert one.slower == pytest.approx(one.step_time_s / plan.prediction.step_time_s)


def test_alternatives_are_of_other_kinds(plan: Plan) -> None:
    kinds = [(one.config.tp, one.config.pp, one.config.cp, one.config.zero) for one in plan.alternatives if one.config]
    assert len(set(kinds)) == len(kinds)
    assert plan.config not in [one.config for one in plan.alternatives]


@pytest.mark.parametrize("top", [0, 1, 2])
def test_as_many_alternatives_as_are_asked_for(solved: Solved, top: int) -> None:
    """Beside what is faster and does not fit."""
    assert len([one for one in plan_of(solved, top).alternatives if not one.name]) == top


def test_a_precision_that_no_code_is_written_for_is_noted(solved: Solved) -> None:
    """It is planned all the same."""

    def noted(precision: str) -> list[str]:
        setting = replace(solved.setting, workload=replace(solved.setting.workload, precision=precision))
        notes = plan_of(replace(solved, setting=setting)).notes
        return [note for note in notes if note.startswith("plan emit refuses this plan (MW5017)")]

    assert noted("bf16") == noted("fp8_tensorwise") == []
    (note,) = noted("mxfp8")
    assert note.startswith(
        "plan emit refuses this plan (MW5017), dtype mxfp8: it is not emitted yet; plan with --dtype "
    )


def test_a_rival_is_called_what_it_is(solved: Solved) -> None:
    """Faster, where a schedule of its own was asked for and made the plan slower; another plan than the answer, where
    that was refined from the same configuration."""
    assert solved.search.best is not None
    best = solved.search.best
    other = next(one for one in solved.search.found.values() if one.fits and one.step_s > 1.1 * best.step_s)
    assert rival("", best, best).lost == "it is the plan"
    slower, faster = rival("", other, best).lost, rival("", best, other).lost
    assert slower.startswith("+")
    assert faster.startswith("faster: -")
    nearly = replace(best.prediction, step_time_s=best.step_s * (1 + 1e-6))
    assert rival("", best, Found(best.config, nearly)).lost == "hardly faster"
    assert rival("", Found(best.config, nearly), best).lost == "hardly slower"
    assert rival("", Found(other.config, best.prediction), best).lost == "as fast"


def test_what_binds_is_a_step_that_is_refused() -> None:
    """Four key-value heads, four layers, eight sequences: each is in the way of one step from where it just divides."""
    for pins, kind, said in (
        ("tp=4,dp=2,mbs=1", "heads", "tp=8: 4 heads"),
        ("pp=4,tp=1,dp=2,mbs=1", "degrees", "pp=8: 8 stages for 4"),
        ("tp=1,pp=1,dp=8", "batch", "mbs=2: 8 sequences"),
    ):
        ask, setting, wished = question(TINY, "--cluster", "1x8xA100", *ARGV[3:], "--fix", pins)
        found = plan_of(solve(ask, setting, wished)).binding
        assert any(one.kind == kind and one.what.startswith(said) for one in found), found
        assert any(one.kind == "constraint" and one.what.startswith("tp was to be ") for one in found)


def test_a_baseline_that_cannot_be_says_so() -> None:
    """Everything is pinned to tensor parallelism: no plan of copies alone is left."""
    found = {one.name: one for one in plan_of(solve(*question(*ARGV, "--fix", "tp=2"))).baselines}
    assert len(found) == 5
    assert found["data parallel"].config is None
    assert found["data parallel"].lost.startswith("not possible")
    assert not found["data parallel"].fits


# The file ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_read_back_as_it_was(plan: Plan, text: str) -> None:
    assert read_plan(text) == plan
    assert plan_text(read_plan(text)) == text


def test_decisions_of_the_file_lower_and_price_to_the_same(solved: Solved, plan: Plan, text: str) -> None:
    read, setting = read_plan(text), solved.setting
    lowering = setting.target.lowering().for_stack(read.workload.stack)
    program = lower(setting.fold(read.config), read.decisions, lowering, read.workload)
    assert program == setting.lowered(setting.fold(plan.config), solved.decisions, solved.global_batch)
    assert setting.price(program) == plan.prediction


def test_the_keys_are_those_that_scripts_rely_on(text: str) -> None:
    data = json.loads(text)
    for key in (
        *("format_version", "provenance", "model", "cluster", "workload", "stages", "placements", "storage"),
        *("recompute", "offload", "schedule", "ranks", "predicted", "bounds", "baselines", "alternatives"),
        "binding_constraints",
    ):
        assert key in data
    assert set(data["model"]) >= {"ref", "digest", "parameters"}
    assert set(data["bounds"]) >= {"lower_s", "upper_s", "gap", "space"}
    assert {"mesh", "blocks"} <= set(data["stages"][0])
    assert sum(sum(stage["blocks"].values()) for stage in data["stages"]) == 6  # embed, four blocks, head


def broken(text: str, change: Callable[[Any], object]) -> str:
    data = json.loads(text)
    change(data)
    return json.dumps(data)


BREAK: dict[str, tuple[Callable[[Any], object], type[MeshwrightError], str]] = {
    "version": (lambda d: d.update(format_version=99), PlanOfAnotherRelease, "99"),
    "missing": (lambda d: d.pop("schedule"), PlanBroken, "schedule"),
    "unknown": (lambda d: d.update(baseline=[]), PlanBroken, "baseline"),
    "type": (lambda d: d["predicted"].update(step_time_s="fast"), PlanBroken, "plan.json: predicted.step_time_s"),
    "mesh": (lambda d: d["stages"][0].update(mesh="dp=x"), PlanBroken, "plan.json: stages[0].mesh"),
    "ranks": (lambda d: d["ranks"][0].pop(), PlanBroken, "rank"),
    "config": (lambda d: d["config"].update(tp="two"), PlanBroken, "plan.json: config.tp"),
    "not finite": (lambda d: d["bounds"].update(gap=float("nan")), PlanBroken, "plan.json: bounds.gap"),
    "list": (lambda d: d.update(baselines={}), PlanBroken, "plan.json: baselines"),
    "provenance": (lambda d: d["provenance"].update(weakest="rumour"), PlanBroken, "rumour"),
}


@pytest.mark.parametrize("how", BREAK)
def test_a_hand_broken_plan_is_refused_at_its_place(text: str, how: str) -> None:
    change, kind, said = BREAK[how]
    with pytest.raises(kind) as refused:
        read_plan(broken(text, change))
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_truncated_plan_is_refused_wherever_it_ends(text: str) -> None:
    for end in (0, 1, *range(100, len(text) - 3, 997), len(text) - 3):
        with pytest.raises(PlanNotJson, match="the file ends in the middle") as refused:
            read_plan(text[:end], "plan.json")
        assert re.match(r"plan.json:\d+:\d+", refused.value.place)
    with pytest.raises(PlanNotJson, match="correct the line"):
        read_plan(text.replace('"model": {', '"model": ,{'))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(PlanUnreadable):
            load_plan(path)
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(PlanUnreadable):
        load_plan(tmp_path)


def test_another_model_is_refused_by_its_first_difference(plan: Plan) -> None:
    same_model(plan, plan.model)
    path, type_ = plan.model.tensors[3]
    other = replace(
        plan.model, digest="0", tensors=(*plan.model.tensors[:3], (path, "bf16[1]"), *plan.model.tensors[4:])
    )
    for model, said in (
        (other, f"{path} was {type_}, and is bf16[1] here"),
        (replace(plan.model, digest="0", tensors=plan.model.tensors[1:]), f"no {plan.model.tensors[0][0]} here"),
        (
            replace(plan.model, digest="0", tensors=(*plan.model.tensors, ("extra", "bf16[2]"))),
            "extra, bf16[2], is new",
        ),
        (replace(plan.model, digest="0", parameters=1), "numbers of blocks"),
        (replace(plan.model, digest="0"), "all parameters are the same"),
    ):
        with pytest.raises(PlanOfAnotherModel) as refused:
            same_model(plan, model)
        assert said in refused.value.cause


def test_another_cluster_or_profile_is_something_to_warn_of(plan: Plan) -> None:
    assert changes(plan, plan.machines) == ()
    (said,) = changes(plan, replace(plan.machines, toml=plan.machines.toml.replace("hosts = 1", "hosts = 2")))
    assert "hosts = 1 was planned for, hosts = 2 is there" in said
    stale = replace(plan, provenance=replace(plan.provenance, profile_digest="0"))
    assert changes(stale, plan.machines) == ("the profile of prices has changed",)
    assert plan.machines.cluster().ranks == plan.machines.ranks


def test_a_model_is_known_by_its_tensors(solved: Solved, plan: Plan) -> None:
    again = Model.of("x", solved.setting.folds.at(2), solved.setting.folds.source.config)
    assert replace(again, ref=plan.model.ref) == plan.model
    assert len(plan.model.tensors) < 20  # of the first block only


# The command ---------------------------------------------------------------------------------------------------------


def planned(capsys: pytest.CaptureFixture[str], *argv: str, exit_code: int = 0) -> str:
    assert main([*ARGV, *argv]) == exit_code
    return capsys.readouterr().out


def test_a_model_needs_no_verb() -> None:
    assert with_verb(["m.py:f", "--cluster", "c"], VERBS) == ["plan", "m.py:f", "--cluster", "c"]
    assert with_verb(["examples/configs/gpt2"], VERBS)[0] == "plan"
    for words in (["estimate", "m.py:f"], ["--help"], [], ["estimat", "m.py:f"], ["plan", "m.py:f"]):
        assert with_verb(words, VERBS) == words


def test_what_is_printed_is_what_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, plan: Plan) -> None:
    out = planned(capsys, "--json", "--out", str(tmp_path / "new"))
    assert json.loads(out) == json.loads((tmp_path / "new" / FILE).read_text())
    assert load_plan(tmp_path / "new") == plan


def test_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = planned(capsys, "-v")
    assert f"plan        {short(plan.config)}\n" in out
    assert f"whole plan    {plan.config}\n" in out
    assert "less a margin of 10.00 %" in out
    assert "beside what a person would write" in out
    assert "left out: micro-batches of " in out
    assert "uncalibrated" in out
    assert "optimal" not in out
    for line in in_words(plan.config):
        assert line in out
    assert planned(capsys, "-q").splitlines() == [out.splitlines()[0], out.splitlines()[1].partition(";")[0]]


def test_a_gap_above_the_wish_is_4(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    planned(capsys, "--max-gap", "0.5", "--fix", "tp=1,pp=1")
    monkeypatch.setattr("meshwright.planner.answer.solve.Solved.gap", 0.03)
    planned(capsys, "--max-gap", "0.02", "--fix", "tp=1,pp=1", exit_code=4)


def test_what_no_plan_can_have_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [TINY, "--cluster", "1x2xV100", "--global-batch", "4", "--seq", "64"]
    assert main([*argv, "--target", "any", "--dtype", "bf16"]) == 6
    assert "it has no matrix peak for 'bf16'" in capsys.readouterr().err


def test_pins_narrow_the_space(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(planned(capsys, "--json", "--fix", "tp=2", "--forbid", "zero=0|1,pp", "--micro-batch", "1"))
    assert (found["config"]["tp"], found["config"]["pp"], found["config"]["mbs"]) == (2, 1, 1)
    assert found["config"]["zero"] in (2, 3)
    assert found["bounds"]["space"]["only"] == {"tp": [2], "mbs": [1], "pp": [1]}
    assert found["bounds"]["space"]["never"] == {"zero": [0, 1]}


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--fix", "tp=2", "--forbid", "tp=2"), "MW7040"),
        (("--objective", "speed"), "MW7042"),
        (("--objective", "cost"), "MW7043"),
        (("--fix", "tp=2,pp=2,dp=4"), "MW7044"),
        (("--dump-after", "nothing"), "MW8001"),
    ],
)
def test_what_cannot_be_asked_is_refused(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], code: str) -> None:
    assert json.loads(planned(capsys, *argv, "--json", exit_code=2))["error"]["code"] == code


def test_a_place_that_cannot_be_written_to_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file that is in the way, before the search; a directory where the file should be, after it."""
    (tmp_path / "file").touch()
    (tmp_path / "out" / FILE).mkdir(parents=True)
    for place in ("file", "file/below", "out"):
        refused = json.loads(planned(capsys, "--out", str(tmp_path / place), "--json", exit_code=8))
        assert refused["error"]["kind"] == PlanUnwritable.__name__


def test_a_workload_must_be_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--seq", "--global-batch"):
        words = list(ARGV)
        del words[words.index(option) : words.index(option) + 2]
        assert main(words) == 2
        assert f"plan: {option} is missing" in capsys.readouterr().err


def test_an_interrupted_search_keeps_its_answer(solved: Solved) -> None:
    """Stopped after every number of pieces of work: whatever is claimed then is true."""
    least = solved.search.upper_s
    for pieces in (3, 10, 30, 10_000):
        stop, left = Stop(), [pieces]

        def told(_: str, search: object = None, stop: Stop = stop, left: list[int] = left) -> None:
            left[0] -= search is not None
            stop.interrupted = left[0] <= 0

        cut = solve(solved.ask, solved.setting, solved.asked, stop, told)
        assert cut.best is not None
        assert cut.search.lower_s <= least <= cut.search.upper_s
        assert cut.complete == (left[0] > 0)


def test_ctrl_c_keeps_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the middle of the search: what was found is printed and written, and the exit code says what happened."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[int] = []

    def told(_: Progress, phase: str, search: Search | None = None) -> None:
        if search is None or phase == REFINING:
            return
        seen.append(search.counts.priced)
        if len(seen) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "told", told)
    found = json.loads(planned(capsys, "--json", "--out", str(tmp_path), exit_code=130))
    assert len(seen) == 4
    assert found["bounds"]["space"]["complete"] is False
    assert found["bounds"]["gap"] == 1.0
    assert load_plan(tmp_path).prediction.fits
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(Progress, "told", lambda *_: None)
    seen.clear()
    out = planned(capsys, "--time-limit", "0")
    assert "gap         unknown: the search was cut short" in out
    assert "more time: the search was cut short, and may find a better plan" in out


def test_a_time_limit_ends_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The limit holds inside of the user's own code, which is traced under a longer limit of its own."""
    file = tmp_path / "model.py"
    file.write_text(
        "import time\nfrom torch import nn, randn\n\nclass Slow(nn.Linear):\n    def forward(self, x):\n"
        "        end = time.monotonic() + 20\n        while time.monotonic() < end:\n            pass\n"
        "        return super().forward(x).sum()\n\ndef build():\n    return Slow(4, 4)\n\n"
        "def example_inputs(batch, seq):\n    return randn(batch, 4)\n"
    )
    monkeypatch.setattr("meshwright.planner.answer.solve.LOADING_S", 1.0)
    began = time.monotonic()
    assert main([f"{file}:build", "--cluster", "cpu:2", "--global-batch", "8", "--seq", "8", "--time-limit", "1"]) == 2
    assert time.monotonic() - began < 10.0
    said = capsys.readouterr().err
    assert "error MW7041 at plan, the model: --time-limit ended while it was loaded and traced" in said


@pytest.mark.parametrize("step", ["fold", "space", "search", "decide", "lower", "evaluate"])
def test_every_artefact_can_be_had(capsys: pytest.CaptureFixture[str], step: str) -> None:
    first = {"space": "space of 4 ranks", "search": "search bases=", "decide": "decisions", "evaluate": "{"}
    out = planned(capsys, "--fix", "tp=1,pp=1,cp=1", "--dump-after", step)
    assert out.startswith(first.get(step, ""))
    assert len(out) > 100
