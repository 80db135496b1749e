"""Numbers that say how they are known, and what a host has of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Known = Literal["measured", "declared", "datasheet", "assumed"]
"""Read off the machine by a tool; said by a scheduler, a hostfile or the user; of the table of devices; a stand-in."""


@dataclass(frozen=True, slots=True)
class Told:
    """A number, and how it is known; hosts are equal where the numbers are."""

    value: float
    known: Known = field(compare=False)
    by: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nics:
    """The adapters of a host that carry a job's traffic."""

    kind: str
    kind_known: Known = field(compare=False)
    kind_by: str = field(compare=False)
    gbps: Told
    count: Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host.

    - `gpu` is a device of the table; `own` has the keys of a [[device]] in which its devices differ from that.
    - `called`: what the driver, or the processor, calls it.
    """

    gpu: str
    called: str
    count: Told
    own: tuple[tuple[str, Told], ...] = ()
    nics: Nics | None = None
    remarks: tuple[str, ...] = field(default=(), compare=False)
