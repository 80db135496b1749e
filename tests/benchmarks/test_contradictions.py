"""Rows that contradict each other, against brute force over the times that a function could give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.contradictions import CONTRADICTION, best_time, contradicted, floor_mape, summary
from benchmarks.models import read_models
from benchmarks.reading import read_row
from benchmarks.runs import Run
from benchmarks.scores import Scored
from tests.benchmarks.rows import MODEL, ROW, table

TIMES = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8)


@pytest.fixture
def plain(tmp_path: Path) -> Run:
    run = read_row(0, ROW, read_models(table(tmp_path / "models.csv", [MODEL])))
    assert isinstance(run, Run)
    return run


def timed(plain: Run, times: list[float]) -> list[Run]:
    return [replace(plain, row=row, step_time_s=time) for row, time in enumerate(times)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(times=TIMES)
def test_the_best_time_is_the_best_of_all(plain: Run, times: list[float]) -> None:
    """The sum of relative errors is piecewise linear, so that its least value is at one of the times."""
    least = min(sum(abs(one - time) / time for time in times) for one in times)
    best = best_time(timed(plain, times))
    assert sum(abs(best - time) / time for time in times) == pytest.approx(least)
    assert floor_mape(timed(plain, times), lambda run: 0) == pytest.approx(least / len(times))
    assert floor_mape(timed(plain, times), lambda run: run.row) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(times=TIMES)
def test_rows_contradict_each_other_by_pairs(plain: Run, times: list[float]) -> None:
    runs = timed(plain, times)
    expected = {
        row for row, one in enumerate(times) if any(max(one / other, other / one) > CONTRADICTION for other in times)
    }
    assert {run.row for group in contradicted(runs) for run in group} == expected


def test_unlike_configurations_do_not(plain: Run) -> None:
    runs = [replace(plain, step_time_s=1.0), replace(plain, row=1, step_time_s=9.0, seq=4096)]
    assert contradicted(runs) == []
    other_software = replace(plain, row=2, step_time_s=9.0, table="26.04_pretrain", options=frozenset(("a2a_overlap",)))
    assert [[run.row for run in group] for group in contradicted([*runs, other_software])] == [[0, 2]]


def test_the_summary(plain: Run) -> None:
    predicted = (1.1, 2.0, 3.0)
    runs = [*timed(plain, [1.0, 4.0]), replace(plain, row=2, step_time_s=2.0, global_batch=128)]
    rows = [
        Scored(run=run, step_time_s=time, low_s=time, high_s=time, peak_bytes=0.0, fits=True)
        for run, time in zip(runs, predicted, strict=True)
    ]
    found = summary(rows)
    assert found["contradicted"] == [0, 1]
    assert found["mape"] == pytest.approx((0.1 + 0.5 + 0.5) / 3)
    assert found["mape_without"] == pytest.approx(0.5)
    assert found["floor_mape"] == pytest.approx(0.75 / 3)
    assert found["stated_floor"] == pytest.approx(0.75 / 3)
    assert summary([])["mape"] is None
