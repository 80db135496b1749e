"""What published runs are predicted to take is on record, beside what was measured.

Rows are drawn by seed, some of every stack. A price that moves is a claim that changes: `MESHWRIGHT_PROVE=1` records
it, and the record's history shows which runs it came nearer to. On the whole it must not come away from them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest

from benchmarks.models import read_models
from benchmarks.price import Pricer
from benchmarks.published_runs import DATA
from benchmarks.reading import read_runs
from benchmarks.runs import Run
from meshwright.cost_models.prediction import Prediction

RECORD = Path(__file__).parent / "prices.json"
EACH = 3
"""Rows of every stack."""
NEAR = 0.113
"""The mean error of steps on record, of runs that constants were fitted on and others."""


@cache
def drawn() -> dict[str, Run]:
    """Runs by what they are, and their row of the table."""
    table = read_runs(DATA / "training_runs.csv", read_models(DATA / "models.csv"))
    stacks: dict[str, list[Run]] = {}
    for run in table:
        if isinstance(run, Run):
            stacks.setdefault(run.stack.name, []).append(run)
    some = (one for name, runs in sorted(stacks.items()) for one in Random(name).sample(runs, min(EACH, len(runs))))
    return {f"row {run.row}: {run.model.name}, {run.devices} {run.device.name}": run for run in some}


@cache
def recorded() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.is_file() else {}


@pytest.fixture(scope="module")
def price() -> Iterator[Pricer]:
    """Prices; what was asked of them is written in the end, where it is to be recorded."""
    yield Pricer()
    if os.environ.get("MESHWRIGHT_PROVE"):
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(recorded()[name])}" for name in drawn())
        RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


@pytest.mark.parametrize("name", drawn())
def test_a_price_is_as_it_was(name: str, price: Pricer) -> None:
    run = drawn()[name]
    found = told(price.predicted(run))
    if os.environ.get("MESHWRIGHT_PROVE"):
        recorded()[name] = {"measured_s": run.step_time_s, "measured_bytes": run.peak_bytes, "predicted": found}
    assert found == recorded().get(name, {}).get("predicted"), "a price has moved: see the module"


def told(found: Prediction) -> dict[str, Any]:
    """What is said of a run, to six digits."""
    fullest = max(found.stages, key=lambda one: one.memory.peak_bytes)
    return {
        "step_s": _short(found.step_time_s),
        "from_s": _short(found.step_time_low_s),
        "to_s": _short(found.step_time_high_s),
        "mfu": _short(found.mfu),
        "shares": {name: _short(one) for name, one in found.shares if one},
        "traffic": {name: _short(one) for name, one in found.traffic},
        "memory": {name: _short(one) for name, one in fullest.memory.parts if one},
        "instant": fullest.memory.instant,
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def test_prices_on_record_are_near_what_was_measured() -> None:
    rows = [one for one in recorded().values() if one["measured_s"]]
    assert len(rows) > 30
    assert fmean(abs(one["predicted"]["step_s"] / one["measured_s"] - 1) for one in rows) <= NEAR
