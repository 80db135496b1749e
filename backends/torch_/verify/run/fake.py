"""One rank of a mesh that is larger than any machine here: the functions of an emitted script under a process group
that communicates nothing, on tensors without memory. What it would communicate is counted as it is dispatched.

    python -m meshwright.backends.torch_.verify.run.fake SCRIPT RANK RANKS OUT

OUT gets what was counted in a step, seconds, and the process' peak memory in bytes. A script for torch-gloo is run:
torch issues the collectives of a GPU only where there is one. The model is built on the meta device, and its
parameters are made fake ones before it is parallelized. Stages of a pipeline run their schedule as it is; that all of
them know what will cross, which they ask one another before the first step, is answered for those that are not there.
"""

from __future__ import annotations

import functools
import inspect
import os
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
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules, stage
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwright.backends.torch_.verify.run.counting import Collective, Counting
from meshwright.backends.torch_.verify.run.loading import load
from meshwright.ir.errors import RanksFailed
from meshwright.ir.processes import end_with, peak_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The communication of one rank in a step, and the effort of counting it."""

    collectives: Mapping[Collective, int]
    wall_s: float
    cpu_s: float
    peak_bytes: int


def counted(script: Path, rank: int, ranks: int, *, limit_s: float) -> Counted:
    """Run one rank of a script in a process of its own, which is ended where it takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", __name__, str(os.getpid()), str(script), str(rank), str(ranks), str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise RanksFailed(
                place=f"{script}, rank {rank} of {ranks} alone",
                cause=f"it was still running after {limit_s:g} s, and was ended",
                fix="give it longer with --time-limit",
            ) from None
        if done.returncode:
            raise RanksFailed(
                place=f"{script}, rank {rank} of {ranks} alone",
                cause=f"it ended with {done.returncode}",
                fix=f"correct what it died of; what was printed last:\n{done.stderr[-2000:]}",
            )
        return Counted(**torch.load(out, weights_only=False))


def slice_for_real() -> None:
    """Let torch compute parts of a mesh from the numbers of its ranks, which tensors without memory do not have."""
    for name in ("__getitem__", "_concatenate", "_flatten"):
        setattr(DeviceMesh, name, _real(inspect.getattr_static(DeviceMesh, name)))


def _real(made: Any) -> Any:
    function = made.__func__ if isinstance(made, staticmethod) else made

    @functools.wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return staticmethod(real) if isinstance(made, staticmethod) else real


def agree_on_shapes() -> None:
    """Let stages agree on what will cross without votes, which have no values here; those of an emitted script all
    know."""

    def agreed(self: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
        for one in stages:
            one._inference_mode = stage.InferenceMode.STATIC

    if hasattr(schedules._PipelineSchedule, "_warmup_p2p"):  # older ones ask nothing
        schedules._PipelineSchedule._warmup_p2p = agreed


def make_fake(model: nn.Module) -> None:
    """Replace a model's tensors by tensors without memory, shared ones everywhere alike."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_like(tensor, device="cpu")
                    parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if parameter else empty
                held[name] = made[id(tensor)]


def main(parent: int, script: str, rank: int, ranks: int, out: str) -> None:
    """Build, run one step, and save."""
    end_with(parent)
    begin = time.monotonic()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    train: Any = load(script)
    mesh = train.start()
    with torch.device("meta"):
        whole = train.build()
    slice_for_real()
    agree_on_shapes()
    with FakeTensorMode(allow_non_fake_inputs=True):
        make_fake(whole)
        model = train.parallelize(whole, mesh)
        optimizer = train.make_optimizer(model)
        batch = train.batch_of(0, mesh)
        with Counting() as counting:
            train.train_step(model, optimizer, batch, mesh)
    took = {"wall_s": time.monotonic() - begin, "cpu_s": time.process_time(), "peak_bytes": peak_memory()}
    torch.save({"collectives": dict(counting.found)} | took, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
