"""All plans of a tiny model, written down and priced, hold none that is better than the answer, or below its bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.every_plan import compared
from benchmarks.small_cases import CASES, MANY, Question

QUICK = (
    next(replace(case, more=("--fix", "zero=0")) for case in CASES if "10G" in case.cluster),
    next(case for case in MANY if "10G" in case.cluster),
)
"""Behind a slow wire the best is that all ranks do everything, which no name says; and a pipeline over one has one
stage do all. The others are for `python -m benchmarks.every_plan`."""


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_the_answer_is_the_best_of_all_plans(case: Question) -> None:
    found = compared(case)
    assert found.plans > 300
    assert found.fit > 300
    assert found.within
    assert found.best
