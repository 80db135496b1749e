"""`plan compare`: a log beside its plan; what is no log of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.ir.errors import LogUnreadable
from meshwright.planner.cli import main
from meshwright.planner.plan_file import load_plan
from tests.planner.solved import ARGV

TOKENS = 8 * 64
LOG = """\
[rank0]: a warning: step 3 of 4 is slow
step 0 loss 5.690964 step_time_s 2.0000 tokens_per_s 256.0 flops_per_s 1e+07 mfu 0.0001 memory_bytes 900
step 1 loss 5.641627 step_time_s 0.2000 tokens_per_s 2560.0 flops_per_s 1e+08 mfu 0.0010 memory_bytes 1000
[default0]:step 2 loss 5.6 step_time_s 0.1000 tokens_per_s 5120.0 flops_per_s 2e+08 mfu 0.0020 memory_bytes 1000
step 3 loss 5.500000 step_time_s 0.1000 tokens_per_s 5120.0 flops_per_s 2e+08 mfu 0.0020 memory_bytes 1000
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    assert main([*ARGV, "--json", "--fix", "tp=1,pp=1,dp=4,zero=3,mbs=2", "--out", str(folder)]) == 0
    (folder / "log").write_text(LOG)
    return folder


def test_the_median_of_all_steps_but_the_first_is_held_against_the_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["compare", str(folder), str(folder / "log"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    predicted = load_plan(folder).prediction
    assert (found["steps"], found["skipped"], found["loss"]) == (3, 1, {"first": 5.690964, "last": 5.5})
    assert found["slowest_s"] == 0.2
    step = found["figures"]["step_time_s"]
    assert step == {
        "measured": 0.1,
        "predicted": predicted.step_time_s,
        "ratio": pytest.approx(0.1 / predicted.step_time_s),
    }
    assert found["inside"] == (predicted.step_time_low_s <= 0.1 <= predicted.step_time_high_s)
    assert found["figures"]["tokens_per_s"]["predicted"] == pytest.approx(TOKENS / predicted.step_time_s)
    assert found["figures"]["memory_bytes"]["measured"] == 1000
    assert 0 < found["figures"]["memory_bytes"]["predicted"] < predicted.peak_memory_bytes


def test_it_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(line.partition(" mfu")[0] for line in LOG.splitlines())
    (folder / "without").write_text(text)
    capsys.readouterr()
    assert main(["compare", str(folder), str(folder / "without"), "--skip", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "run      4 steps; the slowest took 2 s"
    assert ["step", "time", "150", "ms"] in [line.split()[:4] for line in lines]
    assert sum("not logged" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing of this kind\n", "0 lines of steps"),
        ("step 0 loss 1.0 step_time_s 0.1000 tokens_per_s 5120.0\n", "the first 1 are left out"),
        (LOG + "step 4 loss 5.4 step_time_s 0.1\n", "log:6"),
        (LOG + "step 4 loss 5.4 step_time_s fast tokens_per_s 5120.0\n", "fast"),
        (LOG + "step 4 loss 5.4 step_time_s 0.0 tokens_per_s 5120.0\n", "log:6: step_time_s"),
        (LOG + "step 4 loss 5.4 step_time_s 0.1 tokens_per_s nan\n", "log:6: tokens_per_s"),
        (LOG + "step 4 loss 5.4 step_time_s 0.1 tokens_per_s 5120.0 memory_bytes\n", "log:6: memory_bytes"),
        (LOG.replace("5120.0", "640.0").replace("2560.0", "320.0"), "and the plan's 512"),
    ],
)
def test_what_is_no_log_of_the_plan_is_refused(
    text: str, says: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(text)
    assert main(["compare", str(folder), str(tmp_path / "log")]) == LogUnreadable.exit_code
    said = capsys.readouterr().err
    assert f"error {LogUnreadable.code}" in said
    assert says in said


def test_a_log_that_is_not_there_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(folder), str(folder / "nowhere")]) == LogUnreadable.exit_code
    assert "no such file" in capsys.readouterr().err
