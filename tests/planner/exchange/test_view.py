"""What a person reads of settings: prices, what is lost, and a file beside a plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.planner.answer.exchanged.beside import Beside
from meshwright.planner.answer.exchanged.said import Exchanged
from meshwright.planner.cli.views.plans.exchange import show_beside, show_exchanged
from meshwright.planner.exchange.files import Settings
from meshwright.planner.exchange.options import Entry, Given
from meshwright.planner.exchange.target import Lost
from meshwright.planner.exchange.targets.every import TARGETS
from tests.planner.handmade import config, plan, prediction, rival

DEEPSPEED = TARGETS["deepspeed"]
LOST = (
    Lost(name="pp", was="4", becomes="1", reason="no option", why="its files have no pipeline"),
    Lost(name="stages", was="+".join("7" * 32), becomes="none", reason="not together", why="so it is"),
)


def written(**changed: Any) -> Exchanged:
    usual: dict[str, Any] = {
        "target": DEEPSPEED,
        "config": config("tp=2", 8),
        "options": {},
        "elsewhere": {"seq": 4096, "recompute": "none"},
        "lost": LOST,
        "planned": prediction(),
        "prediction": prediction(step_time_s=3.0, step_time_low_s=2.5, step_time_high_s=5.0),
    }
    return Exchanged(**usual | changed)


def beside(slower: float = 1.5, **changed: Any) -> Beside:
    given = Given(place="ds_config.json", entries={"elasticity": Entry({"enabled": True})})
    settings = Settings(target=DEEPSPEED, given=given, unknown=("colour",), left=3)
    taken: Any = SimpleNamespace(settings=settings)
    usual: dict[str, Any] = {
        "taken": taken,
        "settings": rival("ds_config.json", "tp=8,zero=0", "+1 s tensor, +0.5 s bubble", slower=slower),
        "inside": True,
        "config": config("tp=8,zero=0", 8),
        "prediction": prediction(step_time_s=2.0 * slower, step_time_high_s=9.0),
        "said": written(prediction=prediction(step_time_s=2.5)),
        "why_not": "",
    }
    return Beside(**usual | changed)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_both_prices_are_shown_and_what_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    show_exchanged(written(), ("set/ds_config.json",))
    out = capsys.readouterr().out
    assert "as planned  2 s (1.5 s to 4 s) a step\n" in out
    assert "as written  3 s (2.5 s to 5 s) a step, as DeepSpeed can say it\n" in out
    assert "it has no option for it: its files have no pipeline" in out
    assert "to be said in your script: seq = 4096\n" in out
    assert "written: set/ds_config.json\n" in out


def test_nothing_lost_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_exchanged(written(lost=()), ())
    assert "cannot say" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slower", "inside", "said"),
    [
        (1.5, True, "takes 33.33 % less; the settings take +50.0 %, inside its interval"),
        (3.0, False, "takes 66.67 % less; the settings take +200 %, beyond its interval"),
        (1.0, True, "takes as long"),
        (0.5, True, "takes 100 % longer than the settings"),
    ],
)
def test_a_plan_is_faster_or_not(slower: float, inside: bool, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_beside(beside(slower, inside=inside), plan())
    out = capsys.readouterr().out
    assert f"the plan    {said}\n" in out
    assert "note: prices know nothing of elasticity in ds_config.json\n" in out
    assert "note: DeepSpeed publishes no colour, as ds_config.json has\n" in out


def test_what_the_target_can_say_of_the_plan_is_beside_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    show_beside(beside(), plan())
    out = capsys.readouterr().out
    assert "as settings 2.5 s (1.5 s to 4 s) a step, 16.67 % faster than the file: tp=2" in out
    assert "without pp 4 (it has no option for it)\n" in out
    show_beside(beside(said=None, why_not="6 sequences for dp=4 (MW4076)"), plan())
    assert "DeepSpeed cannot say the plan: 6 sequences for dp=4 (MW4076)\n" in capsys.readouterr().out


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    full = prediction()
    stages = tuple(
        replace(one, memory=replace(one.memory, peak_bytes=2 * one.memory.device_bytes)) for one in full.stages
    )
    show_exchanged(written(prediction=replace(full, stages=stages)), ())
    assert "a step, and does not fit, as DeepSpeed can say it" in capsys.readouterr().out
