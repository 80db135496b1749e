"""Widths of intervals from residuals that are known: each holds its share, and no more than it must."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, hypot
from pathlib import Path

import pytest

from benchmarks import fit_interval
from benchmarks.fit_interval import HELD, KINDS, WIDENINGS, crossed, fitted, least, report, weights, write
from benchmarks.left_out import KINDS as FOLDS
from benchmarks.left_out import LeftOut, case_of
from benchmarks.models import read_models
from benchmarks.reading import read_row
from benchmarks.runs import Run
from benchmarks.scores import Scored
from meshwright.cost_models.intervals.seen import UNSEEN, Seen
from meshwright.cost_models.intervals.widths import PREFIX, Widths
from meshwright.cost_models.profile import step_table
from tests.benchmarks.rows import MODEL, ROW, table


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = read_row(0, ROW, read_models(table(tmp_path / "models.csv", [MODEL])))
    assert isinstance(found, Run)
    return found


def rows(run: Run, kind: str, fold: str, lacks: tuple[str, ...], sizes: list[float], first: int) -> list[LeftOut]:
    """Runs that took longer than predicted by these factors, in their logarithm; every second one less."""
    assert run.step_time_s is not None
    found = []
    for index, size in enumerate(sizes):
        at = run.step_time_s * exp(size if index % 2 else -size)
        row = Scored(
            run=replace(run, row=first + index), step_time_s=at, low_s=at, high_s=at, peak_bytes=1.0, fits=True
        )
        found.append(LeftOut(kind=kind, fold=fold, row=row, case=case_of(run), lacks=lacks, half=0.1))
    return found


def all_rows(run: Run) -> list[LeftOut]:
    return [
        *rows(run, "source", "a", (), [0.01 * n for n in range(1, 6)], 0),
        *rows(run, "source", "b", (), [0.01 * n for n in range(6, 11)], 10),
        *rows(run, "source", "c", ("device", "precision"), [9.0], 20),
        *rows(run, "precision", "d", ("precision",), [0.02, 0.04, 0.06, 0.17, 0.3], 30),
        *rows(run, "stack", "e", ("stack",), [0.01] * 5, 40),
        *rows(run, "stack", "f", ("precision", "device", "stack"), [9.0], 50),
        *rows(run, "device", "g", ("precision", "device"), [0.0, 0.1, 0.2, 0.4, 0.9], 60),
    ]


def test_widths_hold_their_share_and_no_more(run: Run) -> None:
    found = fitted(all_rows(run))
    assert found.widths.dense == pytest.approx(0.08)
    assert hypot(found.widths.dense, found.widths.precision) == pytest.approx(0.17)
    assert found.widths.stack == 0.0
    assert hypot(found.widths.dense, found.widths.precision, found.widths.device) == pytest.approx(0.4)
    assert found.runs == {"dense": 10, "experts": 0, "precision": 5, "device": 5, "stack": 5, "ranks": 0}
    assert all(share >= HELD for share in found.holds.values())
    assert "dense" in report(found, all_rows(run))


def test_least() -> None:
    assert least([5.0, 1.0, 4.0, 2.0, 3.0], [1.0] * 5) == 4.0
    assert least([5.0, 1.0, 4.0, 2.0, 3.0], [1.1, 1.0, 1.0, 1.0, 1.0]) == 5.0
    assert least([2.0], [0.3]) == 2.0
    assert least([], []) == 0.0


def test_runs_count_less_the_more_of_their_fold_there_are(run: Run) -> None:
    some = [*rows(run, "source", "a", (), [0.1] * 4, 0), *rows(run, "source", "b", (), [0.2], 4)]
    assert weights(some) == [0.5] * 4 + [1.0]
    assert fitted(some).widths.dense == pytest.approx(0.2)


def test_a_fold_is_held_by_the_widths_of_others(run: Run) -> None:
    """Runs of a fold teach nothing about it, in whatever kind they stand."""
    assert crossed("source", all_rows(run))["a"] == (5, 1.0)
    assert crossed("source", all_rows(run))["b"] == (5, 0.0)
    assert crossed("precision", all_rows(run))["d"] == (5, pytest.approx(0.6))


def test_every_kind_of_what_is_unseen_has_its_folds() -> None:
    assert set(WIDENINGS) == set(UNSEEN)
    assert set(KINDS) <= set(FOLDS)


def test_what_is_written_is_what_is_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text(json.dumps(step_table()))
    found, seen = fitted(all_rows(run)), Seen.of([case_of(run)])
    write(found, seen, path)
    whole = json.loads(path.read_text())
    assert Seen.read(whole["seen"]) == seen
    assert Widths.read(whole).dense == pytest.approx(found.widths.dense, rel=0.01)
    assert {name: one for name, one in whole.items() if not name.startswith((PREFIX, "seen"))} == {
        name: one for name, one in step_table().items() if not name.startswith((PREFIX, "seen"))
    }
    assert whole["interval_precision"]["rows"] == 5
    assert "80% of 5 runs; precision in turn" in whole["interval_precision"]["how"]
    assert whole["interval_dense"]["date"] == step_table()["interval_dense"]["date"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the real price and fit; the profile is a copy."""
    monkeypatch.setattr(fit_interval, "PROFILES", tmp_path)
    path = tmp_path / "step.json"
    path.write_text(json.dumps(step_table()))
    plain = ROW | {"pp": "1", "tp": "1", "dp": "16"}
    runs = table(tmp_path / "runs.csv", [plain, plain | {"source": "log", "gpu": "A100-80G"}, plain | {"gbs": "odd"}])
    given = ["--runs", str(runs), "--models", str(table(tmp_path / "models.csv", [MODEL])), "--processes", "1"]
    assert fit_interval.main(given) == 0
    assert json.loads(path.read_text()) == step_table()
    assert "source:" in capsys.readouterr().out
    assert fit_interval.main([*given, "--write"]) == 0
    seen = json.loads(path.read_text())["seen"]
    assert seen == {
        "precisions": {"ampere": ["bf16"], "hopper": ["bf16"]},
        "stacks": [["fused", "flash3"]],
        "ranks": 16,
    }
