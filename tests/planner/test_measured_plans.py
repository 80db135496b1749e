"""Plans priced by what was measured: bounds stay bounds, the plan says what it was priced by, and is priced again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bound_check import check
from benchmarks.searches import EXAMPLES, Case
from meshwright.cost_models.measured.file import measured_text, measured_to_json
from meshwright.cost_models.profile import digest
from meshwright.ir.errors import PlanBroken
from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import load_plan, plan_text
from meshwright.planner.plan.reload import reload
from tests.cost_models.measured_cpu import hand

MODEL = str(EXAMPLES / "mlp.py:build")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    file = tmp_path / "by-hand.json"
    file.write_text(measured_text(hand()))
    return str(file)


@pytest.mark.parametrize(("model", "seq"), [("gpt2", 256), (str(EXAMPLES / "llama.py:tiny"), 64)])
def test_bounds_never_exceed_prices_that_were_measured(model: str, seq: int, profile: str) -> None:
    """Where half of a stream takes less than half of its time, and so does half of a message."""
    tally = check(Case(model=model, cluster="cpu:2", batch=32, seq=seq, precision="fp32", profile=profile), 15)
    assert not tally.violations
    assert len(tally.checked) >= 8


def planned(profile: str, folder: Path, *more: str) -> int:
    words = ["plan", MODEL, "--cluster", "cpu:2", "--global-batch", "4", "--seq", "64", "--target", "torch-gloo"]
    return main([*words, "--profile", profile, "--out", str(folder), *more])


def test_a_plan_holds_what_it_was_priced_by(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that it is priced again as it was, wherever the profile is."""
    assert planned(profile, tmp_path / "p", "-v") == 0
    assert "prices are of profile by-hand, measured 2026-11-30" in capsys.readouterr().out
    Path(profile).unlink()
    plan = load_plan(tmp_path / "p")
    assert (plan.provenance.profile, plan.provenance.profile_digest) == ("by-hand", digest(hand()))
    assert plan.provenance.measured == hand()
    assert plan_text(plan) == (tmp_path / "p" / "plan.json").read_text()
    again = reload(plan)
    assert again.changed == ()
    assert again.prediction == plan.prediction


def test_measurements_in_a_plan_are_checked(profile: str, tmp_path: Path) -> None:
    assert planned(profile, tmp_path / "p") == 0
    file = tmp_path / "p" / "plan.json"
    told = json.loads(file.read_text())
    told["provenance"]["profile"]["measured"] = measured_to_json(hand()) | {"covered": 2.0}
    file.write_text(json.dumps(told))
    with pytest.raises(PlanBroken, match="covered"):
        load_plan(file)


def test_a_profile_of_other_devices_is_refused(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [MODEL, "--cluster", "1x2xH100", "--global-batch", "4", "--seq", "64", "--profile", profile]
    assert main(["plan", *words]) == 6
    assert "MW6042" in capsys.readouterr().err


def test_another_number_of_ranks_is_told(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [MODEL, "--cluster", "cpu:4", "--global-batch", "4", "--seq", "64", "--fix", "dp=4"]
    assert main(["estimate", *words, "--profile", profile]) == 0
    assert "has 4 ranks, and 2 were measured at once" in capsys.readouterr().out


def test_a_profile_is_shown_and_listed(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", profile]) == 0
    told = capsys.readouterr().out
    assert "a CPU, 2 cores, 1 thread a rank, torch 2.13.0" in told
    assert "all_reduce" in told
    (tmp_path / "other.json").write_text("{}")
    assert main(["profile", "list", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{profile}: by-hand, CPU, 2026-11-30")
    assert main(["profile", "show", profile, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == measured_to_json(hand())
