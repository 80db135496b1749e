"""Models with autograd functions of their own are exact under plans that cut what these compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.ir.quoting import identifier
from tests.backends.torch_.emitted import subject, written
from tests.backends.torch_.proved import proved

MODELS = Path(__file__).with_name("functions.py")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chunked, pp": ("chunked", {"pp": 2, "microbatches": 2, "schedule": "1f1b"}),
    "chunked, dp": ("chunked", {"dp": 2}),
    "looked, tp": ("looked", {"tp": 2}),
    "recurring, tp": ("recurring", {"tp": 2}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    folder, plans = tmp_path_factory.mktemp("functions"), {}
    for name, (model, degrees) in CASES.items():
        plan = subject(reference=f"{MODELS}:{model}", **degrees)
        plans[name] = plan, written(plan, folder / identifier(name))
    return proved("functions", plans, steps=2, limit_s=240)


@pytest.mark.parametrize("name", CASES)
def test_a_function_of_the_models_own_is_exact(name: str, runs: dict[str, Verified]) -> None:
    assert runs[name].exact, runs[name].differences
