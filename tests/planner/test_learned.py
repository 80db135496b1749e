"""What a run teaches a profile: the step that was measured is predicted better, and so are those of other plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.backends.door import measurer
from meshwright.cost_models.measured.file import load_measured, measured_text
from meshwright.cost_models.measured.measured import Learned, Measured, Spread
from meshwright.planner.answer.measured.learned import learned
from meshwright.planner.answer.measured.residuals import Plan, prices, values_of, with_values
from meshwright.planner.cli.main import main
from tests.cost_models.measured_cpu import hand
from tests.planner.reference_plans import narrow_plans

FITTED = np.array([1.2, 2e-5, 2e-11, 2e-4, 1e-3, 3e-4, 5e-10, 2e-4, 5e-4, 5e-4, 5e-4])
"""In the order of `CHANGES`."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    return narrow_plans(tmp_path_factory.mktemp("plans"))


def before() -> Measured:
    return replace(with_values(hand(), FITTED), spreads=(Spread(family="one stage", plans=8, low=0.9, high=1.1),))


def step_s(found: Measured, plan: Plan) -> float:
    return float(prices(found, [plan])[0])


def run_of(found: Measured, plan: Plan, measured_s: float) -> Learned:
    predicted_s = step_s(found, plan)
    return Learned(config="dp=2", made="2026-11-30", steps=9, measured_s=measured_s, predicted_s=predicted_s)


@settings(max_examples=8, deadline=None)
@given(number=st.integers(0, 14), ratio=st.floats(0.4, 3))
def test_a_run_is_predicted_better_by_what_it_taught(plans: list[Plan], number: int, ratio: float) -> None:
    plan = plans[number]
    predicted_s = step_s(before(), plan)
    measured_s = ratio * predicted_s
    told = run_of(before(), plan, measured_s)
    after = learned(before(), plan, told)
    assert abs(step_s(after, plan) - measured_s) <= abs(predicted_s - measured_s) * (1 + 1e-9)
    assert (values_of(after) >= 0).all()
    assert (after.busy[0], after.curves, after.learned) == (before().busy[0], before().curves, (told,))
    family = "pipeline" if "pp=" in str(plan.case.words[1]) else "one stage"
    low, high = after.spread(family)
    assert low <= ratio * (1 + 1e-9)
    assert high >= ratio * (1 - 1e-9)


def test_what_was_right_teaches_nothing(plans: list[Plan]) -> None:
    for plan in plans[::4]:
        after = learned(before(), plan, run_of(before(), plan, step_s(before(), plan)))
        assert values_of(after) == pytest.approx(FITTED)


def test_the_same_run_again_and_again_is_believed(plans: list[Plan]) -> None:
    now, measured_s = before(), 1.6 * step_s(before(), plans[0])
    for _ in range(3):
        now = learned(now, plans[0], run_of(now, plans[0], measured_s))
    assert step_s(now, plans[0]) == pytest.approx(measured_s, rel=0.02)


def test_runs_of_some_plans_teach_of_others(plans: list[Plan]) -> None:
    """On a machine where all is slower than was fitted: half of the kinds of plans have runs, errors of the others
    fall to less than half."""
    truth = with_values(hand(), FITTED * np.array([1.5, *[2] * 10]))
    runs, others = plans[::2], plans[1::2]
    now = before()
    for plan in runs:
        now = learned(now, plan, run_of(now, plan, step_s(truth, plan)))

    def error(found: Measured) -> float:
        return float(np.mean([abs(step_s(found, plan) / step_s(truth, plan) - 1) for plan in others]))

    assert error(now) < error(before()) / 2


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "p.json"
    path.write_text(measured_text(before()))
    return path


@pytest.fixture(scope="module")
def planned(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    out = tmp_path_factory.mktemp("plan")
    model = f"{measurer('torch-gloo').REFERENCE}:narrow"
    argv = ["plan", model, "--cluster", "cpu:2", "--global-batch", "8", "--seq", "16", "--target", "torch-gloo"]
    argv += ["--dtype", "fp32", "--fix", "dp=2,zero=0", "--json", "--profile", str(profile)]
    assert main([*argv, "--out", str(out)]) == 0
    return argv, out


def test_a_run_calibrates_the_next_plan(
    profile: Path, planned: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, out = planned
    capsys.readouterr()
    predicted_s = json.loads((out / "plan.json").read_text())["predicted"]["step_time_s"]
    log, slow_s = tmp_path / "log", round(1.5 * predicted_s, 4)
    log.write_text(
        "".join(f"step {n} loss 5.0 step_time_s {slow_s:.4f} tokens_per_s {128 / slow_s:.1f}\n" for n in range(5))
    )
    assert main(["compare", str(out), str(log), "--learn", str(profile), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["learned"]
    assert (told["profile"], told["runs"], told["measured_s"]) == (str(profile), 1, slow_s)
    assert told["before_s"] == pytest.approx(predicted_s)
    assert told["before_s"] < told["after_s"] <= slow_s * 1.01
    (kept,) = load_measured(profile).learned
    assert (kept.steps, kept.measured_s, kept.predicted_s) == (4, slow_s, told["before_s"])
    assert main(argv) == 0
    again = json.loads(capsys.readouterr().out)["predicted"]
    assert again["step_time_s"] == pytest.approx(told["after_s"])
    assert main(["compare", str(out), str(log), "--learn", str(profile)]) == 0
    assert "2 runs so far" in capsys.readouterr().out
    assert main(["profile", "show", str(profile)]) == 0
    assert "learned from 2 runs" in capsys.readouterr().out


def test_a_trace_of_a_device_teaches_what_a_log_does(
    profile: Path, planned: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its steps are those of the device's own clock."""
    _, out = planned
    step_us = 1e5
    events = [
        {"ph": "X", "pid": pid, "tid": 7, "ts": step_us * number, "dur": step_us, "cat": cat, "name": name}
        for number in range(4)
        for cat, pid, name in (
            ("user_annotation", 1, f"ProfilerStep#{number}"),
            ("gpu_user_annotation", 0, f"ProfilerStep#{number}"),
            ("kernel", 0, "gemm"),
        )
    ]
    trace, log = tmp_path / "trace.json", tmp_path / "log"
    trace.write_text(json.dumps({"traceEvents": events}))
    log.write_text("".join(f"step {n} loss 5.0 step_time_s 0.1 tokens_per_s 1280.0\n" for n in range(4)))
    kept, told = profile.read_text(), []
    for file in (trace, log):
        copy = tmp_path / f"{file.stem}-learned.json"
        copy.write_text(kept)
        capsys.readouterr()
        assert main(["compare", str(out), str(file), "--learn", str(copy), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)["learned"] | {"profile": ""})
    assert told[0] == pytest.approx(told[1])
    assert told[0]["measured_s"] == pytest.approx(0.1)


def test_no_profile_to_teach(
    planned: tuple[list[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWRIGHT_PROFILES", str(tmp_path))
    (tmp_path / "log").write_text("step 0 loss 5.0 step_time_s 0.1000 tokens_per_s 1280.0\n")
    capsys.readouterr()
    assert main(["compare", str(planned[1]), str(tmp_path / "log"), "--skip", "0", "--learn"]) == 2
    assert "plan calibrate" in capsys.readouterr().err


def test_a_profile_of_another_device_learns_nothing(
    profile: Path, planned: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = load_measured(profile)
    other = tmp_path / "other.json"
    other.write_text(measured_text(replace(found, identity=replace(found.identity, device="H100"))))
    (tmp_path / "log").write_text("step 0 loss 5.0 step_time_s 0.1000 tokens_per_s 1280.0\n")
    capsys.readouterr()
    text = other.read_text()
    assert main(["compare", str(planned[1]), str(tmp_path / "log"), "--skip", "0", "--learn", str(other)]) != 0
    assert "MW6042" in capsys.readouterr().err
    assert other.read_text() == text
