"""What models hold beside their parameters: it is handed from step to step where the forward pass changes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.emit.script import printed_in
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.emitted import beyond, verdict
from meshwright.backends.results import EXACT, IN_FP64, left_in_fp64
from meshwright.ir.errors import EmissionModel
from tests.backends.jax_.planned import LLAMA, ROOT, ZOO, ran_together, subject, unclean_of

HOLDING = f"{ZOO}/holding.py"
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{HOLDING}:normed", {"dp": 2}),
    (f"{HOLDING}:normed", {"dp": 2, "tp": 2, "zero": 3}),
    (f"{ZOO}/images.py:convnet", {"dp": 2}),
    (f"{ZOO}/images.py:convnet", {"tp": 2}),
    (f"{HOLDING}:shuffled", {"dp": 2, "microbatches": 2}),
    (f"{HOLDING}:pair", {"dp": 2, "tp": 2}),
    (f"{HOLDING}:scaled", {"dp": 2, "zero": 3}),
    (f"{ZOO}/called.py:build", {"dp": 2}),
    (f"{HOLDING}:counted", {"dp": 2, "microbatches": 2}),
    (f"{HOLDING}:statistics", {"dp": 2, "microbatches": 2}),
    (f"{HOLDING}:normed", {"dp": 2, "zero": 3, "microbatches": 2}),
    (f"{HOLDING}:normed", {"dp": 2, "tp": 2, "microbatches": 4}),
)
PRINTED = (False, True, False, True)
"""Of the last ones, with micro-batches that hand on what they change, whether they are printed: copies run by
themselves where only their own code is run."""


@pytest.mark.slow
def test_statistics_are_those_of_one_device_after_each_step(tmp_path: Path) -> None:
    """Of the whole batch, in the user's code and in printed code. Gradients that are but noise are told in fp64."""
    for job, ran in ran_together("rest", PLANS, tmp_path, 300):
        found = verdict(job, ran)
        assert found.exact, (job.subject.config, found.differences)
        buffers = [name for name in ran.off if "the buffer" in name]
        assert bool(buffers) == any(body.updates for body in job.subject.program.bodies)


@pytest.mark.slow
def test_scripts_that_hold_more_are_clean(tmp_path: Path) -> None:
    assert unclean_of(PLANS, tmp_path) == ""


def test_all_that_is_held_has_a_place() -> None:
    """What nothing reads, too, since a step hands on all of it; parameters are not among it."""
    found = Shardings(subject(f"{HOLDING}:normed", dp=2, tp=2))
    assert found.rest == dict.fromkeys(("drop.rngs.count", "drop.rngs.key", "norm.mean", "norm.var"), ())
    assert found.params.keys().isdisjoint(found.rest)
    assert Shardings(subject(f"{LLAMA}:tiny", dp=2)).rest == {}


def test_stages_change_nothing_by_the_batch() -> None:
    with pytest.raises(EmissionModel, match="hand on what it returns alone"):
        Shardings(subject(f"{HOLDING}:deep", pp=2, microbatches=2)).check()


def test_a_model_that_holds_nothing_else_hands_on_nothing(tmp_path: Path) -> None:
    text = dict(emit(subject(f"{LLAMA}:tiny", dp=2), tmp_path).texts)["train.py"]
    assert "rest" not in text
    assert "state, states, loss = step(state, states, batch_of(number))" in text


def test_micro_batches_hand_on_what_they_change() -> None:
    """In the user's code where no copy needs another's part of it, or all share every micro-batch; else printed."""
    plans = [subject(reference, **degrees) for reference, degrees in PLANS[-len(PRINTED) :]]
    assert tuple(printed_in(Shardings(plan)) is not None for plan in plans) == PRINTED


@pytest.mark.slow
def test_a_loop_of_ones_own_hands_on_what_its_model_holds() -> None:
    """The model's own, not what the file's factory would make: steps change two of these, and read the third."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(Path(__file__).with_name("rest_run.py")), "normed", "statistics", "scaled"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, found in json.loads(done.stdout.splitlines()[-1]).items():
        for planned, alone in found["losses"]:
            assert planned == pytest.approx(alone, rel=1e-5), name
        assert len(found["held"]) == {"normed": 2, "statistics": 2, "scaled": 0}[name]
        for planned, alone in found["held"]:
            assert planned == pytest.approx(alone, rel=1e-5), name


def test_rounding_is_told_from_faults_in_fp64() -> None:
    """A fault is as large there; of what was off by more than rounding a hundred-thousandth may be left."""
    off = beyond({"noise": 2e-5, "fault": 1e-3, "kink": 0.2, "fine": 1e-6}, EXACT)
    assert [one.what for one in off] == ["noise", "fault", "kink"]
    assert left_in_fp64(off, beyond({"noise": 1e-14, "kink": 1e-6}, IN_FP64)) == ()
    found = left_in_fp64(off, beyond({"noise": 1e-8, "fault": 1e-3, "other": 1e-7, "nan": float("nan")}, IN_FP64))
    assert [one.what for one in found] == ["noise", "fault", "other", "nan"]
