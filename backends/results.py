"""Results of a backend: files that were written, and findings of running them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

EXACT, IN_FP64 = 1e-5, 1e-9
"""What values may be off by, relative to their measure, where they were computed in fp32, and in fp64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place of a rank of the cluster: its host by number, its device, and the adapters of that host."""

    host: int
    device: str
    """What a rank is: `CPU`, or the name of a GPU; of a user's own device, what that is like."""
    gpu: int
    """Its number on the host."""
    nic: int
    """The adapter that serves this GPU, -1 if the host has none."""
    network: str
    """The kind of these adapters."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files that were written: texts by file name."""

    texts: tuple[tuple[str, str], ...]
    told: tuple[str, ...] = ()
    """What is to be said of them."""
    start: str = "launch.sh"
    """The one that starts the others, and may be executed."""

    def write(self, folder: Path) -> None:
        """Write them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts:
            (folder / name).write_text(text, encoding="utf-8")
        (folder / self.start).chmod(0o755)


@dataclass(frozen=True, slots=True)
class Off:
    """A value that differs: by how much, relative to its measure, and how much is allowed."""

    what: str
    by: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what} is off by {self.by:.1e}, {self.allowed:.0e} allowed"


def left_in_fp64(before: Iterable[Off], wide: Iterable[Off]) -> tuple[Off, ...]:
    """Of the values that are off in fp64, those that rounding does not explain: what makes much of it does so there,
    too, and may be off by as much of what it was off by in fp32 as values may be off by in fp32."""
    was = {one.what: min(one.by, 1.0) for one in before}
    return tuple(one for one in wide if not one.by <= EXACT * was.get(one.what, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The comparison of emitted code with the model, and the differences."""

    ranks: int
    steps: int
    losses: tuple[float, ...]
    tensors: int
    """Gradients and parameters that were compared on every rank in every step."""
    worst: float
    """The largest difference, as a part of what it is measured by."""
    collectives: tuple[tuple[str, str, int, int], ...]
    """Of the first rank and one step: kind, mesh axes, how many, bytes in all."""
    once: tuple[tuple[str, str, int, int], ...]
    """The same of what was executed in one step only."""
    memory: tuple[int, ...] = ()
    """The fullest instant of every rank, in bytes of tensors, after the first step; empty if there was but one, or if
    compiled code makes tensors that cannot be watched."""
    rounded: int = 0
    """Gradients in low precision that were held against those in fp32 (`Reference.rounded`), and tensors in fp32 that
    are off, and in fp64 are not; of all steps."""
    in_fp64: float | None = None
    """The largest difference where both ran in fp64, as a part of what it is measured by."""
    failed_in_fp64: str = ""
    """Why they could not."""
    apart: int = 0
    """Tensors of all steps that are off on some rank."""
    still: tuple[str, ...] = ()
    """The random operators that were put in the mean of what they draw, on both sides."""
    unlike: tuple[str, ...] = ()
    """What differs in kind: tensors that one side lacks, collectives."""
    off: tuple[Off, ...] = ()
    """Values that differ."""
    read_whole: int = 0
    """Collectives of the plan that none executes: of tokens and labels, which every rank reads whole."""

    @property
    def differences(self) -> tuple[str, ...]:
        return (*self.unlike, *map(str, self.off))

    @property
    def exact(self) -> bool:
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The findings about one rank that ran alone, and its differences from the plan."""

    rank: int
    stages: tuple[int, ...]
    collectives: tuple[tuple[str, str, int, int], ...]
    """Kind, mesh axes, how many, bytes in all."""
    wall_s: float
    cpu_s: float
    peak_bytes: int
    differences: tuple[str, ...]
