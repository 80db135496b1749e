"""Backends by name, loaded when they are asked for, and the functions that the planner calls on each.

A backend is the module `door` of its package: the functions of `Backend`. What its targets can run is data
(`capabilities`), which is read at once; the rest is loaded for a plan that is emitted or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from meshwright.backends.measuring import Case, Told
from meshwright.backends.results import Alone, Files, Seat, Verified
from meshwright.backends.subject import Subject
from meshwright.ir.errors import EmissionTarget, MeasuringUnknown, instead
from meshwright.ir.graph.calls import Calls
from meshwright.ir.target.capabilities import ANY, Capabilities
from meshwright.ir.target.workload import Workload

BACKENDS = ("torch_", "jax_")
"""Packages beside this module."""

_DATA: Mapping[str, Any] = {name: import_module(f"meshwright.backends.{name}.capabilities") for name in BACKENDS}
TARGETS: Mapping[str, Capabilities] = {
    ANY.target: ANY,
    **{target: one for data in _DATA.values() for target, one in data.TARGETS.items()},
}
"""All that a plan can be for: no runtime in particular, or one that code is written for."""

_LOCAL: Mapping[str, str] = {name: one.LOCAL for name, one in _DATA.items()}
LOCAL = tuple(_LOCAL.values())
"""Of each backend, the target whose ranks are processes of one machine, without accelerators."""


class Backend(Protocol):
    """The writer and runner of plans' code for the targets of one framework."""

    def on_hosts(self, target: str, seats: Sequence[Seat]) -> bool:
        """Whether the target's ranks are those of the cluster, whose hosts have to be started one by one; else they are
        processes of one machine."""

    def check_software(self, workload: Workload, target: str, style: str) -> None:
        """Refuse a stack or an optimizer that no code is written for, whatever the plan."""

    def check_model(self, calls: Calls) -> None:
        """Refuse a model of another framework."""

    def emit(self, subject: Subject, folder: Path) -> Files:
        """The files of a plan for this folder. Raises a `NotEmitted` for plans that no code is written for."""

    def with_hosts(self, files: Files, target: str, seats: Sequence[Seat]) -> Files:
        """The files of a plan for devices of hosts, with the places of its ranks."""

    def how_to_start(self, files: Files) -> str:
        """Where to run the script that starts a plan."""

    def check_installed(self) -> None:
        """Refuse to run anything where the framework is missing, or too old."""

    def verify(self, subject: Subject, folder: Path, *, steps: int, limit_s: float) -> Verified:
        """Run what was written into a folder, on processes of this machine, against the model on one device."""

    def each_alone(self, subject: Subject, folder: Path, *, limit_s: float) -> Iterator[Alone]:
        """Run one rank of every group of ranks, alone, on tensors without memory."""

    def by_rank(self) -> bool:
        """Whether every rank is a process, with a part of the model of its own."""

    def parallelize(self, model: Any, subject: Subject, reference: str) -> Any:
        """A model under a plan, for a training loop of one's own: this rank's part of it, or that of all devices;
        `reference` names the plan's model."""


class Measurer(Protocol):
    """What measures kernels and collectives of this machine, as a target runs them."""

    LIBRARY: str
    """The library of its collectives."""
    REFERENCE: Path
    REFERENCES: tuple[tuple[str, int, int], ...]
    """The file of reference models, and of each its name, the sequences of a step, and the tokens of each."""

    def libraries(self) -> tuple[tuple[str, str], ...]:
        """The software that is measured, with its versions."""

    def measure(
        self,
        cases: Sequence[Case],
        samples: Path,
        *,
        ranks: int,
        threads: int,
        budget_s: float,
        limit_s: float,
        told: Told,
    ) -> None:
        """Append samples of all cases to a file, on ranks that are started for this."""

    def steps(
        self, scripts: Sequence[Path], *, ranks: int, threads: int, rounds: int, each: int, limit_s: float
    ) -> list[list[float]]:
        """Seconds of every round of every script, which are run in turns."""

    def measure_joined(
        self, cases: Sequence[Case], samples: Path, *, threads: int, budget_s: float, told: Told
    ) -> None:
        """The same as one of the ranks that a launcher started."""


MEASURED: tuple[str, ...] = tuple(target for data in _DATA.values() for target in data.MEASURED)
"""Targets whose machines can be measured."""


def measurer(target: str) -> Measurer:
    """What measures this machine for a target."""
    for name, data in _DATA.items():
        if target in data.MEASURED:
            found: Measurer = import_module(f"meshwright.backends.{name}.measure.door")
            return found
    raise MeasuringUnknown(place=f"target {target}", cause="nothing measures for it", fix=instead(target, MEASURED))


def backend(target: str) -> Backend | None:
    """The backend of a target; None for a target without a runtime."""
    name = next((name for name, data in _DATA.items() if target in data.TARGETS), None)
    return import_module(f"meshwright.backends.{name}.door") if name is not None else None


def usual_target(framework: str, devices: Sequence[str]) -> str:
    """The target that is meant for models of a framework, named by its package, on devices of these names; `any` where
    no code is written for such models."""
    return _DATA[framework].usual(devices) if framework in _DATA else ANY.target


def local_target(framework: str) -> str:
    """The target whose ranks are processes of this machine, for models of a framework, named by its package."""
    if framework not in _LOCAL:
        raise EmissionTarget(
            place=f"models of {framework.rstrip('_')}",
            cause="no code is written for them",
            fix="plan with --target any",
        )
    return _LOCAL[framework]
