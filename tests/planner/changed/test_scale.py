"""How a model scales: every size is the question at that size, and a size without a plan says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.frontends import remembered
from meshwright.planner.answer import kept as answers
from meshwright.planner.answer.changed.scale import Scaling, read_sized, scaled
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.solve import Stop
from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.ask import read_asked
from meshwright.planner.question.pricing import Folds
from tests.planner.solved import TINY, parsed

PAGE = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()


def argv(*more: str, cluster: str = "1x2xA100", batch: int = 4) -> tuple[str, ...]:
    return TINY, "--cluster", cluster, "--global-batch", str(batch), "--seq", "64", *more


def direct(*words: str) -> Plan:
    args = parsed(*words)
    ask, asked = read_asked(args)
    plan = Question.of(args, *ask.loaded(), asked).answer(Stop())
    assert isinstance(plan, Plan)
    return plan


def asked_at(*sizes: int, scaling: str = "strong", words: tuple[str, ...] = ()) -> Scaling:
    args = parsed(*argv(*words))
    return Scaling(scaling=scaling, sizes=tuple(scaled(args, read_sized(args, sizes, scaling), Stop())))


def test_a_size_is_the_question_at_that_size() -> None:
    """With strong scaling of as large a batch, with weak scaling of a larger one; the model is loaded and traced once,
    which tells the plans of both sizes nothing."""
    strong, weak = asked_at(1, 4), asked_at(1, 4, scaling="weak")
    assert [one.plan for one in strong.sizes] == [direct(*argv(cluster=one)) for one in ("1x1xA100", "2x2xA100")]
    assert [one.plan for one in weak.sizes] == [
        direct(*argv(cluster="1x1xA100", batch=2)),
        direct(*argv(cluster="2x2xA100", batch=8)),
    ]


def test_the_model_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []
    capture = Folds._capture

    def counted(folds: Folds, batch: int) -> Any:
        traced.append(batch)
        return capture(folds, batch)

    monkeypatch.setattr(Folds, "_capture", counted)
    asked_at(1, 2, words=("--forbid", "pp"))
    assert traced == [2]


def test_efficiency_is_against_the_smallest_size_that_fits() -> None:
    """Of four devices a batch of three has no plan that runs all of them alike; one device has not memory enough."""
    found = asked_at(1, 2, 4, words=("--fix", "dp=2"))
    first, second, third = found.sizes
    assert (first.plan, third.plan is not None) == (None, True)
    assert "MW7044" in first.why or "MW4071" in first.why
    assert (found.efficiency(first), found.efficiency(second)) == (None, 1.0)
    assert second.plan is not None
    assert third.plan is not None
    assert second.tokens_per_s == 4 * 64 / second.plan.prediction.step_time_s
    half = second.plan.prediction.step_time_s / third.plan.prediction.step_time_s / 2
    assert found.efficiency(third) == pytest.approx(half)
    assert repr(found).splitlines()[0] == f"1: {first.why}"


def test_it_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([*argv("--scale", "1..2", "--scaling", "weak", "--fix", "dp=2", "--out", str(out))]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "weak scaling: as many sequences for each GPU" in " ".join(" ".join(said[:2]).split())
    assert [line.split()[0] for line in said[3:6]] == ["GPUs", "1", "2"]
    assert any(line.startswith("1 GPU: ") for line in said)
    assert said[-1] == f"written: {out / '2' / 'plan.json'}"
    assert load_plan(out / "2") == direct(*argv("--fix", "dp=2"))
    assert not (out / "1" / "plan.json").exists()
    assert main([*argv("--scale", "2", "-q", "--fix", "dp=2")]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[0] == "GPUs"


def test_it_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv("--scale", "1,2", "--fix", "dp=2", "--json")]) == 0
    told = json.loads(capsys.readouterr().out)
    args = parsed(*argv("--fix", "dp=2"))
    found = Scaling(scaling="strong", sizes=tuple(scaled(args, read_sized(args, (1, 2), "strong"), Stop())))
    assert told == json.loads(json.dumps(found.to_json()))
    assert (told["scaling"], told["model"]) == ("strong", TINY)
    first, second = told["sizes"]
    assert (first["plan"], second["why"], second["cluster"]) == (None, "", "1x2xA100")
    assert second["plan"]["step_time_s"] == direct(*argv("--fix", "dp=2")).prediction.step_time_s
    assert [key for key in second if f"`sizes[].{key}`" not in PAGE] == []
    assert [key for key in told if f"`{key}" not in PAGE] == []


def test_where_nothing_fits_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv("--scale", "1", "--fix", "dp=2")]) == 3
    assert "1 GPU: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--scale", "64-128"), "MW8015"),
        (("--scale", "3"), "give 2 or 4"),
        (("--scale", "1", "--scaling", "weak", "--global-batch", "3"), "are no whole number on 1"),
        (("--scale", "2", "--what-if", "inter=8G"), "--what-if is for one size"),
        (("--scale", "2", "--beat", "settings.sh"), "--beat is for one size"),
        (("--scale", "2", "--dump-after", "fold"), "--dump-after is for one size"),
        (("--scale", "2", "--fix", "pt=2"), "did you mean 'tp'?"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_searched(
    more: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "solve", None)
    assert main([*argv(*more)]) == 2
    assert said in capsys.readouterr().err


def test_a_second_look_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Of sizes that nothing fits, too; and of the question at a size by itself."""
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(remembered, "_imported", lambda: ())
    words = argv("--scale", "1..2")
    assert main([*words]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(answers, "solve", None)
    assert main([*words]) == 0
    assert capsys.readouterr().out == first
    assert main([*argv(cluster="1x1xA100")]) == 0


def test_an_interrupt_shows_what_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The size at hand ends early, and no other one begins."""
    solve = answers.solve

    def interrupted(ask: Any, setting: Any, asked: Any, stop: Stop, *rest: Any) -> Any:
        found = solve(ask, setting, asked, stop, *rest)
        stop.interrupted = ask.cluster.ranks == 2
        return found

    monkeypatch.setattr(answers, "solve", interrupted)
    assert main([*argv("--scale", "1..4", "--json")]) == 130
    assert [one["ranks"] for one in json.loads(capsys.readouterr().out)["sizes"]] == [1, 2]


def test_how_it_goes_on_is_told_by_size() -> None:
    told: list[str] = []
    args = parsed(*argv("--forbid", "pp"))
    list(scaled(args, read_sized(args, (1, 2), "strong"), Stop(), lambda phase, search=None: told.append(phase)))
    assert told[0] == "size 1 (1/2), tracing the model"
    assert told[-1].startswith("size 2 (2/2), ")
