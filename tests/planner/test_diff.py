"""Two plans side by side: what is kept of a configuration that pins change, and whole texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.decisions.decisions import Schedule
from meshwright.planner.answer import diff as module
from meshwright.planner.answer.diff import Diff, diff, kept, to_json
from meshwright.planner.cli.views.plans.diff import show_diff
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.pins import Pins
from tests.planner.handmade import config, held, plan, prediction, stage


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that everything fits on."""
    monkeypatch.setenv("COLUMNS", "200")


def compared(monkeypatch: pytest.MonkeyPatch, one: Plan, other: Plan, names: tuple[str, str] = ("a", "b")) -> Diff:
    """Of two files."""
    monkeypatch.setattr(module, "load_plan", dict(zip(names, (one, other), strict=True)).__getitem__)
    return diff(*names)


def printed(capsys: pytest.CaptureFixture[str], found: Diff) -> list[str]:
    show_diff(found)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


FULL = stage(0, held(4.5, 5.0, 1.0)), stage(1, held(3.0, 5.0, 1.0))
OTHER = plan(
    config=config("tp=2,pp=2,dp=2,zero=2,sp=off,recompute=full", 8),
    workload=replace(plan().workload, seq=1024, recipe="fp32"),
    machines=replace(plan().machines, ref="other.toml"),
    prediction=prediction(
        step_time_s=2.5,
        tokens_per_s_per_gpu=900.0,
        mfu=0.32,
        stages=FULL,
        shares=(("matmul", 1.5), ("bubble", 0.2), ("host", 0.8)),
    ),
)


SPLIT = "tensor parallel 2: heads, widths and vocabulary are split"


def test_two_plans_in_print(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in their own order; the differences of time add up to half a second."""
    assert printed(capsys, compared(monkeypatch, plan(), OTHER)) == [
        "a  a",
        "b  b",
        "",
        "not the same question",
        "         a         b",
        "cluster  big.toml  other.toml",
        "seq      4096      1024",
        "recipe   fsdp      fp32",
        "",
        "decided otherwise",
        "      a   b",
        "zero  1   2",
        "sp    on  off",
        f"a: {SPLIT}, activations between blocks split along the sequence",
        "a: ZeRO-1: optimizer states are shared out",
        f"b: {SPLIT}",
        "b: ZeRO-2: optimizer states and gradients are shared out",
        "",
        "predicted",
        "                     a         b               b - a",
        "step time          2 s     2.5 s  +500 ms (+25.00 %)",
        "tokens/s/GPU     1,234       900",
        "MFU            40.00 %   32.00 %",
        "peak memory   6.00 GiB  4.50 GiB           -1.50 GiB",
        "fits               yes        no",
        "",
        "what b takes longer or less for",
        "             time",
        "host      +800 ms  waiting for the host",
        "bubble    -300 ms  ranks that wait for others",
        "together  +500 ms",
    ]


def test_the_other_way_round(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second of 2.5 is a fifth."""
    lines = printed(capsys, compared(monkeypatch, OTHER, plan()))
    rows = [line.split() for line in lines]
    assert ["step", "time", "2.5", "s", "2", "s", "-500", "ms", "(-20.00", "%)"] in rows
    assert ["peak", "memory", "4.50", "GiB", "6.00", "GiB", "+1.50", "GiB"] in rows
    assert ["fits", "no", "yes"] in rows
    assert [row[:3] for row in rows[-3:]] == [
        ["host", "-800", "ms"],
        ["bubble", "+300", "ms"],
        ["together", "-500", "ms"],
    ]


def test_many_times_as_long_is_more_than_all_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven times as long is ten times more."""
    slow = plan(prediction=prediction(step_time_s=22.0))
    (line,) = [line for line in printed(capsys, compared(monkeypatch, plan(), slow)) if line.startswith("step time")]
    assert line.split("  ")[-1] == "+20 s (+1000.00 %)"


def test_plans_that_decide_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(capsys, compared(monkeypatch, plan(), plan())) == [
        "a  a",
        "b  b",
        "",
        "they decide the same",
        "",
        "predicted",
        "                     a         b            b - a",
        "step time          2 s       2 s  +0 µs (+0.00 %)",
        "tokens/s/GPU     1,234     1,234",
        "MFU            40.00 %   40.00 %",
        "peak memory   6.00 GiB  6.00 GiB",
        "fits               yes       yes",
        "",
        "what b takes longer or less for",
        "           time",
        "together  +0 µs",
    ]


def test_decisions_of_one_configuration_are_named_by_their_paths(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of another length, or text, is shown as a whole, to sixty characters; what one lacks is a dash."""
    one = plan().decisions
    actions = tuple(("F0", "B0") for _ in range(9))
    other = replace(
        one,
        plans=(replace(one.plans[0], first=1), one.plans[1]),
        schedule=Schedule("custom", 2, actions),
        style="compiled",
    )
    found = compared(monkeypatch, plan(), plan(decisions=other))
    assert found.config == ()
    rows = {name: (mine, theirs) for name, mine, theirs in found.decided}
    assert rows["schedule.name"] == ("gpipe", "custom")
    assert rows["schedule.microbatches"] == ("1", "2")
    text = '[["F0", "B0"], ["F0", "B0"], ["F0", "B0"], ["F0", "B0"], ["F0", "B0"]'
    assert rows["schedule.actions"][1] == f"{text[:57]}..."
    assert len(rows["schedule.actions"][1]) == 60
    assert rows["style"] == ("eager", "compiled")
    lines = printed(capsys, found)
    assert "decided otherwise" in lines
    assert "they decide the same" not in lines


def test_the_first_twelve_paths_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    one = plan().decisions
    stages = tuple(replace(one_, ranks=tuple(rank + 8 for rank in one_.ranks)) for one_ in one.stages)
    found = compared(monkeypatch, plan(), plan(decisions=replace(one, stages=stages, style="compiled", target="any")))
    assert len(found.decided) <= 12
    assert ("ranks[0][0]", "0", "8") in found.decided
    assert ("ranks[2][3]", "7", "15") in found.decided


def test_a_difference_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    one = plan()
    told = to_json(compared(monkeypatch, one, OTHER))
    assert told == {
        "a": {"name": "a", "config": one.config.to_json(), "predicted": one.prediction.to_json()},
        "b": {"name": "b", "config": OTHER.config.to_json(), "predicted": OTHER.prediction.to_json()},
        "about": {"cluster": ["big.toml", "other.toml"], "seq": ["4096", "1024"], "recipe": ["fsdp", "fp32"]},
        "config": {"zero": ["1", "2"], "sp": ["on", "off"]},
        "decisions": {},
        "step_time_s": 0.5,
        "shares": {"host": 0.8, "bubble": pytest.approx(-0.3), "matmul": 0.0},
    }


@pytest.mark.parametrize("there", [False, True])
def test_pins_are_told_from_files_by_their_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """A file whose name has one is a file."""
    monkeypatch.chdir(tmp_path)
    if there:
        Path("tp=4").touch()
    monkeypatch.setattr(module, "changed_by", lambda plan, text: replace(module.side("", plan), name="by pins"))
    assert compared(monkeypatch, plan(), plan(), ("a", "tp=4")).other.name == ("tp=4" if there else "by pins")


BEFORE = config("tp=2,pp=2,dp=4,cp=2,ep=2,mbs=2,zero=3,shard=2,regather=off,context=ring,split=ends", 32, 64)


@pytest.mark.parametrize(
    ("pins", "gone"),
    [
        (Pins(tp=4), {"dp", "microbatches", "etp", "sp"}),
        (Pins(tp=4, dp=2), {"microbatches", "etp", "sp", "cp", "pp"}),
        (Pins(pp=4), {"dp", "microbatches", "vp", "schedule", "split", "stage_blocks"}),
        (Pins(schedule="gpipe"), {"vp", "split", "stage_blocks"}),
        (Pins(mbs=1), {"microbatches"}),
        (Pins(microbatches=4), {"mbs"}),
        (Pins(context="ulysses"), {"zigzag"}),
        (Pins(zero=1), {"shard", "regather"}),
        (Pins(recompute="full"), set()),
    ],
)
def test_what_follows_from_pins_is_not_kept(pins: Pins, gone: set[str]) -> None:
    """Nor what is open anyhow: a default of expert tensor parallelism, and layers as they are split."""
    values: dict[str, Any] = BEFORE.to_json()
    expected = {name: value for name, value in values.items() if name not in gone | {"etp", "stage_blocks"}}
    assert kept(BEFORE, pins).to_json() == expected


def test_a_schedule_that_was_made_for_a_plan_stays_with_it() -> None:
    made = replace(config("pp=2,stage_blocks=1+3", 2), schedule="custom")
    left = kept(made, Pins(recompute="full")).to_json()
    assert "schedule" not in left
    assert left["stage_blocks"] == "1+3"
    assert kept(replace(made, schedule="gpipe"), Pins()).given["schedule"] == "gpipe"
