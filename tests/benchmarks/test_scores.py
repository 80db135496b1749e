"""The figures, on cases small enough to work out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.models import read_models
from benchmarks.reading import read_row
from benchmarks.runs import Run
from benchmarks.scores import (
    Scored,
    quantile,
    ranks,
    replicate_errors,
    spearman,
    statistics,
    suspects,
)
from tests.benchmarks.rows import MODEL, ROW, table


@pytest.fixture
def plain(tmp_path: Path) -> Run:
    run = read_row(0, ROW, read_models(table(tmp_path / "models.csv", [MODEL])))
    assert isinstance(run, Run)
    return run


def scored(run: Run, measured: float | None, predicted: float, **changes: object) -> Scored:
    given_ = replace(run, step_time_s=measured, peak_bytes=8e9, **changes)  # type: ignore[arg-type]
    return Scored(run=given_, step_time_s=predicted, low_s=predicted, high_s=predicted, peak_bytes=10e9, fits=True)


def test_errors(plain: Run) -> None:
    rows = [
        scored(plain, 1.0, 1.1, source="a"),
        scored(plain, 2.0, 1.4, source="a"),
        scored(plain, 4.0, 8.0, source="b"),
        replace(scored(plain, None, 1.0, source="c", outcome="oom"), fits=True),
        replace(scored(plain, 1.0, 1.0, source="d"), fits=False),
    ]
    found = statistics(rows)
    assert found.timed == 4
    assert found.mape == pytest.approx((0.1 + 0.3 + 1.0 + 0.0) / 4)
    assert found.macro_mape == pytest.approx((0.2 + 1.0 + 0.0) / 3)
    assert found.bias == pytest.approx((0.1 - 0.3 + 1.0 + 0.0) / 4)
    assert found.p50 == pytest.approx(0.2)
    assert found.p90 == pytest.approx(0.3 + 0.7 * 0.7)
    assert found.memory_mape == pytest.approx(0.25)
    assert (found.false_fits, found.false_ooms) == (1, 1)


def test_nothing_to_score() -> None:
    found = statistics([])
    assert found.timed == found.pairs == 0
    assert found.mape is found.p90 is found.rank_correlation is found.top1_regret is None


def test_orders(plain: Run) -> None:
    """Times 10, 10.2, 20, 40 s: all pairs but the first are clear; we swap the last two."""
    settings = (("none", 1), ("a", 2), ("b", 4), ("c", 8))
    times = ((10.0, 5.0), (10.2, 4.0), (20.0, 9.0), (40.0, 8.0))
    rows = [
        scored(plain, measured, predicted, options=frozenset({name}))
        for (name, _), (measured, predicted) in zip(settings, times, strict=True)
    ]
    found = statistics(rows)
    assert found.pairs == 5
    assert found.ordered == pytest.approx(4 / 5)
    assert found.top1_regret == pytest.approx(0.02)
    assert found.rank_correlation == pytest.approx(1 - 6 * 4 / (4 * 15))


def test_ties_count_half_and_share_the_pick(plain: Run) -> None:
    rows = [scored(plain, time, 3.0, options=frozenset({str(time)})) for time in (1.0, 2.0)]
    found = statistics(rows)
    assert found.ordered == 0.5
    assert found.top1_regret == pytest.approx(0.5)


def test_rows_of_other_work_are_not_compared(plain: Run) -> None:
    rows = [scored(plain, 1.0, 2.0), scored(plain, 2.0, 1.0, source="other"), scored(plain, 3.0, 1.0, seq=4096)]
    assert statistics(rows).pairs == 0


def test_replicates_are_not_compared_but_bound_the_error(plain: Run) -> None:
    rows = [scored(plain, time, 1.0) for time in (1.0, 1.25, 2.0)]
    found = statistics(rows)
    assert found.pairs == 0
    assert found.top1_regret is None
    assert found.replicate_mape == pytest.approx((0.25 + 0.0 + 0.375) / 3)
    assert replicate_errors([rows[0].run]) == []


def test_suspects(plain: Run) -> None:
    rows = [scored(plain, 1.0, 1.0 + index / 100, row=index, seq=512 + index) for index in range(9)]
    assert suspects(rows) == []
    odd = scored(plain, 1.0, 2.0, row=9, seq=1)
    assert [row.run.row for row, _ in suspects([*rows, odd])] == [9]
    like = [scored(plain, time, time, row=20 + index) for index, time in enumerate((1.0, 1.01, 1.3))]
    ((row, why),) = suspects(like)
    assert row.run.row == 22
    assert "replicates" in why


def test_an_interval_holds_its_price(plain: Run) -> None:
    with pytest.raises(ValueError, match="not in"):
        Scored(run=plain, step_time_s=3.0, low_s=1.0, high_s=2.0, peak_bytes=1.0, fits=True)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 2**32))
def test_ranks(values: list[int], seed: int) -> None:
    found = ranks([float(value) for value in values])
    assert sum(found) == pytest.approx(len(values) * (len(values) + 1) / 2)
    placed = list(zip(values, found, strict=True))
    assert all((first < second) == (one < other) for one, first in placed for other, second in placed)
    shuffled = values.copy()
    random.Random(seed).shuffle(shuffled)
    assert sorted(ranks([float(value) for value in shuffled])) == sorted(found)


def test_correlation() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 400.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert spearman([1.0, 1.0], [1.0, 2.0]) is None
    assert quantile([1.0, 2.0], 0.25) == 1.25
    assert quantile([], 0.5) is None
