"""The fit of a step's constants knows nothing of what it is not shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.doubts import DOUBTS
from benchmarks.fit_step import CONSTANTS, WITHOUT, Fitter, Slopes, effects, value_of, with_values, without_a_word
from benchmarks.models import read_models
from benchmarks.price import Pricer
from benchmarks.reading import read_row
from benchmarks.runs import Run
from benchmarks.scoring import score_run
from meshwright.cost_models.profile import published
from tests.benchmarks.rows import MODEL, ROW, table

NAMES = list(CONSTANTS)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = read_row(0, ROW, read_models(table(tmp_path / "models.csv", [MODEL])))
    assert isinstance(found, Run)
    return found


def slopes(*names: str) -> list[list[float]]:
    """Of one run, which depends on these constants alone."""
    return [[0.5 * (name in names) for name in NAMES]]


def ends(moves: Sequence[float]) -> dict[str, float]:
    start = published()
    return {
        name: value_of(start, name) + move * (high - low)
        for (name, (low, high)), move in zip(CONSTANTS.items(), moves, strict=True)
    }


def test_constants_that_no_run_depends_on_go_where_their_likes_are() -> None:
    start, still = published(), np.zeros(len(NAMES))
    told = without_a_word(still.copy(), np.array(slopes(*NAMES)), start)
    assert list(told) == list(still), "all of them are told of"
    found = ends(without_a_word(still.copy(), np.array(slopes("sustained_hopper", "sustained_ampere")), start))
    mean = (value_of(start, "sustained_hopper") + value_of(start, "sustained_ampere")) / 2
    assert found["sustained_hopper"] == pytest.approx(value_of(start, "sustained_hopper"))
    for name in ("sustained_blackwell", "sustained_tpu"):
        assert found[name] == pytest.approx(mean)
    for name in ("covered", "straggling"):
        assert found[name] == pytest.approx(sum(CONSTANTS[name]) / 2)


def test_a_fit_forgets_what_left_out_runs_put(run: Run) -> None:
    """Wherever the shipped constant of a device stands: without a run on it, the fit says the same."""
    here = tuple(slopes("sustained_hopper", "covered", "slowdown", "straggling")[0])
    fitter = Fitter({0: Slopes(run, 0.01, here)})
    said = set()
    for shipped in (0.55, 0.95):
        start = published()
        start = replace(start, compute=replace(start.compute, sustained_tpu=shipped))
        said.add(round(fitter([run], start).compute.sustained_tpu, 9))
    assert len(said) == 1


def test_a_run_that_is_doubted_teaches_nothing(run: Run) -> None:
    doubt = next(one for one in DOUBTS if one.sizes == (("tp", run.tp),))
    doubted = replace(run, row=1, table=doubt.table, model=replace(run.model, name=doubt.model))
    believed = replace(doubted, row=2, table="another")
    here = tuple(slopes("host_s", "covered")[0])
    fitter = Fitter({row: Slopes(one, error, here) for row, one, error in ((0, run, 0.01), (1, doubted, -0.6))})
    assert fitter([run, doubted], published()) == fitter([run], published())
    other = Fitter(fitter.known | {2: Slopes(believed, -0.6, here)})
    assert other([run, believed], published()).compute.host_s != fitter([run], published()).compute.host_s


def test_a_constant_has_an_effect_on_the_rows_that_it_moves(run: Run) -> None:
    """An H100 says nothing of other devices; without a constant the error is that of a price without it."""
    found = effects([run, replace(run, row=1, step_time_s=None)], published())
    assert not {"sustained_ampere", "sustained_tpu", "sustained_blackwell", "sustained_ultra"} & set(found)
    told = found["host_s"]
    without = score_run(run, Pricer(with_values(published(), {"host_s": WITHOUT["host_s"]}))).error
    assert without is not None
    assert (told.rows, told.without) == (1, pytest.approx(abs(without)))
    assert told.error != told.without
