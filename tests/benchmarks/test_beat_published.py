"""Published configurations beside what the search finds: which are asked about, what is said, and what is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import beat_published
from benchmarks.beat_published import DATA, runs_in, some_order_fits, target_of_run
from benchmarks.models import read_models
from benchmarks.price import Pricer
from benchmarks.reading import read_configurations
from benchmarks.runs import Run
from tests.benchmarks.rows import MODEL, ROW, table

UNTIMED = {"step_time_best_s": "", "step_time_s": ""}
ROWS = [
    ROW,
    ROW | UNTIMED | {"tp": "1", "dp": "8"},
    ROW | {"seq_len": "65536", "gbs": "512", "mbs": "64", "zero": "none"},
    ROW | UNTIMED | {"outcome": "oom"},
    ROW | {"tp": "", "pp": "", "dp": ""},
    ROW | {"gbs": ""},
]


def test_rows_are_asked_about_once_and_known_answers_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = ["--runs", str(table(tmp_path / "runs.csv", ROWS)), "--models", str(table(tmp_path / "m.csv", [MODEL]))]
    done = tmp_path / "done.jsonl"
    arguments = [*tables, "--processes", "1", "--limit-s", "20", "--done", str(done), "--json"]
    assert beat_published.main(arguments) == 1  # 64 sequences of 65,536 tokens do not fit
    found = json.loads(capsys.readouterr().out)
    first, second, large = sorted(found["rows"], key=lambda row: row["row"])
    counts = found["counts"]
    assert (counts["won"], counts["tied"], counts["lost"]) == (2, 0, 1)
    assert 0 < counts["least_gain"] <= counts["median_gain"]
    assert found["by_source"] == {"paper": counts}
    assert found["unanswered"] == []
    assert sum(found["left_out"].values()) == len(ROWS) - 3
    assert (first["found"], first["taken_s"]) == (second["found"], second["taken_s"])
    assert first["published_s"] != second["published_s"]
    assert first["lower_s"] <= first["found_s"] < min(first["published_s"], second["published_s"])
    assert (large["outcome"], large["published_s"]) == ("lost", 0.0)
    before = done.read_text()
    assert beat_published.main(arguments) == 1
    assert json.loads(capsys.readouterr().out) == found
    assert done.read_text() == before


def test_the_published_table() -> None:
    """Whatever was measured; a run that ended for want of memory is nothing to beat, nor one that computes again what
    has no name here. On TPUs what JAX does is."""
    runs = runs_in()
    assert len(runs) == 700
    assert not [run for run in runs if run.outcome == "oom"]
    assert {target_of_run(run).target for run in runs if run.device.name.startswith("TPU")} == {"jax-tpu"}
    herd = [run for run in runs if run.source == "llama3_herd_2407.21783_table4"]
    assert [(run.cp, run.dp, run.seq, run.measured, run.own_schedule) for run in herd] == [
        (1, 64, 8192, False, True),
        (1, 128, 8192, False, True),
        (16, 8, 131072, False, True),
    ]


def test_a_schedule_of_their_own_fits_if_any_order_does() -> None:
    """Llama-3.1-405B on 8,192 GPUs (arXiv 2407.21783, section 3.3.2): interleaved stages with as many micro-batches in
    flight as there is room for; Megatron's order of them has some more. Parameters stay gathered, gradients add up."""
    rows = read_configurations(DATA / "training_runs.csv", read_models(DATA / "models.csv"))
    run = next(row for row in rows if isinstance(row, Run) and row.table == "table4" and row.devices == 8192)
    pricer = Pricer()
    found = pricer.predicted(run)
    assert not found.fits
    at_430_tflops_s = 6 * 405.9e9 * 2048 * 8192 / (8192 * 430e12)  # as published
    assert 0.9 < found.step_time_s / at_430_tflops_s < 1.1
    assert some_order_fits(run, pricer)
