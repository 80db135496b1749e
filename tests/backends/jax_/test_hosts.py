"""Scripts for GPUs and TPUs: on several hosts they are what they are on one, and bf16 is near fp32."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_ import door
from meshwright.backends.jax_.capabilities import JAX_CPU, JAX_CUDA, JAX_TPU, usual
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.emitted import Job, run
from meshwright.backends.results import Seat
from meshwright.planner.cli.main import main
from tests.backends.jax_.planned import ZOO, subject
from tests.backends.torch_.emitted import unclean

MLP = f"{ZOO}/plain.py:mlp"
SEATS = [Seat(host=host, device="H100-80G", gpu=gpu, nic=-1, network="") for host in range(2) for gpu in range(2)]
LIMIT_S = 200


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a perceptron on two hosts of two GPUs, in two micro-batches."""
    folder = tmp_path_factory.mktemp("hosts")
    plan = subject(MLP, on=JAX_CUDA, dp=4, zero=1, microbatches=2)
    door.with_hosts(emit(plan, folder), plan.decisions.target, SEATS).write(folder)
    return folder


def started(script: Path, devices: int, *command: str) -> subprocess.Popen[str]:
    given = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PORT": os.environ.get("PORT", "0")}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | given | {"PATH": path}
    return subprocess.Popen(
        command, cwd=script, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def losses(said: str) -> list[str]:
    return re.findall(r"step \d+: loss \S+", said)


@pytest.mark.e2e
@pytest.mark.slow
def test_two_hosts_do_what_one_does(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a process with its devices; the first tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PORT", str(free.getsockname()[1]))
    every = [started(script, 2, "./launch.sh", host, "127.0.0.1", "--steps", "2") for host in "01"]
    alone = started(script, 4, sys.executable, "train.py", "--steps", "2")
    try:
        told = [losses(one.communicate(timeout=LIMIT_S)[0]) for one in (*every, alone)]
    finally:
        for one in (*every, alone):
            one.kill()
    assert told[0] == told[2]
    assert len(told[0]) == 2
    assert told[1] == []


@pytest.mark.e2e
@pytest.mark.slow
def test_bf16_is_near_fp32(tmp_path: Path) -> None:
    """The script keeps fp32 and computes in bf16, which has eight bits; beside it the model runs in fp32."""
    plan = subject(MLP, on=JAX_CUDA, dp=2, tp=2, zero=3)
    emit(plan, tmp_path).write(tmp_path)
    (found,) = run([Job.of(plan, tmp_path)], steps=1, limit_s=LIMIT_S)
    assert "bf16[" in found.hlo
    assert all(off < 0.05 for off in found.off.values())
    assert max(off for name, off in found.off.items() if "gradient" in name) > 1e-3


def test_scripts_for_hosts_are_clean(script: Path) -> None:
    assert unclean(script, types=False) == ""
    assert len((script / "train.py").read_text().splitlines()) <= 165
    assert "on each of 2 hosts" in (script / "launch.sh").read_text().lower()


def test_devices_stand_in_the_order_of_ranks(tmp_path: Path) -> None:
    plan = subject(MLP, on=JAX_CUDA, dp=4)
    (stage,) = plan.decisions.stages
    turned = replace(plan, decisions=replace(plan.decisions, stages=(replace(stage, ranks=(0, 2, 1, 3)),)))
    assert (
        "devices = [jax.devices()[at] for at in (0, 2, 1, 3)]"
        in dict(emit(turned, tmp_path).texts)["train_shardings.py"]
    )
    assert "devices = jax.devices()[:4]" in dict(emit(plan, tmp_path).texts)["train_shardings.py"]


def test_the_usual_target_is_that_of_the_devices() -> None:
    assert usual(("H100-80G", "A100-80G")) == JAX_CUDA.target
    assert usual(("TPU-v5e",)) == JAX_TPU.target
    assert usual(("CPU",)) == JAX_CPU.target


@pytest.mark.parametrize(("cluster", "target"), [("1x2xH100", "jax-cuda"), ("1x4xTPU-v5e", "jax-tpu")])
def test_a_model_in_jax_is_planned_for_jax(cluster: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--cluster", cluster, "--global-batch", "16", "--seq", "16", "-v"]) == 0
    assert f"stack jax: xla kernels, recipe fsdp-bf16-reduce; target {target}" in capsys.readouterr().out
