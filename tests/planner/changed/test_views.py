"""Changed answers as a person reads them: whole texts, of plans made by hand of few and round numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import write
from meshwright.planner.answer.changed.scale import Scaling, Size
from meshwright.planner.answer.changed.what_if import Kept, WhatIf
from meshwright.planner.cli.views.plans.scaled import show
from meshwright.planner.cli.views.plans.what_if import show_what_ifs
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.changed.changes import read_change
from tests.planner.handmade import bounds, config, held, plan, prediction, stage

CLUSTER = read_cluster("4x2xH100")
MACHINES = replace(plan().machines, toml=write(CLUSTER))
BEFORE = plan(machines=MACHINES)
"""Two seconds, 1.5 to 4."""


def row(text: str, **words: Any) -> WhatIf:
    """A changed question on the same cluster, whose plan is the one before and takes 2.5 s."""
    found = plan(machines=MACHINES, prediction=prediction(step_time_s=2.5))
    kept = Kept(decisions=found.decisions, prediction=found.prediction, cluster=CLUSTER)
    ask: Any = SimpleNamespace(cluster=CLUSTER)
    usual: dict[str, Any] = {"change": read_change(text), "ask": ask, "before": BEFORE, "plan": found, "why": ""}
    return WhatIf(**usual | {"kept": kept} | words)


OTHER = plan(config=config("tp=4,dp=2,zero=1", 8), prediction=prediction(step_time_s=1.0), bounds=bounds())
FULL = prediction(step_time_s=0.5, stages=(stage(0, held(9.0, 9.0, 1.0)),))
HALF = replace(CLUSTER, pools=(replace(CLUSTER.pools[0], hosts=2),))
ROWS = (
    row("inter=800G"),
    row("hosts=4", plan=OTHER, kept=Kept(prediction=prediction(step_time_s=0.5), cluster=HALF)),
    row("memory_gb=9", plan=OTHER, kept=Kept(prediction=FULL, cluster=CLUSTER)),
    row("gpu=T4", plan=None, why="nothing fits", kept=Kept(why="it is for operators of the model in bf16 (MW8014)")),
)


def test_a_row_for_each_changed_question(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    show_what_ifs(ROWS)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "",
        "what if",
        "change       plan then               step time  ratio  interval    memory  plan kept  ratio  tokens/s/GPU",
        "inter=800G   the same                    2.5 s  1.250  inside    6.00 GiB      2.5 s  1.250         1,234",
        "hosts=4      tp=4,dp=2,zero=1,mbs=1        1 s  0.500  beyond    6.00 GiB     500 ms  0.250         1,234",
        "memory_gb=9  tp=4,dp=2,zero=1,mbs=1        1 s  0.500  beyond    6.00 GiB     500 ms  0.250         1,234",
        "gpu=T4       none                            -      -                   -          -      -             -",
        "hosts=4: the plan kept leaves 2 of 4 hosts idle",
        "hosts=4: the plan kept is 500 ms faster than what was found there",
        "memory_gb=9: the plan kept does not fit: short 1.00 GiB",
        "gpu=T4: nothing fits",
        "gpu=T4: the plan cannot be kept: it is for operators of the model in bf16 (MW8014)",
    ]  # fmt: skip


def test_without_an_answer_nothing_is_beside_it() -> None:
    alone = row("gpu=T4", before=None, kept=Kept())
    assert (alone.ratio, alone.kept_ratio, alone.beyond, alone.same) == (None, None, None, False)


def test_another_size_of_micro_batches_is_another_plan() -> None:
    """Its decisions may be the same."""
    one = row("global_batch=16", plan=plan(machines=MACHINES, config=config("tp=2,pp=2,dp=2,mbs=2,recompute=full", 8)))
    assert one.plan is not None
    assert one.plan.decisions == one.kept.decisions
    assert not one.same
    assert row("seq=8").same


def size(ranks: int, found: Plan | None, why: str = "") -> Size:
    ask: Any = SimpleNamespace(model="small.toml", cluster=CLUSTER, workload=plan().workload)
    return Size(ranks=ranks, ask=ask, plan=found, why=why)


SIZES = Scaling(
    scaling="weak",
    sizes=(
        size(4, None, "nothing fits: what lacks least is short 3.00 GiB on stage 0"),
        size(1024, plan(prediction=prediction(step_time_s=8.0))),
        size(4096, plan(prediction=prediction(step_time_s=4.0), bounds=bounds(lower=0.0))),
    ),
)
"""Of 2048 x 4096 tokens: 1,024 tokens a second and device, and half of it with four times as many devices."""


def test_a_row_for_each_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    show(SIZES, (Path("out", "1024", "plan.json"),), brief=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    name = "tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b"
    assert lines == [
        "asked   small.toml, 4,096 tokens a sequence in bf16; weak scaling: as many sequences for each GPU",
        "",
        f" GPUs  batch  {'plan':{len(name)}}  step time  tokens/s  tokens/s/GPU  efficiency    memory      gap",
        f"    4  2,048  {'none':{len(name)}}          -         -             -           -         -        -",
        f"1,024  2,048  {name}        8 s    1.05 M         1,024       100 %  6.00 GiB  25.00 %",
        f"4,096  2,048  {name}        4 s    2.10 M           512     50.00 %  6.00 GiB  unknown",
        "4 GPUs: nothing fits: what lacks least is short 3.00 GiB on stage 0",
        "written: out/1024/plan.json",
    ]
    show(SIZES, (), brief=True)
    assert capsys.readouterr().out.splitlines()[0].split()[0] == "GPUs"
