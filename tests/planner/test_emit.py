"""`plan emit` and `plan verify`, from a search to four processes; what both refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.backends.torch_.emit.write import needed
from meshwright.backends.torch_.verify import emitted
from meshwright.ir.errors import DependencyMissing, EmissionTarget, VerificationTooLarge
from meshwright.ir.frontends.door import load_model
from meshwright.planner.cli.exits import MISMATCH
from meshwright.planner.cli.main import main
from meshwright.planner.plan.emitted import subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.needs import PROCESS_BYTES, needs_of
from meshwright.planner.plan.reload import reload
from tests.planner.solved import TINY
from tests.planner.twins import EXAMPLES

SEARCH = (TINY, "--cluster", "cpu:4", "--target", "torch-gloo", "--global-batch", "8", "--seq", "16", "--dtype", "fp32")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of tensor and sharded data parallelism."""
    folder = tmp_path_factory.mktemp("plan")
    assert main([*SEARCH, "--fix", "tp=2,dp=2,zero=3", "--out", str(folder)]) == 0
    return folder


@pytest.mark.e2e
def test_a_searched_plan_is_emitted_and_proved(
    planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", str(planned), "--out", str(tmp_path / "train")]) == 0
    names = sorted(path.name for path in (tmp_path / "train").iterdir())
    assert names == [".meshwright.json", "launch.sh", "ranks.json", "train.py"]
    assert main(["emit", str(planned), "--out", str(tmp_path / "train")]) == 0  # again, over what it wrote
    capsys.readouterr()
    assert main(["verify", str(planned), "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"]
    assert found["differences"] == []
    assert {row["axes"] for row in found["collectives"]} == {"dp", "tp"}


@pytest.mark.filterwarnings("ignore")
def test_what_is_answered_for_a_vocabulary_that_no_axis_divides_is_emitted(tmp_path: Path) -> None:
    told = json.loads((EXAMPLES / "configs" / "gpt2" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | {"n_layer": 2}))
    search = (str(tmp_path), "--cluster", "1x4xH100", "--target", "torch-cuda", "--global-batch", "8", "--seq", "128")
    for pins in ("tp=2", "tp=4"):
        assert main([*search, "--fix", pins, "--out", str(tmp_path / "plan")]) == 0
        assert main(["emit", str(tmp_path / "plan"), "--out", str(tmp_path / "train")]) == 0


def test_a_difference_ends_with_its_exit_code(
    planned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = emitted.Verified(
        ranks=4,
        steps=1,
        losses=(5.69,),
        tensors=78,
        worst=0.5,
        collectives=(("all_reduce", "dp", 3, 1024),),
        once=(),
        unlike=(),
        off=tuple(f"step 0, rank {rank}: the loss is off" for rank in range(30)),
    )
    monkeypatch.setattr(emitted, "verify", lambda jobs, **_: [wrong])
    assert main(["verify", str(planned), "--steps", "1"]) == MISMATCH
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("DIFFERENT")
    assert printed[-1] == "and 10 more: see --json"


def test_other_targets_are_not_run_here(planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "plan.json"
    text = (planned / "plan.json").read_text()
    other.write_text(text.replace('"target": "torch-gloo"', '"target": "torch-cuda"'))
    assert main(["verify", str(other)]) == VerificationTooLarge.exit_code
    assert f"error {VerificationTooLarge.code}" in capsys.readouterr().err


def test_what_takes_more_memory_than_it_may_is_not_started(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(planned), "--memory-limit", "0.1"]) == VerificationTooLarge.exit_code
    said = capsys.readouterr().err
    assert f"error {VerificationTooLarge.code}" in said
    assert "102 MiB may be used" in said
    assert "--memory-limit" in said


def test_what_is_needed_is_what_all_ranks_hold_side_by_side(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a step each has its peak and the model, and leaves parameters and gradients of it; twice, for fp64."""
    subject = subject_of(reload(load_plan(str(planned))))
    found = needs_of(subject, (1e6, 3e6), 1)
    parameters = sum(one.numel() for one in load_model(TINY).module.parameters())
    assert found.parameters == parameters
    assert found.memory_bytes == 2 * PROCESS_BYTES + 2 * (4e6 + 2 * 3 * 4 * parameters)
    found.check(1e10, 60)
    said = capsys.readouterr().err
    assert f"to be run: 2 processes, 1 steps of {parameters:,} parameters" in said
    assert "within 60 s (--time-limit) and 9.31 GiB (--memory-limit)" in said


def test_a_torch_that_is_too_old_is_refused(
    planned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needed, "version", lambda _: "2.9.1")
    assert main(["verify", str(planned)]) == DependencyMissing.exit_code == 8
    assert "need 2.11 or newer, and it is 2.9.1" in capsys.readouterr().err


def test_a_place_that_is_a_file_is_refused(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", str(planned), "--out", str(planned / "plan.json")]) == 8
    assert "error MW7026" in capsys.readouterr().err


def test_a_plan_is_emitted_for_another_target(
    planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", str(planned), "--target", "torch-cuda", "--out", str(tmp_path)]) == 0
    assert "for torch-gloo" in capsys.readouterr().err
    assert 'dist.init_process_group("nccl")' in (tmp_path / "train.py").read_text()
    assert {"host", "gpu"} <= json.loads((tmp_path / "ranks.json").read_text())[0].keys()
    assert main(["emit", str(planned), "--target", "any", "--out", str(tmp_path)]) == EmissionTarget.exit_code


ASKED = {
    "gloo, stages": ("--cluster", "cpu:8", "--target", "torch-gloo", "--fix", "pp=2"),
    "gloo, sequences": ("--cluster", "cpu:4", "--target", "torch-gloo", "--fix", "cp=2"),
    "cuda": ("--cluster", "1x8xA100", "--target", "torch-cuda"),
    "cuda, stages without blocks": ("--cluster", "1x4xH100", "--fix", "pp=2,schedule=interleaved"),
    "cuda, split backward passes": ("--cluster", "1x8xH100", "--target", "torch-cuda", "--fix", "pp=2,schedule=zbv"),
}


@pytest.mark.parametrize("kind", ASKED)
def test_what_is_found_for_a_target_can_be_emitted(kind: str, tmp_path: Path) -> None:
    workload = ("--global-batch", "16", "--seq", "16", "--dtype", "fp32")
    assert main([TINY, *ASKED[kind], *workload, "--out", str(tmp_path)]) == 0
    assert main(["emit", str(tmp_path), "--out", str(tmp_path / "train")]) == 0
