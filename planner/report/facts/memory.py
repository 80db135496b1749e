"""Memory: what a rank of every group holds at its fullest instant, from the prediction's ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.cost_models.prediction import Prediction, StagePrediction

PARTS = {
    "parameters": ("parameters",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "saved activations": ("activations", "recomputed"),
    "working memory": ("transient", "gathered", "staging", "logits"),
    "runtime": ("communicators", "context", "idle", "rounding"),
}
"""What memory is held by, in the words of a report, each with its parts of the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """Memory of a rank of one group, which runs the same stages, or of several neighbours that hold the same.

    - The parts add up to `peak_bytes`.
    """

    first: int
    last: int
    """Groups by number; where none has several stages, these are the numbers of stages."""
    several: bool
    """Whether groups have several stages, which share their memory."""
    ranks: int
    """Of one group."""
    parts: tuple[tuple[str, float], ...]
    peak_bytes: float
    capacity_bytes: float
    device_bytes: float
    instant: str
    host_bytes: float

    @property
    def left_bytes(self) -> float:
        return self.capacity_bytes - self.peak_bytes

    @property
    def name(self) -> str:
        """What people would call it."""
        what = "group" if self.several else "stage"
        return f"{what} {self.first}" if self.first == self.last else f"{what}s {self.first}-{self.last}"


def memory_of(prediction: Prediction, groups: Sequence[int]) -> tuple[GroupMemory, ...]:
    """The memory of all groups of ranks in order; neighbours that hold the same are one. `groups` has the group of
    every stage."""
    firsts = [prediction.stages[groups.index(group)] for group in range(max(groups) + 1)]
    several, found = len(firsts) < len(groups), list[tuple[int, int, StagePrediction]]()
    for index, stage in enumerate(firsts):
        if found and (found[-1][2].memory, found[-1][2].ranks) == (stage.memory, stage.ranks):
            found[-1] = (found[-1][0], index, stage)
        else:
            found.append((index, index, stage))
    return tuple(_group(*one, several=several) for one in found)


def _group(first: int, last: int, stage: StagePrediction, *, several: bool) -> GroupMemory:
    held, known = stage.memory, dict(stage.memory.parts)
    parts = tuple((name, sum(known.get(one, 0.0) for one in own)) for name, own in PARTS.items())
    return GroupMemory(
        first=first,
        last=last,
        several=several,
        ranks=stage.ranks,
        parts=parts,
        peak_bytes=held.peak_bytes,
        capacity_bytes=held.capacity_bytes,
        device_bytes=held.device_bytes,
        instant=held.instant,
        host_bytes=held.host_bytes,
    )


def fullest(groups: Sequence[GroupMemory]) -> GroupMemory:
    """The group whose ranks have least room."""
    return min(groups, key=lambda one: one.left_bytes)
