"""`meshwright.jax_apply` in a loop of one's own, on four of eight devices: the losses of one device; and what is
refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

import meshwright
from meshwright.ir.errors import EmissionTarget
from meshwright.planner.cli.main import main

ROOT = Path(__file__).parents[2]
ZOO = "tests.ir.frontends.jax_zoo"
MODULES = {
    "pair": "examples.jax_llama",
    "nnx": f"{ZOO}.nnx_",
    "equinox": f"{ZOO}.equinox_",
    "linen": f"{ZOO}.linen",
}
PLANS = {
    "pair": ("tiny_scan", "tp=2,dp=2,zero=3,microbatches=1"),
    "nnx": ("gpt", "tp=2,dp=2,microbatches=1"),
    "equinox": ("gpt", "dp=4,zero=3,microbatches=1"),
    "linen": ("gpt", "dp=4,microbatches=2"),
}
"""Factories, and degrees."""
HOW = ("--cluster", "cpu:4", "--global-batch", "16", "--seq", "32")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    for name, (factory, pins) in PLANS.items():
        reference = f"{ROOT / MODULES[name].replace('.', '/')}.py:{factory}"
        assert main(["plan", reference, *HOW, "--fix", pins, "--out", str(folder / name)]) == 0
    return folder


@pytest.mark.e2e
@pytest.mark.slow
def test_a_loop_of_ones_own_has_the_losses_of_one_device(plans: Path) -> None:
    """Each way of writing a model, with weights of its own, which are as they were after a step has donated its state.
    Other models and batches are refused."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(Path(__file__).with_name("jax_apply_run.py")), str(plans), json.dumps(MODULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name in PLANS:
        assert found[name]["planned"] == pytest.approx(found[name]["alone"], rel=2e-6), name
        assert len(set(found[name]["planned"])) == 3
    stored, planned = found["stored"]
    assert stored == planned != "P()"
    assert found["devices"] == 4
    uneven, other, doubled = found["refused"]
    assert "error MW7028 at tokens: 3 sequences, which 2 parts on devices and in micro-batches do not divide" in uneven
    assert "error MW7024 at model, blocks.0.attention.key.bias: it is not there, and f32 (4, 8) in" in other
    assert "error MW7024 at <lambda>: a step of it has other equations than that of the plan's model" in doubled


def test_fewer_devices_than_ranks_are_refused(plans: Path) -> None:
    script = f"import jax; jax.devices(); import meshwright; meshwright.jax_apply((min, max), {str(plans / 'pair')!r})"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert "error MW9010 at jax: the plan has 4 ranks, and JAX has begun with 1 devices" in done.stderr
    assert 'jax.config.update("jax_num_cpu_devices", 4)' in done.stderr


def test_a_plan_of_jax_has_no_part_of_a_rank(plans: Path) -> None:
    with pytest.raises(EmissionTarget, match=r"call meshwright\.jax_apply"):
        meshwright.parallelize(None, plans / "pair")
