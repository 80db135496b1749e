"""Refusals that come of the machine, or of files that measurements leave, by the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.calibrate import machine
from meshwright.calibrate.kept import this_machine
from meshwright.calibrate.samples import header
from meshwright.cost_models.measured.file import measured_text
from meshwright.ir.errors import (
    MachineBusy,
    MeshwrightError,
    ProfilesUnlike,
    RanksFailed,
    SamplesOfAnotherMachine,
    SolverFailed,
    ToolFailed,
)
from meshwright.planner.block_solver.programs import process
from meshwright.planner.cli.main import main
from tests.cost_models.measured_cpu import hand
from tests.planner.refused.cases import FILES, WORKLOAD, shape


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


def refused(capsys: pytest.CaptureFixture[str], words: str, kind: type[MeshwrightError]) -> str:
    capsys.readouterr()
    assert main(words.split()) == kind.exit_code
    said = capsys.readouterr().err
    assert f"error {kind.code} at " in said
    return said


def test_a_busy_machine_is_not_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_share", lambda: 0.5)
    said = refused(capsys, "calibrate --quick --out p.json", MachineBusy)
    assert "50% of the processors" in said
    assert "--force" in said
    assert not Path("p.json").exists()


def test_samples_of_another_machine_are_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "busy_share", lambda: 0.0)
    samples = Path("p.json.samples.jsonl")
    samples.write_text(f"{header(replace(this_machine('torch-gloo'), cores=999), 2)}\n")
    kept = samples.read_text()
    assert "remove the file" in refused(capsys, "calibrate --quick --out p.json", SamplesOfAnotherMachine)
    assert samples.read_text() == kept


def test_profiles_of_two_machines_are_not_joined(capsys: pytest.CaptureFixture[str]) -> None:
    one = hand()
    Path("a.json").write_text(measured_text(one))
    Path("b.json").write_text(measured_text(replace(one, identity=replace(one.identity, cores=999))))
    assert "999 cores" in refused(capsys, "profile merge a.json b.json --out c.json", ProfilesUnlike)
    assert not Path("c.json").exists()


def test_a_driver_that_fails_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    said = refused(capsys, "cluster detect", ToolFailed)
    assert "version mismatch" in said


def test_ranks_that_take_too_long_are_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"net.py:build --cluster cpu:2 {WORKLOAD} --fix dp=2 --target torch-gloo --out out".split()) == 0
    assert "still running" in refused(capsys, "verify out --time-limit 0", RanksFailed)


def test_a_solver_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for a schedule of its own, in a step that is small enough to have its order certified."""
    monkeypatch.setattr(process, "CHILD", "meshwright.no_such_module")
    wide = shape(layers=8, hidden=4096, ffn_hidden=8192, vocab=32000, heads=32, kv_heads=32)
    (tmp_path / "wide.toml").write_text(wide)
    words = "--cluster 4x1xH100,inter=10G --global-batch 8 --seq 64 --fix pp=4,dp=1,schedule=custom,microbatches=4"
    assert "No module named" in refused(capsys, f"wide.toml {words}", SolverFailed)
