"""One rank of a mesh that is larger than any machine here: the functions of an emitted script under a process group
that communicates nothing, on tensors without memory. What it would communicate is counted as it is dispatched.

    python -m meshwright.backends.torch_.verify.fake SCRIPT RANK RANKS OUT

OUT gets what was counted in a step, CPU-seconds, and the process' peak memory in bytes. A script for torch-gloo is run:
torch issues the collectives of a GPU only where there is one.
"""

from __future__ import annotations

import functools
import inspect
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwright.backends.torch_.verify.counting import Collective, Counting
from meshwright.backends.torch_.verify.ranks import load
from meshwright.ir.errors import RanksFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one rank would communicate in a step, and what it took to find out."""

    collectives: Mapping[Collective, int]
    cpu_s: float
    peak_bytes: int


def counted(script: Path, rank: int, ranks: int, *, limit_s: float) -> Counted:
    """Run one rank of a script in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", __name__, str(script), str(rank), str(ranks), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        if done.returncode:
            raise RanksFailed(
                place=f"{script}, rank {rank} of {ranks} alone",
                cause=f"it ended with {done.returncode}",
                fix=f"correct what it died of; what was printed last:\n{done.stderr[-2000:]}",
            )
        return Counted(**torch.load(out, weights_only=False))


def slice_for_real() -> None:
    """Parts of a mesh are computed from the numbers of its ranks, which tensors without memory do not have."""
    for name in ("__getitem__", "_concatenate", "_flatten"):
        setattr(DeviceMesh, name, _real(inspect.getattr_static(DeviceMesh, name)))


def _real(made: Any) -> Any:
    function = made.__func__ if isinstance(made, staticmethod) else made

    @functools.wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return staticmethod(real) if isinstance(made, staticmethod) else real


def main(script: str, rank: int, ranks: int, out: str) -> None:
    """Build, one step, and save."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    train: Any = load(script)
    mesh = train.start()
    slice_for_real()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = train.parallelize(train.build(), mesh)
        optimizer = train.make_optimizer(model)
        batch = train.batch_of(0, mesh)
        with Counting() as counting:
            train.train_step(model, optimizer, batch, mesh)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"collectives": dict(counting.found), "cpu_s": time.process_time(), "peak_bytes": peak}
    torch.save(found, out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
