"""A calibration: which cases it measures, how samples are kept and taken up again, and what is made of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.door import measurer
from meshwright.backends.measuring import CHAIN_LAUNCHES, Case, Sample
from meshwright.calibrate import machine
from meshwright.calibrate.cases import LONGEST_FLOPS, Asked, cases, expected_s
from meshwright.calibrate.fit import fitted, missing
from meshwright.calibrate.machine import busy_share, check_idle, identity
from meshwright.calibrate.samples import compacted, header, taken_up, whole
from meshwright.cost_models.compute.kernels import Kernel
from meshwright.cost_models.measured.file import load_measured
from meshwright.ir.errors import MachineBusy, MeasuringUnknown, RanksFailed, SamplesOfAnotherMachine
from meshwright.ir.rules.base import Engine
from meshwright.planner.answer.measured import residuals
from meshwright.planner.cli.main import main

HERE = identity("CPU", (("torch", "2.13.0"),), 1)
FIRST = header(HERE, 2)


def asked(**changes: Any) -> Asked:
    return Asked(**{"ranks": 2, "threads": 1, "dtypes": ("fp32",), "quick": False} | changes)


def sample(case: str, rank: int = 0, seconds: float = 1.0, cpu: float = 1.0, count: int = 5) -> Sample:
    return Sample(case=Case.parse(case), rank=rank, seconds=(seconds,) * count, cpu=(cpu,) * count)


# Cases ---------------------------------------------------------------------------------------------------------------


def test_every_product_inside_is_within_an_octave_of_a_measured_one() -> None:
    """In each of m, n and k, as the interpolation wants it."""
    sides = {case.ints[1:] for case in cases(asked()) if case.kind == "product" and case.busy == 2}
    for shape in product((16, 30, 100, 500, 1500), repeat=3):
        if 2.0 * shape[0] * shape[1] * shape[2] * 8 <= LONGEST_FLOPS:
            assert any(all(a <= 2 * b and b <= 2 * a for a, b in zip(shape, one, strict=True)) for one in sides), shape


def test_kernels_of_a_model_are_measured_as_they_are() -> None:
    attention = Kernel(Engine.ATTENTION, "backward", "f32", 1.0, 1.0, (2, 4, 2, 32, 64, 16, 16), causal=True)
    windowed = Kernel(Engine.ATTENTION, "forward", "f32", 1.0, 1.0, (2, 4, 2, 32, 64, 16, 16), causal=True, window=8)
    kernels = (Kernel(Engine.MATMUL, "wgrad", "fp32", 1.0, 1.0, (3, 7, 8, 9)), attention, windowed)
    added = set(cases(asked(kernels=kernels))) - set(cases(asked()))
    assert {str(case) for case in added} == {
        f"{what} @{busy}"
        for what in ("product fp32 3 7 8 9", "attention fp32 backward causal 2 4 2 32 64 16 16")
        for busy in (1, 2)
    }


def test_cases_are_distinct_and_quick_ones_take_less() -> None:
    full, quick = cases(asked()), cases(asked(quick=True))
    assert len(set(full)) == len(full)
    assert expected_s(quick, asked(quick=True)) < expected_s(full, asked()) / 2
    assert expected_s(full, asked()) < 120
    assert {case.kind for case in cases(asked(ranks=1))} == {"product", "attention", "stream", "chain"}


def test_over_several_hosts_wires_are_measured_with_one_rank_of_each_too() -> None:
    """With fewer bytes than in one host."""
    far = [case for case in cases(asked(ranks=1, hosts=4)) if case.kind in ("collective", "overlap")]
    near = [case for case in cases(asked()) if case.kind in ("collective", "overlap")]
    assert {case.words[0] for case in far} == {case.words[0] for case in near}
    assert max(case.ints[0] for case in far) < max(case.ints[0] for case in near)


def test_hosts_are_those_that_a_launcher_started_ranks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (machine.hosts_started(), machine.launched(), machine.leading()) == (1, False, True)
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert (machine.hosts_started(), machine.launched(), machine.leading()) == (4, True, False)


@pytest.mark.parametrize("case", cases(asked(quick=True)), ids=str)
def test_a_case_is_read_as_it_is_written(case: Case) -> None:
    assert Case.parse(str(case)) == case
    one = sample(str(case))
    assert Sample.read(one.line()) == one


# Samples -------------------------------------------------------------------------------------------------------------


def test_samples_are_taken_up_wherever_writing_ended(tmp_path: Path) -> None:
    """Whole cases stay, whatever is cut; the file is whole again then."""
    file = tmp_path / "samples"
    lines = [sample("stream 64 @1").line(), *(sample("stream 64 @2", rank).line() for rank in (0, 1))]
    text = "".join(f"{line}\n" for line in (FIRST, *lines))
    for end in range(len(FIRST) + 1, len(text) + 1, 7):
        file.write_text(text[:end])
        found = taken_up(file, FIRST)
        ended = text[:end].count("\n") - 1
        assert [str(case) for case in found] == ["stream 64 @1", "stream 64 @2"][: (ended >= 1) + (ended >= 3)]
        assert file.read_text().endswith("\n")
        assert taken_up(file, FIRST) == found
    assert not list(tmp_path.glob("*.new"))


def test_a_case_of_several_hosts_has_a_line_of_every_rank() -> None:
    lines = [sample("stream 64 @1", rank).line() for rank in (0, 2, 4)]
    assert [str(case) for case in whole(lines, hosts=3)] == ["stream 64 @1"]
    assert whole(lines, hosts=4) == {}


def test_samples_of_another_machine_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    assert taken_up(file, FIRST) == {}
    with pytest.raises(SamplesOfAnotherMachine, match="remove the file"):
        taken_up(file, header(HERE, 4))
    with pytest.raises(SamplesOfAnotherMachine, match="hosts"):
        taken_up(file, header(HERE, 2, hosts=2))
    assert taken_up(file, FIRST) == {}


def test_compacting_keeps_each_case_once(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    found = whole([sample("stream 64 @1", seconds=seconds).line() for seconds in (1.0, 2.0)] + ["{"])
    compacted(file, FIRST, found)
    assert file.read_text() == f"{FIRST}\n{sample('stream 64 @1').line()}\n"
    assert missing([Case.parse("stream 64 @1"), Case.parse("stream 64 @2")], found) == (Case.parse("stream 64 @2"),)


# Fits ----------------------------------------------------------------------------------------------------------------


def made(*samples: Sample) -> Any:
    least = [sample(f"product fp32 1 2 2 2 @{busy}", rank, 1e-6) for busy in (1, 2) for rank in range(busy)]
    streams = [sample(f"stream 64 @{busy}", rank, 1e-6) for busy in (1, 2) for rank in range(busy)]
    found = whole(one.line() for one in (*least, *streams, *samples))
    return fitted(found, HERE, name="n", made="2026-11-30", forced=False, library="gloo", synchronous=True)


def test_disturbed_samples_are_left_out() -> None:
    one = Case.parse("product fp32 1 4 4 4 @1")
    mixed = Sample(case=one, rank=0, seconds=(1.0, 1.2, 9.0, 9.0, 9.0), cpu=(1.0, 0.95, 0.5, 0.6, 0.89))
    row = next(row for row in made(mixed).busy[0].products if row.shape == (1, 4, 4, 4))
    assert row.p50_s == pytest.approx(1.1)
    all_of_them = Sample(case=one, rank=0, seconds=(9.0, 8.0), cpu=(0.5, 0.6))
    row = next(row for row in made(all_of_them).busy[0].products if row.shape == (1, 4, 4, 4))
    assert (row.p50_s, row.p90_s) == (8.0, 8.0)


def test_a_collective_takes_as_long_as_its_slowest_rank() -> None:
    name = "collective all_reduce 1024 @2"
    one = Sample(case=Case.parse(name), rank=0, seconds=(1.0, 2.0, 5.0))
    other = Sample(case=Case.parse(name), rank=1, seconds=(3.0, 1.0, 4.0))
    (curve,) = made(one, other).curves
    assert (curve.points, curve.libraries, curve.ranks) == (((1024.0, pytest.approx(3.0)),), ("gloo",), 2)


def test_curves_are_of_the_hosts_that_were_measured() -> None:
    rows = [sample("product fp32 1 2 2 2 @1", rank, 1e-6) for rank in range(3)]
    rows += [sample("stream 64 @1", rank, 1e-6) for rank in range(3)]
    rows += [sample("collective p2p 64 @1", rank, 1e-3) for rank in range(3)]
    found = whole([one.line() for one in rows], hosts=3)
    made_of: Any = {"name": "n", "made": "2026-11-30", "forced": False, "library": "gloo", "synchronous": True}
    (curve,) = fitted(found, HERE, hosts=3, **made_of).curves
    assert (curve.kind, curve.hosts, curve.per_host) == ("p2p", 3, 1)


def test_launches_are_what_a_chain_takes_beyond_its_kernels() -> None:
    chain = sample("chain 10 @1", seconds=10 * CHAIN_LAUNCHES * 5e-6)
    assert made(chain).busy[0].launch_s == pytest.approx(4e-6)
    assert made().busy[0].launch_s == 0.0


def test_overlap_is_the_growth_of_compute_over_what_wires_take() -> None:
    times = {"growth": 1.0, "wires": 2.0}
    samples = [sample(f"overlap {what} 64 8 @2", rank, seconds) for what, seconds in times.items() for rank in (0, 1)]
    assert made(*samples).slowdown == pytest.approx(0.5)
    assert made().slowdown == 1.0


# The machine ---------------------------------------------------------------------------------------------------------


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_share", lambda: 0.5)
    with pytest.raises(MachineBusy, match="50% of the processors"):
        check_idle(force=False)
    assert check_idle(force=True)
    monkeypatch.setattr(machine, "busy_share", lambda: 0.01)
    assert not check_idle(force=False)


def test_the_share_of_busy_processors_is_a_share() -> None:
    assert 0 <= busy_share(0.1) <= 1
    assert HERE.cores == len(os.sched_getaffinity(0))
    assert HERE.processor


def test_nothing_is_measured_for_other_targets() -> None:
    with pytest.raises(MeasuringUnknown, match="torch-gloo"):
        measurer("jax-cpu")


# Whole ---------------------------------------------------------------------------------------------------------------

QUICK = ["calibrate", "--ranks", "2", "--quick", "--force"]


def test_the_cases_are_listed_and_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.json"
    assert main([*QUICK, "--plan-only", "--out", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:-1] == [str(case) for case in cases(asked(quick=True))]
    assert "about" in told[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
@pytest.mark.slow
def test_a_killed_calibration_is_taken_up_and_prices_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured before the end is not measured again. Of whole steps two kinds of plans."""
    monkeypatch.setattr(residuals, "PINS", ("dp={n}", "pp={n},microbatches=4,schedule=gpipe"))
    out = tmp_path / "p.json"
    samples = out.with_name("p.json.samples.jsonl")
    started = subprocess.Popen([sys.executable, "-m", "meshwright", *QUICK, "--out", str(out)], stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while time.monotonic() < until and (not samples.exists() or len(samples.read_bytes().splitlines()) < 10):
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert not out.exists()
    before = whole(samples.read_text().split("\n")[1:])
    assert len(before) >= 5
    assert main([*QUICK, "--out", str(out)]) == 0
    after = whole(samples.read_text().split("\n")[1:])
    assert {case: after[case] for case in before} == before
    assert {case for case in after if case.kind != "step"} == set(cases(asked(quick=True)))
    assert sum(case.kind == "step" for case in after) == 4
    found = load_measured(out)
    assert [one.ranks for one in found.busy] == [1, 2]
    assert {curve.kind for curve in found.curves} >= {"all_reduce", "all_gather", "p2p"}
    capsys.readouterr()
    words = ["estimate", "examples/llama.py:tiny", "--cluster", "cpu:2", "--global-batch", "4", "--seq", "16"]
    assert main([*words, "--fix", "dp=2", "--target", "torch-gloo", "--profile", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert any("profile p, measured" in note for note in told["notes"])


@pytest.mark.e2e
def test_ranks_that_die_are_told_of(tmp_path: Path) -> None:
    """Of a case that no rank can make."""
    with pytest.raises(RanksFailed, match="KeyError"):
        measurer("torch-gloo").measure(
            [Case.parse("product int3 1 2 2 2 @1")],
            tmp_path / "samples",
            ranks=1,
            threads=1,
            budget_s=0.01,
            limit_s=60,
            told=lambda case: None,
        )
