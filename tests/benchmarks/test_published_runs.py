"""The whole benchmark under prices whose scores are known beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.published_runs import Scores, run_command
from benchmarks.runs import Run
from benchmarks.scores import Priced
from benchmarks.scoring import Progress, read_and_score
from meshwright.ir.errors import DeviceUnknown
from tests.benchmarks.rows import MODEL, ROW, table

ROWS = [
    ROW,
    ROW | {"source": "log", "recompute": "", "peak_mem_gb": "20"},
    ROW | {"source": "log", "gbs": "63"},
    ROW | {"source": "log", "gpu": "A100-80G"},
    ROW | {"source": "log", "zero": ""},
]
FACTORS = {"none": 1.0, "selective": 1.1, "full": 1.4}


def price(run: Run) -> Priced:
    """2 s, and more if things are computed twice; fits from ZeRO-1 on; knows no A100."""
    if run.device.name.startswith("A100"):
        raise DeviceUnknown(place="a test", cause="it is an A100", fix="use another")
    stage = run.zero.stage
    return Priced(step_time_s=2.0 * FACTORS[run.recompute.kind] + stage, peak_bytes=10e9, fits=stage > 0)


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    return table(tmp_path / "runs.csv", ROWS), table(tmp_path / "models.csv", [MODEL])


def scores(tables: tuple[Path, Path], progress: Progress = lambda done, of: None) -> Scores:
    return Scores.of(read_and_score(*tables, price, progress=progress))


def test_scores(tables: tuple[Path, Path]) -> None:
    told: list[tuple[int, int]] = []
    found = scores(tables, lambda done, of: told.append((done, of))).to_json()
    assert told == [(5, 5)]
    overall = found["overall"]
    assert (overall["rows"], overall["priced"], overall["skipped"], overall["skipped_timed"]) == (5, 3, 2, 2)
    assert found["by_source"]["log"]["rows"] == 4
    assert overall["mape"] == overall["bias"] == pytest.approx(0.2)
    plain, blank, uneven, unpriced, open_zero = found["rows"]
    assert (plain["predicted_s"], plain["predicted_low_s"], plain["predicted_high_s"]) == (3.0, 3.0, 3.0)
    assert (blank["predicted_s"], blank["predicted_low_s"], blank["predicted_high_s"]) == pytest.approx((3.0, 3.0, 3.8))
    assert blank["memory_error"] == pytest.approx(-0.5)
    assert "does not divide" in uneven["skipped"]
    assert "it is an A100" in unpriced["skipped"]
    assert open_zero["predicted_s"] == 3.0
    assert found["splits"]["recompute_blank"]["timed"] == 1
    assert found["splits"]["moe"]["mape"] is None


def test_a_blank_recomputation_is_the_least_that_fits(tmp_path: Path) -> None:
    tables = table(tmp_path / "runs.csv", [ROW | {"recompute": ""}]), table(tmp_path / "models.csv", [MODEL])

    def recomputed(run: Run) -> Priced:
        kind = run.recompute.kind
        return Priced(step_time_s=2.0 * FACTORS[kind], peak_bytes=FACTORS[kind], fits=kind == fitting)

    for fitting in ("none", "selective", "full"):
        (row,) = Scores.of(read_and_score(*tables, recomputed)).scored
        assert row.step_time_s == pytest.approx(2.0 * FACTORS[fitting])
        assert row.peak_bytes == FACTORS[fitting]
        assert (row.low_s, row.high_s) == pytest.approx((2.0 * FACTORS["none"], 2.0 * FACTORS["full"]))


def test_a_run_that_never_fits_is_priced_at_the_highest_stage(tmp_path: Path) -> None:
    tables = table(tmp_path / "runs.csv", [ROW | {"zero": ""}]), table(tmp_path / "models.csv", [MODEL])

    def never(run: Run) -> Priced:
        return Priced(step_time_s=1.0 + run.zero.stage, peak_bytes=1.0, fits=False)

    (row,) = Scores.of(read_and_score(*tables, never)).scored
    assert (row.step_time_s, row.fits) == (2.0, False)


def test_command(tables: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runs", str(tables[0]), "--models", str(tables[1])]
    assert run_command([*arguments, "--json"], price) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["overall"]["priced"] == 3
    assert "5 of 5" in printed.err
    assert run_command(arguments, price) == 0
    assert "paper" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        run_command(["--runs", "nowhere.csv"], price)
    assert stopped.value.code == 2
