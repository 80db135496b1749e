"""Runs that constants were fitted on, and whether what is priced is like them.

`Seen` is what the fitted runs had; a `Case` is what is priced. What a case may have that no fitted run had (`UNSEEN`):

    precision   products in this precision on this architecture
    device      this architecture of chips at all; then no precision was seen on it either
    stack       this execution style with this generation of attention
    ranks       a quarter as many ranks, or more
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.cost_models.compute.profile import chip_of
from meshwright.cost_models.hardware.devices import Device
from meshwright.ir.target.workload import Workload

UNSEEN = ("precision", "device", "stack", "ranks")
"""What may be beyond all fitted runs."""
FAR = 4
"""Of ranks: how many times as many are beyond what was fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is priced, as far as the width of its interval depends on it."""

    architectures: tuple[str, ...]
    """Of the chips of its devices; "" where none is known."""
    precision: str
    stack: tuple[str, str]
    """Execution style, and generation of attention."""
    experts: bool
    """Whether tokens are routed to experts."""
    ranks: int

    @staticmethod
    def of(devices: Iterable[Device], workload: Workload, *, experts: bool, ranks: int) -> Case:
        return Case(
            architectures=tuple(sorted({chip_of(device).architecture for device in devices})),
            precision=workload.precision,
            stack=(workload.stack.style, workload.stack.attention),
            experts=experts,
            ranks=ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the runs had that constants were fitted on."""

    precisions: frozenset[tuple[str, str]]
    """Architectures, each with a precision."""
    stacks: frozenset[tuple[str, str]]
    ranks: int
    """The most of a run."""

    @staticmethod
    def of(cases: Iterable[Case]) -> Seen:
        known = list(cases)
        return Seen(
            precisions=frozenset((name, case.precision) for case in known for name in case.architectures),
            stacks=frozenset(case.stack for case in known),
            ranks=max((case.ranks for case in known), default=0),
        )

    def lacks(self, case: Case) -> tuple[str, ...]:
        """What of a case no fitted run had, of `UNSEEN`."""
        known = {name for name, _ in self.precisions}
        beyond = {
            "precision": any((name, case.precision) not in self.precisions for name in case.architectures),
            "device": not known.issuperset(case.architectures),
            "stack": case.stack not in self.stacks,
            "ranks": case.ranks >= FAR * self.ranks,
        }
        return tuple(name for name in UNSEEN if beyond[name])

    def to_json(self) -> dict[str, Any]:
        names = sorted({name for name, _ in self.precisions})
        return {
            "precisions": {name: sorted(one for of, one in self.precisions if of == name) for name in names},
            "stacks": sorted([style, attention] for style, attention in self.stacks),
            "ranks": self.ranks,
        }

    @staticmethod
    def read(table: Mapping[str, Any]) -> Seen:
        """Read what `to_json` writes."""
        return Seen(
            precisions=frozenset((name, one) for name, ones in table["precisions"].items() for one in ones),
            stacks=frozenset((style, attention) for style, attention in table["stacks"]),
            ranks=table["ranks"],
        )
