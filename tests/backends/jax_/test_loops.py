"""Loops over tokens, which are one operator: copies run them by themselves, and sum what their steps left once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.emit.accumulation import ONCE
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.emitted import verdict
from meshwright.backends.jax_.verify.predicted import REWRITES
from meshwright.ir.errors import EmissionStorage
from tests.backends.jax_.planned import ZOO, needed_of, ran_together, subject, unclean_of

LOOPS = f"{ZOO}/recurrent.py"
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{LOOPS}:linen", {"dp": 2}),
    (f"{LOOPS}:linen", {"dp": 2, "pp": 2, "microbatches": 2}),
    (f"{LOOPS}:dropped", {"dp": 4, "zero": 1}),
    (f"{LOOPS}:mapped", {"dp": 2, "zero": 1, "microbatches": 2}),
    (f"{LOOPS}:states", {"dp": 2}),
)


@pytest.mark.slow
def test_loops_are_exact(tmp_path: Path) -> None:
    """Also what draws behind a loop: each copy has a key of its own, and so has its part of the reference."""
    for one, ran in ran_together("loops", PLANS, tmp_path, 400):
        found = verdict(one, ran)
        assert found.exact, (one.subject.config, found.differences)
    assert "tied" in needed_of(one, ran, REWRITES)  # what two operators leave of one table is summed twice


@pytest.mark.slow
def test_scripts_with_loops_are_clean(tmp_path: Path) -> None:
    assert unclean_of(PLANS, tmp_path) == ""


def test_copies_run_by_themselves_what_would_be_summed_in_each_step() -> None:
    """Where no step reads what all read, XLA has nothing to sum in one."""
    assert [Shardings(subject(reference, **degrees)).form for reference, degrees in PLANS] == [ONCE] * 4 + [""]


def test_gradients_that_each_step_would_sum_are_refused() -> None:
    """Of parameters that every copy gathers for each micro-batch."""
    with pytest.raises(EmissionStorage, match=r"all steps of a loop|exchanged in every micro-batch"):
        Shardings(subject(f"{LOOPS}:linen", dp=2, zero=3, microbatches=2)).check()
