"""The ranks of a verification: this process imports torch once, and forks one process per rank, which runs the
functions of an emitted script and saves what they leave. One more process holds the store where ranks meet: they then
do not race for a port, and none depends on another one that ended before it.

    python -m meshwright.backends.torch_.verify.run.ranks PARENT STEPS  SCRIPT RANKS FOLDER  [SCRIPT RANKS FOLDER …]

Every rank writes FOLDER/RANK.pt, with an entry per step: the loss, all gradients, parameters and buffers whole, and
what was communicated. Where a rank fails, the others are ended, FOLDER/failed names it and says what it died of, and no
further script is run.
All end with the process PARENT that started them, and ranks with this one.
Where the time is up (SIGTERM), every rank that still runs prints where it is, and FOLDER/waiting names them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from meshwright.backends.torch_.emit.write.script import HELPERS
from meshwright.backends.torch_.verify.run.counting import Counting
from meshwright.backends.torch_.verify.run.loading import load
from meshwright.backends.torch_.verify.run.memory import Peak, make_masks_unwatched
from meshwright.backends.torch_.verify.run.precise import precise, widened
from meshwright.backends.torch_.verify.run.state import buffers_of
from meshwright.backends.torch_.verify.run.still import Still
from meshwright.backends.torch_.verify.run.watching import Together
from meshwright.ir.processes import end_with

PATIENCE_S = 2.0
"""For ranks that print where they are."""
START, IN_FP64 = "start", "in_fp64"
"""In the folder of a script: the checkpoint that its ranks begin with if they draw their parts; and a file that says
that they compute in fp64."""


def run_script(script: str, ranks: int, steps: int, folder: Path) -> int:
    """Fork the ranks and wait for them; 1 if one failed."""
    with contextlib.suppress(Exception):  # a rank will say it
        load(script)  # what it imports, such as transformers, is imported once
    store, port = _store()
    children: dict[int, int] = {}
    parent = os.getpid()
    try:
        for rank in range(ranks):
            child = os.fork()
            if not child:
                end_with(parent)
                _child(script, rank, ranks, port, steps, folder)
            children[child] = rank
        return _wait(children, folder)
    finally:
        _kill([store])


def _store() -> tuple[int, int]:
    """The process with the store, and its port."""
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        end_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        os.close(writing)
        while True:
            signal.pause()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        port = pipe.read()
    if not port:
        raise RuntimeError("the process that holds the store ended")
    return child, int(port)


def _wait(children: dict[int, int], folder: Path) -> int:
    """Reap all ranks; where one fails, or this process is told to end, the others are ended."""
    try:
        while children:
            failed = {rank: status for rank, status in _reaped(children) if status}
            if failed:
                rank, why = _first(failed, folder)
                (folder / "failed").write_text(f"{rank} {os.waitstatus_to_exitcode(failed[rank])}\n{why}")
                return 1
    except SystemExit:
        (folder / "waiting").write_text(", ".join(str(rank) for rank in sorted(children.values())))
        _stopped(children)
        raise
    finally:
        _kill(list(children))
    return 0


def _stopped(children: dict[int, int]) -> None:
    """Make ranks end and print where they are (faulthandler), one after the other if they react at once."""
    deadline = time.monotonic() + PATIENCE_S
    for child in list(children):
        os.kill(child, signal.SIGABRT)
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                del children[child]
                break
            time.sleep(0.01)


def _reaped(children: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Ranks that ended, with their statuses, removed from `children`: at least one, and all that did by now."""
    child, status = os.wait()
    while child:
        rank = children.pop(child, None)
        if rank is None:
            raise RuntimeError("the process that holds the store ended")
        yield rank, status
        child, status = os.waitpid(-1, os.WNOHANG) if children else (0, 0)


def _first(failed: Mapping[int, int], folder: Path) -> tuple[int, str]:
    """The rank that failed first, and its error. Where one dies, those that wait for it die, too, and may be reaped
    before it: the first is one that was ended before it could say why, or the one that said so first."""
    said = {rank: folder / f"{rank}.died" for rank in failed}
    for rank, file in said.items():
        if not file.exists():
            return rank, ""
    found = {rank: file.read_text().partition("\n") for rank, file in said.items()}
    rank = min(found, key=lambda one: int(found[one][0]))
    return rank, found[rank][-1]


def _kill(children: Sequence[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


def _child(script: str, rank: int, ranks: int, port: int, steps: int, folder: Path) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # a store is there already
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    try:
        torch.set_num_threads(1)
        torch.save(run(load(script), steps, folder), folder / f"{rank}.pt")
        dist.barrier()  # whoever ends closes connections that others may still read from
    except BaseException:  # noqa: BLE001 - a forked process must not return into its parent's code
        (folder / f"{rank}.died").write_text(f"{time.monotonic_ns()}\n{traceback.format_exc()}")
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def run(train: Any, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Run what the script does, step by step; collectives of a step are counted, those of the checks are not. Where
    ranks draw their parts, they load the reference's weights."""
    in_fp64 = (folder / IN_FP64).exists()
    numbers, wider = (precise, widened) if in_fp64 else (contextlib.nullcontext, dict)
    mesh = train.start()
    peak = Peak()
    if away := getattr(sys.modules.get(HELPERS, train), "Away", None):
        peak.leave_out(away)
    with peak:
        built: nn.Module = train.build()
        built = built.double() if in_fp64 else built
        with numbers():
            called: nn.Module = train.parallelize(built, mesh)  # what other stages hold is let go, as by the script
        del built
        draws = hasattr(train, "draw")
        if draws:
            train.draw(called, mesh)
        with numbers():
            optimizer = train.make_optimizer(called)
        drawn = {name: crc32(bits(whole(train, name, p))) for name, p in parameters_of(train, called)} if draws else {}
        if draws:
            train.resume(folder / START, called, optimizer)
    found = []
    for step in range(steps):
        batch = wider(train.batch_of(step, mesh))  # how it was made is no part of a step
        peak.begin(batch.values())
        counting, still = Counting(), Still()
        with numbers(), Together(still, peak, counting):
            loss = train.train_step(called, optimizer, batch, mesh)
        # of a parameter that two stages have one has the gradient
        held = list(parameters_of(train, called))
        found.append(
            {
                "loss": None if loss is None else loss.item(),
                "grads": {name: whole(train, name, p.grad) for name, p in held if p.grad is not None},
                "parameters": {name: whole(train, name, p) for name, p in held},
                "buffers": {
                    name: whole(train, name, one)
                    for part in parts_of(train, called)
                    for name, one in buffers_of(part).items()
                },
                "collectives": dict(counting.found),
                "peak": peak.most,
                "drawn": drawn,
                "still": sorted(still.noted),
            }
        )
    return found


def parameters_of(train: Any, called: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that a rank holds, of its stages or of the whole model."""
    for part in parts_of(train, called):
        yield from part.named_parameters(remove_duplicate=False)


def parts_of(train: Any, called: nn.Module) -> Iterator[nn.Module]:
    """The stages that a rank holds, or the whole model, whatever it is wrapped into. Only the script knows of stages: a
    user's model may have modules of that name."""
    staged = hasattr(train, "Pipeline")
    for part in cast(Any, called).stages if staged else [called]:
        yield part.module if isinstance(part, DistributedDataParallel) else part


def bits(tensor: Tensor) -> bytes:
    """The content of a tensor, to the last bit."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy().data)


def whole(train: Any, name: str, tensor: Tensor) -> Tensor:
    """A whole parameter, or its gradient, of which this rank may hold a part, in the model's order."""
    tensor = tensor.detach()
    found = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()
    return train.reordered(name, found, back=True) if hasattr(train, "reordered") else found


def main(parent: int, steps: int, jobs: Sequence[str]) -> int:
    """Run one script after the other."""
    make_masks_unwatched()
    end_with(parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scripts = zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
    return int(any(run_script(script, int(ranks), steps, Path(folder)) for script, ranks, folder in scripts))


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
