"""The ranks of a verification: this process imports torch once, and forks one process per rank, which runs the
functions of an emitted script and saves what they leave.

    python -m meshwright.backends.torch_.verify.ranks STEPS  SCRIPT RANKS FOLDER  [SCRIPT RANKS FOLDER …]

Every rank writes FOLDER/RANK.pt, with an entry per step: the loss, all gradients and parameters whole, and what was
communicated. Where a rank fails, the others are ended, FOLDER/failed names it, and no further script is run.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.backends.torch_.verify.counting import Counting


def run_script(script: str, ranks: int, steps: int, folder: Path) -> int:
    """Fork the ranks and wait for them; 1 if one failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children: dict[int, int] = {}
    for rank in range(ranks):
        child = os.fork()
        if not child:
            _child(script, rank, ranks, port, steps, folder)
        children[child] = rank
    return _wait(children, folder)


def _wait(children: dict[int, int], folder: Path) -> int:
    """Reap all ranks; where one fails, or this process is told to end, the others are ended."""
    code = 0
    try:
        while children:
            child, status = os.wait()
            rank = children.pop(child)
            if status:
                (folder / "failed").write_text(f"{rank} {os.waitstatus_to_exitcode(status)}")
                code = 1
                break
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
    return code


def _child(script: str, rank: int, ranks: int, port: int, steps: int, folder: Path) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        torch.set_num_threads(1)
        torch.save(run(load(script), steps), folder / f"{rank}.pt")
    except BaseException:  # noqa: BLE001 - a forked process must not return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def load(script: str) -> ModuleType:
    """An emitted script as a module."""
    spec = importlib.util.spec_from_file_location("emitted", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(train: Any, steps: int) -> list[dict[str, Any]]:
    """What the script does, step by step; collectives of a step are counted, those of the checks are not."""
    mesh = train.start()
    model: nn.Module = train.build()
    called = train.parallelize(model, mesh)
    optimizer = train.make_optimizer(called)
    found = []
    for step in range(steps):
        batch = train.batch_of(step, mesh)
        with Counting() as counting:
            loss = train.train_step(called, optimizer, batch, mesh)
        found.append(
            {
                "loss": loss.item(),
                "grads": {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None},
                "parameters": {name: whole(p) for name, p in model.named_parameters()},
                "collectives": dict(counting.found),
            }
        )
    dist.destroy_process_group()
    return found


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this rank may hold a part."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def main(steps: int, jobs: Sequence[str]) -> int:
    """Run one script after the other."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scripts = zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
    return int(any(run_script(script, int(ranks), steps, Path(folder)) for script, ranks, folder in scripts))


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
