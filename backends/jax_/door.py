"""What the planner asks of the JAX backend (`meshwright.backends.door.Backend`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit import hosts
from meshwright.backends.jax_.emit.files import check_model, check_software, emit
from meshwright.backends.jax_.emit.script import SCRIPT
from meshwright.backends.results import Alone, Files, Seat, Verified
from meshwright.backends.subject import Subject
from meshwright.ir.errors import DependencyMissing, EmissionTarget

__all__ = ["check_model", "check_software", "emit"]

OLDEST = (0, 10)
"""The oldest JAX that scripts were run with."""


def on_hosts(target: str, seats: Sequence[Seat]) -> bool:
    """Those of host devices are parts of one process."""
    return TARGETS[target].device != "cpu"


def with_hosts(files: Files, target: str, seats: Sequence[Seat]) -> Files:
    """The files, and for several hosts what starts the script on each: JAX runs one process there."""
    return hosts.with_hosts(files, len({seat.host for seat in seats}))


def how_to_start(files: Files) -> str:
    """Where the script is to be run."""
    return "on this machine, with python" if files.start == SCRIPT else f"on every host, as {files.start} says"


def verify(subject: Subject, folder: Path, *, steps: int, limit_s: float) -> Verified:
    """The script in a folder against the model on one device."""
    from meshwright.backends.jax_.verify.emitted import Job
    from meshwright.backends.jax_.verify.emitted import verify as run

    (found,) = run([Job.of(subject, folder)], steps=steps, limit_s=limit_s)
    return found


def each_alone(subject: Subject, folder: Path, *, limit_s: float) -> Iterator[Alone]:
    """One device of a program that XLA partitions does not run alone."""
    raise EmissionTarget(
        place=f"target {subject.decisions.target}",
        cause="all of its devices run in one process, and none runs alone",
        fix="verify the whole plan, without --alone",
    )


def check_installed() -> None:
    """Must: a JAX that scripts can be run with."""
    said = ".".join(map(str, OLDEST))
    try:
        found = version("jax")
    except PackageNotFoundError:
        found = "missing"
    if found == "missing" or tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise DependencyMissing(
            place="jax",
            cause=f"emitted scripts need {said} or newer, and it is {found}",
            fix="pip install 'meshwright[jax]'",
        )


def by_rank() -> bool:
    """One program is for all devices."""
    return False


def parallelize(model: Any, subject: Subject, reference: str) -> Any:
    """A model of this process under a plan: every device's part of it."""
    from meshwright.backends.jax_.parallel import parallelize as run

    return run(model, subject, reference)
