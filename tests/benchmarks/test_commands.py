"""The commands on tables that nobody has seen: new models, missing columns, bad cells; under the real price."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import b200_single_node, kernels, kernels_nccl, published_runs
from benchmarks.left_out import folds_of, leave_out
from benchmarks.models import read_models
from benchmarks.price import Pricer, _program, degrees_of, reserved_bytes
from benchmarks.published_runs import Scores, run_command
from benchmarks.reading import read_row
from benchmarks.runs import Run
from benchmarks.scores import Priced
from benchmarks.scoring import read_and_score
from meshwright.cost_models.memory.peak import allocated_bytes
from meshwright.cost_models.profile import Profile, published
from tests.benchmarks.rows import MODEL, ROW, table

TINY = MODEL | {"model": "tiny", "layers": "4", "hidden": "256", "ffn_hidden": "512", "heads": "4"}
MODELS = [MODEL, TINY, {"model": "no_width", "layers": "4"}]
ROWS = [
    ROW | {"peak_mem_gb": "3", "mem_kind": "torch_allocated"},
    ROW | {"model": "tiny", "source": "log", "pp": "1", "tp": "1", "dp": "16", "recompute": ""},
    ROW | {"source": "log", "zero": "", "framework": "never_seen", "interconnect": ""},
    ROW | {"model": "unheard_of", "source": "log"},
    ROW | {"model": "no_width", "source": "log"},
    ROW | {"gpu": "XPU9000"},
    ROW | {"gbs": "sixty-four"},
    ROW | {"tp": "2.5"},
    ROW | {"schedule": "sideways"},
    ROW | {"step_time_best_s": "", "step_time_s": "nan"},
    ROW | {"tp": "3", "dp": ""},
    ROW | {"pp": "8", "dp": "1", "vp": "4", "schedule": "interleaved"},
]
REASONS = (
    "model table",
    "lacks",
    "XPU9000",
    "global batch",
    "tp is 2.5",
    "sideways",
    "no step time",
    "does not divide",
    "MW",
)

OVERALL = {
    *("rows", "priced", "skipped", "mape", "macro_mape", "bias", "p50", "p90", "rank_correlation", "top1_regret"),
    *("memory_mape", "false_fits", "false_ooms"),
}
PART = {"rows", "priced", "skipped", "mape", "bias", "p50", "p90"}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    runs, models = table(tmp_path / "runs.csv", ROWS), table(tmp_path / "models.csv", MODELS)
    return ["--runs", str(runs), "--models", str(models)]


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_published_runs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert published_runs.main([*arguments, "--json", "--processes", "1"]) == 0
    found = printed(capsys)
    assert set(found["overall"]) >= OVERALL
    assert all(set(part) >= OVERALL for part in found["by_source"].values())
    assert [row["row"] for row in found["rows"]] == list(range(len(ROWS)))
    assert found["overall"]["priced"] == 3
    skipped = [row["skipped"] for row in found["rows"] if row["skipped"]]
    assert len(skipped) == len(ROWS) - 3
    assert all(any(reason in why for why in skipped) for reason in REASONS)
    first, blank, _ = found["rows"][:3]
    assert first["memory_counts"] == "allocated"
    assert found["memory"]["paper"]["rows"] == 1
    assert blank["predicted_low_s"] == blank["predicted_s"] < blank["predicted_high_s"]
    assert published_runs.main([*arguments, "--json", "--processes", "2"]) == 0
    assert printed(capsys) == found
    assert published_runs.main(arguments) == 0
    assert "memory of paper" in capsys.readouterr().out


def test_tables_that_lack_columns_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = table(tmp_path / "runs.csv", [{"model": "tiny"}, {"model": "tiny", "gpu": "H100-80G"}])
    models = table(tmp_path / "models.csv", [{"model": "tiny"}])
    assert published_runs.main(["--runs", str(runs), "--models", str(models), "--json"]) == 0
    found = printed(capsys)
    assert (found["overall"]["priced"], found["overall"]["mape"], found["overall"]["skipped"]) == (0, None, 2)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_mistake_of_ours_is_not_a_skipped_row(arguments: list[str], processes: str) -> None:
    def broken(run: Run) -> Priced:
        raise ZeroDivisionError(run.model.name)

    with pytest.raises(ZeroDivisionError):
        run_command([*arguments, "--processes", processes], broken)


def test_leave_out(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[set[str]] = []

    def fit(rows: Sequence[Run], start: Profile) -> Profile:
        seen.append({run.source for run in rows})
        return replace(start, step=replace(start.step, straggling=start.step.straggling + len(seen)))

    command = [*arguments, "--leave-out", "source", "device", "--processes", "1"]
    assert run_command([*command, "--json"], Pricer(), lambda _runs, _processes: fit) == 0
    found = printed(capsys)
    assert sorted(map(sorted, seen)) == [["log"], ["paper"]]
    assert set(found["left_out"]) == {"source"}, "all rows are of one device"
    left = found["left_out"]["source"]
    assert {"rows", "mape", "macro_mape", "bias", "p50", "p90", "coverage", "width", "folds", "splits"} == set(left)
    assert set(left["folds"]) == {"paper", "log"}
    assert left["bias"] > found["overall"]["bias"]
    assert run_command(command, Pricer(), lambda _runs, _processes: fit) == 0
    assert "left out, by kind" in capsys.readouterr().out


def test_programs_are_built_once_for_all_profiles(arguments: list[str]) -> None:
    scored = Scores.of(read_and_score(Path(arguments[1]), Path(arguments[3]), Pricer())).scored
    built = _program.cache_info().misses
    folds = folds_of(["source"], [row.run for row in scored])
    again, forked = (
        leave_out(folds, lambda rows, start: start, published(), Pricer, processes=processes) for processes in (1, 2)
    )
    assert _program.cache_info().misses == built
    for rows in (again, forked):
        assert {row.row.run.row: row.row.step_time_s for row in rows} == {
            row.run.row: row.step_time_s for row in scored if row.run.step_time_s is not None
        }


def run_of(tmp_path: Path, **cells: str) -> Run:
    row = read_row(0, ROW | cells, read_models(table(tmp_path / "models.csv", MODELS)))
    assert isinstance(row, Run), row
    return row


def test_micro_batches_of_one_stage_do_not_pile_up(tmp_path: Path) -> None:
    price, one = Pricer(), {"pp": "1", "tp": "2", "dp": "8"}
    few, many = (price(run_of(tmp_path, **one, gbs=gbs)) for gbs in ("16", "128"))
    tokens = (128 - 16) // 8 // 2 * run_of(tmp_path, **one, gbs="16").seq  # and labels: there for the whole step
    assert many.peak_bytes - few.peak_bytes == pytest.approx(tokens * 2 * 8 * 1.02)  # with the allocator's share
    assert few.step_time_s < many.step_time_s


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("GiB_max_over_ranks", "reserved"),
        ("GB_as_reported", "allocated"),
        ("as_reported", "device"),
        ("torch_reserved", "reserved"),
        ("", "device"),
    ],
)
def test_what_a_figure_of_memory_counts(tmp_path: Path, kind: str, counts: str) -> None:
    run = run_of(tmp_path, peak_mem_gb="10", mem_kind=kind)
    assert run.memory_meaning == counts
    priced = Priced(step_time_s=1.0, peak_bytes=3.0, fits=True, reserved_bytes=2.0, allocated_bytes=1.0)
    assert priced.comparable_bytes(counts) == {"device": 3.0, "reserved": 2.0, "allocated": 1.0}[counts]


def test_allocated_is_within_reserved_is_within_all(tmp_path: Path) -> None:
    price = Pricer()
    run = run_of(tmp_path)
    priced = price(run)
    assert 0 < priced.allocated_bytes < priced.reserved_bytes < priced.peak_bytes
    stages = price.predicted(run).stages
    assert priced.allocated_bytes == max(allocated_bytes(stage.memory) for stage in stages)
    assert priced.reserved_bytes == max(reserved_bytes(stage.memory) for stage in stages)


@pytest.mark.parametrize(
    ("mfu", "hfu", "layers"), [("30", "40", 8), ("60", "70", 4), ("30", "50", 8), ("", "40", 0), ("50", "40", 0)]
)
def test_utilisations_say_how_many_layers_run_twice(tmp_path: Path, mfu: str, hfu: str, layers: int) -> None:
    cells = {"pp": "1", "dp": "8", "recompute": "selective_layer", "mfu_pct": mfu, "hfu_pct": hfu}
    run = run_of(tmp_path, **cells)
    assert (run.recompute.kind, run.recompute.layers) == ("selective_layer", layers)


def test_equal_utilisations_mean_that_nothing_runs_twice(tmp_path: Path) -> None:
    assert run_of(tmp_path, recompute="selective_layer", mfu_pct="40", hfu_pct="40").recompute.kind == "none"


def test_activations_on_the_host_free_the_device(tmp_path: Path) -> None:
    """By the one mechanism that there is: first layers of every stage, or all of them."""
    plain, some, all_ = (
        run_of(tmp_path, **cells) for cells in ({}, {"offload": "cpu_offload_layers:2"}, {"recompute": "remat:custom"})
    )
    assert [degrees_of(run).offload for run in (plain, some, all_)] == ["none", "activations:2", "activations"]
    peaks = [Pricer()(run).peak_bytes for run in (plain, some)]
    assert peaks[1] < peaks[0]
    assert dict(Pricer().predicted(some).traffic)["host"] > 0


def test_b200_single_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {
        "case": "one",
        "model": "tiny",
        "framework": "megatron_core",
        "gpu": "B200",
        "precision": "bf16",
        "n_gpus": "8",
        "tp": "2",
        "pp": "1",
        "cp": "1",
        "ep": "1",
        "dp": "4",
        "dist_optimizer": "1",
        "n_layers": "2",
        "seq_len": "1024",
        "mbs": "1",
        "n_microbatches": "2",
        "step_time_ms": "10",
        "alloc_gib": "1",
    }
    bad = [{"gpu": "B9000"}, {"tp": "two"}, {"model": "unheard_of"}, {"alloc_gib": "", "step_time_ms": ""}]
    runs = table(tmp_path / "runs.csv", [good, *(good | change for change in bad)])
    models = table(tmp_path / "models.csv", MODELS)
    assert b200_single_node.main(["--runs", str(runs), "--models", str(models), "--json"]) == 0
    found = printed(capsys)
    whole = found["overall"]
    assert {"step_mape", "step_max", "memory_mape", "memory_max"} <= set(whole)
    assert (whole["rows"], whole["priced"], whole["skipped"]) == (5, 2, 3)
    first, last = found["rows"][0], found["rows"][-1]
    assert first["predicted_s"] == last["predicted_s"] > 0
    assert whole["step_mape"] == abs(first["step_error"])
    assert last["step_error"] is None
    assert b200_single_node.main(["--runs", str(runs), "--models", str(models)]) == 0
    assert "ms a step" in capsys.readouterr().out


def test_kernels_nccl_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"source": "s", "collective": "all_gather", "gpu": "H100-80G", "n_nodes": "1", "gpus_per_node": "8"}
    rows = [good | {"dtype": "half", "size_kib": str(2**k), "time_us": str(10 + 2**k / 400)} for k in range(8, 16)]
    spike = rows[2] | {"time_us": "1000"}
    bad = [good | {"size_kib": "many", "time_us": "1"}, good | {"size_kib": "1"}, {"collective": "all_gather"}]
    path = table(tmp_path / "nccl.csv", [*rows[:2], spike, *rows[3:], *bad])
    found = kernels_nccl.score(path)
    assert set(found) >= PART | {"groups", "corrupt"}
    assert found["rows"] == 11
    assert found["priced"] == 7
    assert [row["size_kib"] for row in found["corrupt"]] == [1024]
    assert found["skipped"] == {
        "corrupt": 1,
        "size_kib is 'many'": 1,
        "time_us is ''": 1,
        "no collective, or no gpu": 1,
    }
    empty = [table(tmp_path / f"{name}.csv", [{"source": "nothing"}]) for name in kernels.PARTS if name != "nccl"]
    options = [word for path in empty for word in (f"--{path.stem}", str(path))]
    assert kernels.main([*options, "--nccl", str(path), "--json"]) == 0
    parts = printed(capsys)
    assert all(set(part) >= PART for part in parts.values())
    assert kernels.main([*options, "--nccl", str(path)]) == 0
    assert "corrupt: all_gather H100-80G" in capsys.readouterr().out
