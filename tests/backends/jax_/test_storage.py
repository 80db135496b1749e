"""Storage of what devices do not divide: JAX has no uneven shards, so plans for it leave that whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.verify.emitted import verdict
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.ir.names import Degrees, template
from meshwright.planner.cli.main import main
from tests.backends.jax_.planned import ZOO, model, ran_together, subject

SMALL = f"{ZOO}/images.py:small"
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    (SMALL, {"dp": 4, "zero": 1}),
    (SMALL, {"dp": 4, "zero": 3}),
    (SMALL, {"tp": 2, "dp": 4, "zero": 3}),
    (f"{ZOO}/images.py:convnet", {"dp": 4, "zero": 2}),
)


@pytest.mark.slow
def test_what_devices_do_not_divide_is_reduced_and_never_gathered(tmp_path: Path) -> None:
    for job, ran in ran_together("storage", PLANS, tmp_path, 300):
        found = verdict(job, ran)
        assert found.exact, (job.subject.config, found.differences)


def test_what_would_be_padded_stays_whole() -> None:
    """The bias of ten labels over four devices; what a dimension of can be cut is. Targets with padding keep it."""
    plan = subject(SMALL, dp=4, zero=3)
    stored = {one.path: one.params for body in plan.decisions.plans for one in body.storage}
    assert stored["head.bias"].axes == ()
    assert stored["head.weight"].axes == ("dp",)
    fold, _ = model(SMALL)
    padded = template(fold, Degrees(dp=4, zero=3), "torch-gloo")
    assert "padded" in str({one.path: one.params for body in padded.plans for one in body.storage}["head.bias"])
    assert TORCH_GLOO.stored(padded, fold) is padded
    even = JAX_CPU.stored(padded, fold)
    assert [body.storage for body in even.plans] == [body.storage for body in plan.decisions.plans]
    assert JAX_CPU.stored(even, fold) is even


def test_a_plan_that_stores_some_parameters_whole_is_found_and_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No bound counts gathers of what is never cut."""
    asked = ["--cluster", "cpu:4", "--target", "jax-cpu", "--global-batch", "16", "--seq", "16", "--out", str(tmp_path)]
    assert main([SMALL, *asked, "--fix", "dp=4,zero=3"]) == 0
    assert "plan emit refuses" not in "".join(capsys.readouterr())
    bounds = json.loads((tmp_path / "plan.json").read_text())["bounds"]
    assert 0 < bounds["lower_s"] <= bounds["upper_s"]
