"""Rows that we believe wrong: which, and what speaks against what they state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.doubts import DOUBTS, believed, doubted
from benchmarks.models import read_models
from benchmarks.published_runs import DATA
from benchmarks.reading import read_runs
from benchmarks.runs import Run

MODELS = read_models(DATA / "models.csv")


def published() -> list[Run]:
    return [row for row in read_runs(DATA / "training_runs.csv", MODELS) if isinstance(row, Run)]


SLOWED = range(543, 549)
"""Rows of one study, all with tp 2."""


def test_every_doubt_is_about_one_row_or_one_study() -> None:
    runs = published()
    found = doubted(runs)
    assert sorted(run.row for run, _ in found) == [78, 114, 120, 121, *(run.row for run in runs if run.row in SLOWED)]
    assert {why for _, why in found} == {doubt.why for doubt in DOUBTS}
    assert max(Counter(why for run, why in found if run.row not in SLOWED).values()) == 1
    assert [run.row for run in runs if not believed(run)] == [run.row for run, _ in found]


def test_a_row_that_does_not_state_it_is_believed() -> None:
    """What is doubted is the statement, not the table."""
    for run, _ in doubted(published()):
        alone = {"tp": 1, "dp": run.dp * run.tp, "global_batch": run.global_batch * run.tp}
        changed = replace(run, options=frozenset(), ep=1, etp=1, micro_batch=1, **(alone if run.pp == 1 else {}))
        assert believed(changed), run.row


def test_the_evidence_of_the_doubts() -> None:
    """Tokens per second and device of the rows that the doubts compare."""
    rows = {run.row: run for run in published()}

    def rate(row: int) -> float:
        run = rows[row]
        assert run.step_time_s is not None
        return run.global_batch * run.seq / run.devices / run.step_time_s

    assert rows[90].ep == 64
    assert rate(114) == pytest.approx(rate(90), rel=0.03)
    assert min(rate(row) for row in (34, 53, 71)) > 1.5 * rate(114)
    assert rows[120].micro_batches == 8
    assert rate(120) == pytest.approx(rate(91), rel=0.07)
    assert rows[91].micro_batches == 80
    assert (rows[96].micro_batch, rows[96].vp) == (1, 12)
    assert rate(121) == pytest.approx(rate(96), rel=0.04)
    assert rate(78) == pytest.approx(rate(98), rel=0.02)
    assert not rows[98].dedupes

    def layer_s(row: int) -> float:
        """Of a micro-batch, where there is no pipeline."""
        run = rows[row]
        assert run.step_time_s is not None
        assert (run.pp, run.micro_batch, run.seq) == (1, 1, 4096)
        return run.step_time_s / run.micro_batches / run.model.sizes["layers"]

    assert max(layer_s(row) for row in (12, 40, 59)) < 0.0105
    assert min(layer_s(row) for row in SLOWED if row in rows) > 0.0165
