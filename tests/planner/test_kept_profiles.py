"""Profiles on the command line: which one is used, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.calibrate.kept import folder, kept_for, path_of, this_machine
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.measured.file import load_measured, measured_text
from meshwright.cost_models.measured.measured import Identity, Measured, Spread
from meshwright.cost_models.profile import calibrated
from meshwright.planner.cli.main import main
from meshwright.planner.question.ask import profile_of, said_of
from tests.cost_models.measured_cpu import hand

CPUS, GPUS = read_cluster("cpu:2"), read_cluster("1x2xH100")


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Identity], Measured]:
    """Keeps a profile of a machine."""
    monkeypatch.setenv("MESHWRIGHT_PROFILES", str(tmp_path / "kept"))

    def kept(of: Identity) -> Measured:
        one = replace(hand(), identity=of)
        path_of(of).parent.mkdir(exist_ok=True)
        path_of(of).write_text(measured_text(one))
        return one

    return kept


def test_what_was_measured_of_this_machine_prices_its_own_ranks(keep: Callable[[Identity], Measured]) -> None:
    assert profile_of(None, CPUS).name == "published"
    one = keep(this_machine("torch-gloo"))
    assert profile_of(None, CPUS).measured == one
    assert profile_of(None, GPUS).name == profile_of("published", CPUS).name == "published"
    told = said_of(profile_of(None, CPUS), CPUS)
    assert told[1:] == ("no whole steps were measured there: intervals are those of the shipped prices",)
    whole = replace(one, spreads=(Spread(family="pipeline", plans=5, low=0.5, high=2.0),))
    assert said_of(calibrated(whole), CPUS) == told[:1]


@pytest.mark.parametrize("changes", [{"cores": 999}, {"libraries": (("torch", "1.0"),)}, {"processor": "another"}])
def test_a_profile_of_another_machine_is_named_or_not_used(
    keep: Callable[[Identity], Measured], changes: dict[str, object]
) -> None:
    own = this_machine("torch-gloo")
    other = replace(own, **changes)  # type: ignore[arg-type]
    keep(other)
    assert kept_for(("CPU",)) is None
    told = said_of(profile_of(str(path_of(other)), CPUS), CPUS)
    assert told[1] == f"that was measured elsewhere: this machine is {own}"


def test_folders_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MESHWRIGHT_PROFILES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert folder() == Path.home() / ".cache" / "meshwright" / "profiles"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert folder() == Path("/x/meshwright/profiles")


def test_profiles_are_shown_listed_joined_and_compared(
    keep: Callable[[Identity], Measured], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = this_machine("torch-gloo")
    keep(own)
    assert main(["profile", "show"]) == 0
    assert "best product" in capsys.readouterr().out
    assert main(["profile", "list", "--json"]) == 0
    assert [one["file"] for one in json.loads(capsys.readouterr().out)] == [str(path_of(own))]
    file, out = str(path_of(own)), tmp_path / "both.json"
    assert main(["profile", "merge", file, file, "--out", str(out)]) == 0
    assert load_measured(out).name == "both"
    assert main(["profile", "diff", file, str(out)]) == 0
    assert "1.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["merge", "a.json"], "MW8010"),
        (["merge", "a.json", "b.json"], "MW8010"),
        (["diff", "a.json"], "MW8010"),
        (["show"], "MW8010"),
        (["diff", "a.json", "b.json"], "MW6040"),
    ],
)
def test_other_arguments_are_refused(
    words: list[str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *words]) != 0
    assert f"error {code}" in capsys.readouterr().err
