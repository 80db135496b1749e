"""Models that draw random numbers: what a step is given to draw from, and what it leaves for the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.emit.script import printed_in
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.emitted import Job, Ran, still, verdict
from meshwright.backends.jax_.verify.predicted import REWRITES
from tests.backends.jax_.planned import ROOT, ZOO, job, needed_of, ran_together, subject
from tests.backends.jax_.proved import ran as recorded
from tests.backends.torch_.emitted import unclean

PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{ZOO}/nnx_.py:gpt_dropout", {"dp": 2, "zero": 3}),
    (f"{ZOO}/nnx_.py:gpt_dropout", {"dp": 2, "microbatches": 2}),
    (f"{ZOO}/drawing.py:streams", {"dp": 2, "microbatches": 2, "recompute": "full"}),
    (f"{ZOO}/drawing.py:linen", {"dp": 2, "tp": 2, "recompute": "full"}),
    (f"{ZOO}/equinox_.py:keyed", {"dp": 2, "microbatches": 2}),
    (f"{ZOO}/drawing.py:scanned", {"tp": 2, "cp": 2, "zero": 3, "microbatches": 2}),
    (f"{ZOO}/nnx_.py:gpt_dropout", {"pp": 2, "microbatches": 4, "schedule": "eager-1f1b"}),
    (f"{ZOO}/drawing.py:linen", {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "gpipe", "recompute": "full"}),
    (f"{ZOO}/drawing.py:stacked", {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "eager-1f1b"}),
    (f"{ZOO}/nnx_.py:gpt_dropout", {"dp": 2, "tp": 2, "microbatches": 2}),
    (f"{ZOO}/drawing.py:streams", {"dp": 2, "tp": 2, "sequence_parallel": True}),
    (f"{ZOO}/drawing.py:scanned", {"dp": 2, "tp": 2, "sequence_parallel": True}),
)
OWN = 9
"""So many run the model's own code, the others what is printed."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, Ran]]:
    """All scripts, run in one process."""
    return ran_together("draws", PLANS, tmp_path_factory.mktemp("drawing"), 400)


@pytest.mark.slow
def test_what_draws_is_printed_where_it_must_be(ran: list[tuple[Job, Ran]]) -> None:
    """Nothing is drawn while a printed model is compared; else masks are those of one device."""
    assert [still(one.subject) for one, _ in ran] == [()] * OWN + [("dropout",)] * (len(PLANS) - OWN)


@pytest.mark.slow
def test_masks_are_those_of_one_device(ran: list[tuple[Job, Ran]]) -> None:
    """Step by step and micro-batch by micro-batch, also of copies that run by themselves, and of stages of a pipeline,
    in both passes; what is left for the next step to draw from is compared with the rest."""
    for one, left in ran:
        found = verdict(one, left)
        assert found.exact, (one.subject.config, found.differences)
        assert any("the buffer" in name for name in left.off) == (not found.still)


@pytest.mark.slow
def test_attention_is_printed_with_its_dropout(tmp_path: Path) -> None:
    plan = replace(subject(f"{ZOO}/drawing.py:linen", dp=2, tp=2), prints=True)
    (left,) = recorded("attention_drops", {"linen": (one := job(plan, tmp_path))}, 300).values()
    assert (found := verdict(one, left)).exact, found.differences
    assert found.still == ("attention", "dropout")


@pytest.mark.slow
def test_what_masks_are_made_for_is_not_made_again(ran: list[tuple[Job, Ran]]) -> None:
    """A product at a block's end, and its sum over devices, of which only dropout reads what it makes."""
    assert "masks" in needed_of(*ran[3], REWRITES)


@pytest.mark.slow
def test_scripts_that_draw_are_clean(ran: list[tuple[Job, Ran]]) -> None:
    assert unclean(ran[0][0].script.parents[1], types=False) == ""


def test_what_is_printed_draws_by_keys_of_its_own() -> None:
    """By the axes that cut what is drawn for: its model's own streams are another thing."""
    plan = subject(f"{ZOO}/nnx_.py:gpt_dropout", dp=2, tp=2, microbatches=2)
    printed = printed_in(Shardings(plan))
    assert printed is not None
    assert still(plan) == ("dropout",)
    text = "\n".join(printed.functions())
    assert 'dropout(linear, key, 0, 0.9, axes=("dp",))' in text
    assert {"rngs.count", "rngs.key"} < set(printed.shardings.rest)
    assert "held.blocks.0.drop.rngs.count" in printed.shardings.rest


@pytest.mark.slow
def test_no_two_draws_are_alike() -> None:
    """On two copies, in two steps, at two places; what devices have whole, all of them draw alike. Two steps of two
    micro-batches are counted."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(Path(__file__).with_name("draws_run.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"unlike": 2 * 2 * 2, "alike": True, "kept": pytest.approx(0.9, abs=0.02), "count": 2 * 2}
