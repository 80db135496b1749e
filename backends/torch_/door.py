"""The torch backend's side of `meshwright.backends.door.Backend`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.backends.results import Alone, Files, Seat, Verified
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.capabilities import DEVICE
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.read.allowed import check_model, check_software
from meshwright.backends.torch_.emit.write import hosts
from meshwright.backends.torch_.emit.write.needed import check_torch as check_installed
from meshwright.backends.torch_.emit.write.script import SCRIPT
from meshwright.ir.target.capabilities import PROCESSOR

__all__ = ["check_installed", "check_model", "check_software", "emit"]


def on_hosts(target: str, seats: Sequence[Seat]) -> bool:
    """Whether the target's ranks are GPUs, or processors of several hosts."""
    if DEVICE[target] != "cpu":
        return True
    return all(seat.device == PROCESSOR for seat in seats) and len({seat.host for seat in seats}) > 1


def with_hosts(files: Files, target: str, seats: Sequence[Seat]) -> Files:
    """The files of a plan, with the places of its ranks, and what starts those of each host."""
    return hosts.on_hosts(files, seats, gpus=DEVICE[target] != "cpu")


def how_to_start(files: Files) -> str:
    """Where to run the launch script."""
    slurm = ", or under Slurm" if hosts.SLURM in dict(files.texts) else ""
    return f"on every host{slurm}" if hosts.on_several(files) else "on this machine"


def verify(subject: Subject, folder: Path, *, steps: int, limit_s: float) -> Verified:
    """Run the script in a folder, and compare it with the model on one device."""
    from meshwright.backends.torch_.verify.emitted import Job
    from meshwright.backends.torch_.verify.emitted import verify as run

    job = Job.of(subject, folder / SCRIPT)
    (found,) = run([job], steps=steps, limit_s=limit_s)
    return replace(found, read_whole=sum(sum(group.predicted[0].whole.values()) for group in job.groups))


def each_alone(subject: Subject, folder: Path, *, limit_s: float) -> Iterator[Alone]:
    """Run one rank of every group, one after the other."""
    from meshwright.backends.torch_.verify.alone import each_alone as run
    from meshwright.backends.torch_.verify.run.fake import counted

    return run(subject, folder, counted, limit_s=limit_s)


def by_rank() -> bool:
    """Every rank is a process of torchrun's."""
    return True


def parallelize(model: Any, subject: Subject, reference: str) -> Any:
    """This rank's part of a module."""
    from meshwright.backends.torch_.parallel import parallelize as part

    return part(model, subject, reference)
