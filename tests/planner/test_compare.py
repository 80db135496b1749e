"""`plan compare`: a log beside its plan; what is no log of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import LogUnreadable
from meshwright.planner.answer.compare import Run, check_tokens, inside, read_run, rows, to_json
from meshwright.planner.cli.main import main
from meshwright.planner.cli.views.plans.compare import show
from meshwright.planner.plan.file import load_plan
from tests.planner.handmade import GIB, held, plan, prediction, stage
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
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out == f"{json.dumps(found, indent=2)}\n"
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


# By hand -------------------------------------------------------------------------------------------------------------

STEPS = """\
step 0 loss 9.0 step_time_s 8.0 tokens_per_s 2.0 mfu 0.9 memory_bytes 99
step 1 loss 8.0 step_time_s 0.5 tokens_per_s 20.0 mfu 0.3 memory_bytes 10
step 2 loss 7.0 step_time_s 0.25 tokens_per_s 44.0 memory_bytes 30 other 5
nothing of steps
step 3 loss 6.0 step_time_s 4.0 tokens_per_s 3.0 mfu 0.4
step 4 loss nan step_time_s 1.0 tokens_per_s 9.0 memory_bytes 20 mfu 0.1
"""


def measured(**words: Any) -> Run:
    """A second a step, of as many tokens as the plan's have."""
    usual: dict[str, Any] = {"steps": 3, "skipped": 1, "first_loss": 9.0, "last_loss": 6.0, "step_time_s": 1.0}
    usual |= {"slowest_s": 1.25, "tokens": 8_388_608.0, "mfu": 0.5, "memory_bytes": 3.0 * GIB}
    return Run(**usual | words)


def test_a_log_is_read_to_medians_and_extremes() -> None:
    """Without the first step: times 0.5, 0.25, 4 and 1, tokens 10, 11, 12 and 9; what some lines lack is of the others.
    The first loss is that of the step that is left out."""
    found = read_run(STEPS.replace("nan", "5.0"), "log", 1)
    assert found == Run(
        steps=4,
        skipped=1,
        first_loss=9.0,
        last_loss=5.0,
        step_time_s=0.75,
        slowest_s=4.0,
        tokens=10.5,
        mfu=0.3,
        memory_bytes=30.0,
    )
    last = read_run(STEPS, "log", 4)
    assert (last.steps, last.skipped, last.tokens, last.memory_bytes, last.mfu) == (1, 4, 9.0, 20.0, 0.1)
    assert math.isnan(last.last_loss)
    without = read_run("step 0 loss 1.0 step_time_s 1.0 tokens_per_s 1.0", "log", 0)
    assert (without.mfu, without.memory_bytes) == (None, None)


def test_what_a_log_is_refused_with() -> None:
    with pytest.raises(LogUnreadable) as refused:
        read_run(STEPS, "log", 5)
    assert refused.value.place == "log"
    assert refused.value.cause == "it has 5 lines of steps, and the first 5 are left out"
    with pytest.raises(LogUnreadable) as refused:
        read_run("\nstep 7 loss 1.0 step_time_s fast tokens_per_s 1.0", "log", 0)
    assert refused.value.place == "log:2: step_time_s"
    assert refused.value.cause.endswith("): step 7 loss 1.0 step_time_s fast tokens_per_s 1.0")
    assert refused.value.fix == "keep the line as it is printed: step N loss X step_time_s X tokens_per_s X …"


@pytest.mark.parametrize(
    ("step_s", "part", "good"),
    [
        (100.0, 1.0099, True),
        (100.0, 1.0101, False),
        (100.0, 0.9901, True),
        (100.0, 0.9899, False),
        (0.01, 1.0199, True),
        (0.01, 1.0201, False),
        (0.01, 0.9801, True),
        (0.01, 0.9799, False),
    ],
)
def test_tokens_may_be_off_by_a_hundredth_and_what_rounding_does(step_s: float, part: float, good: bool) -> None:
    """Times are logged to 0.1 ms: of 10 ms that is another hundredth, of 100 s nothing. 2048 x 4096 tokens a step."""
    run = measured(step_time_s=step_s, tokens=8_388_608 * part)
    if good:
        check_tokens(run, plan(), "log")
        return
    with pytest.raises(LogUnreadable) as refused:
        check_tokens(run, plan(), "log")
    assert refused.value.place == "log"
    assert refused.value.cause == f"its steps have {8_388_608 * part:,.0f} tokens, and the plan's 8,388,608"


def test_figures_beside_each_other() -> None:
    """Of the last stage, memory without what torch's allocator does not see: 4 of 7 GiB. 8,192 ranks of 1,000 tokens
    a second each."""
    last = stage(1, held(7.0, 10.0, 1.0, parameters=3.0, communicators=1.0, context=2.0, idle=0.0, logits=1.0))
    one = plan(prediction=prediction(tokens_per_s_per_gpu=1000.0, stages=(stage(0, held(9.0, 10.0, 1.0)), last)))
    table = [(row.name, row.measured, row.predicted, row.ratio) for row in rows(one, measured())]
    assert table == [
        ("step_time_s", 1.0, 2.0, 0.5),
        ("tokens_per_s", 8_388_608.0, 8_192_000.0, 1.024),
        ("mfu", 0.5, 0.4, 1.25),
        ("memory_bytes", 3.0 * GIB, 4.0 * GIB, 0.75),
    ]
    bare = {row.name: row.ratio for row in rows(plan(prediction=prediction(mfu=0.0)), measured(memory_bytes=None))}
    assert (bare["mfu"], bare["memory_bytes"]) == (None, None)
    told = to_json(one, measured(step_time_s=4.0))
    assert told == {
        "plan": {"file": "plan.json", "config": one.config.to_json()},
        "steps": 3,
        "skipped": 1,
        "loss": {"first": 9.0, "last": 6.0},
        "slowest_s": 1.25,
        "predicted_low_s": 1.5,
        "predicted_high_s": 4.0,
        "inside": True,
        "figures": {
            "step_time_s": {"measured": 4.0, "predicted": 2.0, "ratio": 2.0},
            "tokens_per_s": {"measured": 2_097_152.0, "predicted": 8_192_000.0, "ratio": 0.256},
            "mfu": {"measured": 0.5, "predicted": 0.4, "ratio": 1.25},
            "memory_bytes": {"measured": 3.0 * GIB, "predicted": 4.0 * GIB, "ratio": 0.75},
        },
    }


@pytest.mark.parametrize(("step_s", "held_"), [(1.4, False), (1.5, True), (4.0, True), (4.1, False)])
def test_both_ends_are_inside(step_s: float, held_: bool) -> None:
    """Predicted are 1.5 to 4 seconds."""
    assert inside(plan(), step_s) == held_


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that everything fits on."""
    monkeypatch.setenv("COLUMNS", "200")


def test_a_whole_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    one = plan(prediction=prediction(tokens_per_s_per_gpu=1000.0, stages=(stage(0, held(2.0, 4.0, 1.0, logits=2.0)),)))
    show(one, measured(step_time_s=1.6, slowest_s=2.0, mfu=None))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "plan     tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b",
        "run      3 steps, the first 1 left out; the slowest took 2 s",
        "loss     9.000000 to 6.000000",
        "",
        "measured beside predicted",
        "                     measured  predicted  measured / predicted",
        "step time               1.6 s        2 s                 0.800",
        "tokens per second      5.24 M     8.19 M                 0.640",
        "MFU                not logged    40.00 %",
        "memory, allocated    3.00 GiB   2.00 GiB                 1.500",
        "",
        "the step is inside of what was predicted: 1.5 s to 4 s",
    ]
    show(one, measured(step_time_s=1.0, steps=1, skipped=0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "run      1 step; the slowest took 1.25 s"
    assert lines[-1] == "the step is outside of what was predicted: 1.5 s to 4 s"
