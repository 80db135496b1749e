"""Emitted pipelines: exact, with the messages and collectives of the Program."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.backends.torch_.verify.emitted import Verified, verify
from tests.backends.torch_.emitted import job, subject, written

FOUR: dict[str, dict[str, Any]] = {
    "1f1b": {"pp": 2, "microbatches": 4, "schedule": "1f1b"},
    "gpipe x dp": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "gpipe"},
    "1f1b x zero 1": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 1},
    "1f1b x zero 2": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 2},
    "1f1b x zero 3": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 3},
    "gpipe x zero 3, kept": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "gpipe", "zero": 3, "regather": False},
    "1f1b x tp": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b"},
    "1f1b x tp+sp": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b", "sequence_parallel": True},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    jobs = {}
    for kind, degrees in FOUR.items():
        plan = subject(**degrees)
        jobs[kind] = job(plan, written(plan, tmp_path_factory.mktemp("plan")))
    return dict(zip(jobs, verify(tuple(jobs.values()), steps=2, limit_s=600), strict=True))


@pytest.mark.e2e
@pytest.mark.parametrize("kind", FOUR)
def test_a_pipeline_is_exact_and_sends_what_it_says(kind: str, found: dict[str, Verified]) -> None:
    assert found[kind].differences == ()
    assert found[kind].losses[1] < found[kind].losses[0]
