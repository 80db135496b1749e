"""What launch.sh starts on hosts of their own, each a network namespace: the run of one host, to the digit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.testbed.hosts import hosts, lacking
from meshwright.planner.cli.main import main

LACKING = lacking()
EXAMPLES = Path(__file__).parents[3] / "examples"
TWO_HOSTS = """\
[[pool]]
name = "a"
hosts = 2
gpu = "CPU"
gpus_per_host = 2
nics = [{ kind = "ethernet", gbps = 1, count = 1 }]
"""
HOW = ("--global-batch", "8", "--seq", "16", "--dtype", "fp32", "--target", "torch-gloo", "--fix", "dp=2,tp=2")


def emitted(cluster: str, folder: Path) -> Path:
    model = f"{EXAMPLES / 'llama.py'}:tiny"
    assert main(["plan", model, "--cluster", cluster, *HOW, "--out", str(folder / "plan")]) == 0
    assert main(["emit", str(folder / "plan"), "--out", str(folder / "run")]) == 0
    return folder / "run" / "launch.sh"


def losses(printed: str) -> list[str]:
    return [line.partition(" step_time")[0] for line in printed.splitlines() if line.startswith("step ")]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_two_hosts_do_what_one_does(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO_HOSTS)
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    alone = emitted("cpu:4", tmp_path / "one")
    several = emitted(str(tmp_path / "two.toml"), tmp_path / "two")
    done = subprocess.run(
        [alone, "--steps", "2"], capture_output=True, text=True, check=True, timeout=300, env=environment
    )
    with hosts([200.0, 200.0]) as made:
        started = [
            subprocess.Popen(
                host.command(str(several), "--steps", "2"),
                stdout=subprocess.PIPE,
                text=True,
                env=environment | {"HEAD": made[0].address, "NODE_RANK": str(number)},
            )
            for number, host in enumerate(made)
        ]
        try:
            printed = [one.communicate(timeout=300)[0] for one in started]
        finally:
            for one in started:
                one.kill()
                one.wait()
    assert len(losses(printed[0])) == 2
    assert losses(printed[0]) == losses(done.stdout)
    assert [one.returncode for one in started] == [0, 0]
