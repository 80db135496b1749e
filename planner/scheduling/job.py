"""Jobs to be ordered: work, seconds, and the bytes that may be held meanwhile. Numbers only.

Micro-batches are alike, so of every stage and kind they run in the order of their numbers without loss: the k-th to run
has the k-th result to wait for, whichever it is. What is open is how kinds and stages alternate on a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.cost_models.memory.peak import Holding
from meshwright.cost_models.schedule import Seconds, Simulated, compiled, simulate
from meshwright.ir.errors import WaitCircle
from meshwright.ir.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Shape, WorkLists

Lists = tuple[tuple[int, ...], ...]
"""Codes of every group in order (`meshwright.ir.schedules.work`)."""

ROUNDING = 1e-9
"""Relative, of bytes that are added up in one order and taken off in another."""

APART = (FORWARD, INPUT, WEIGHT)
WHOLE = (FORWARD, BACKWARD)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One step of a pipeline, to be ordered.

    - One entry per group in `release_s` (when it may begin), `ending_s` (what follows its last action) and `holdings`.
    - Must: every group has room for one micro-batch, or there is no order.
    """

    shape: Shape
    seconds: Seconds
    release_s: tuple[float, ...]
    ending_s: tuple[float, ...]
    holdings: tuple[Holding, ...]
    apart: bool
    """Weight gradients run apart from input gradients."""
    rolling: bool
    """Groups begin the next step without waiting for each other: what a group waits before its first action counts
    not."""

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of actions of one stage on one micro-batch, in order."""
        return APART if self.apart else WHOLE

    @cached_property
    def size(self) -> int:
        """How many actions there are."""
        return self.shape.depth * self.shape.microbatches * len(self.kinds)

    @cached_property
    def group_of(self) -> list[int]:
        return self.shape.group_of()

    @cached_property
    def taken_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds that an action takes of its group, by stage and kind, exposed transfers included."""
        return tuple(
            tuple(self.seconds.of(stage, kind) + self.leaving(stage, kind)[0] for kind in range(4))
            for stage in range(self.shape.depth)
        )

    @cached_property
    def lag_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds from the end of an action to the arrival of its result, by stage and kind."""
        return tuple(tuple(self.leaving(stage, kind)[1] for kind in range(4)) for stage in range(self.shape.depth))

    def leaving(self, stage: int, kind: int) -> tuple[float, float]:
        """Seconds of the transfer of an action's result: on the compute stream, and beside it."""
        to = stage + 1 if kind == FORWARD else stage - 1
        if kind == WEIGHT or not 0 <= to < self.shape.depth or self.group_of[to] == self.group_of[stage]:
            return 0.0, 0.0
        seconds = self.seconds.leaving(stage, kind)
        return (seconds, 0.0) if self.seconds.exposed else (0.0, seconds)

    @cached_property
    def back(self) -> int:
        """The kind of action that hands gradients on."""
        return INPUT if self.apart else BACKWARD


@dataclass(frozen=True, slots=True)
class Ordered:
    """Action lists with the seconds that they take."""

    lists: Lists
    ran: Simulated
    step_s: float
    """Of the job's objective."""
    spare_s: float
    """Of orders that take as long the one whose groups end sooner, all together, is the better start."""

    @property
    def worth(self) -> tuple[float, float]:
        return self.step_s, self.spare_s


def ordered(job: Job, lists: Lists) -> Ordered | None:
    """Action lists with their times; None where they wait in a circle."""
    try:
        ran = simulate(compiled(WorkLists(job.shape, lists)), job.seconds, release_s=job.release_s)
    except WaitCircle:
        return None
    before = ran.begin_s if job.rolling else (0.0,) * len(lists)
    ends = [end + after - begin for end, after, begin in zip(ran.finish_s, job.ending_s, before, strict=True)]
    return Ordered(lists, ran, max(ends), sum(ends))


def fits(job: Job, group: int, codes: Sequence[int]) -> bool:
    """Whether a group has room for all that its list makes it hold."""
    holding, stages, depth = job.holdings[group], job.shape.stages[group], job.shape.depth
    place = {stage: at for at, stage in enumerate(stages)}
    held, room = 0.0, holding.room_bytes * (1 + ROUNDING)
    for code in codes:
        kind, at = code & 3, place[code // 4 % depth]
        kept, waiting = holding.kept_bytes[at], holding.waiting_bytes[at]
        own = 0.0 if kind == FORWARD else waiting if kind == WEIGHT else kept
        if held - own + holding.working_bytes[at][kind] > room:
            return False
        held += (kept, -kept, waiting - kept, -waiting)[kind]
    return True


def all_fit(job: Job, lists: Lists) -> bool:
    """Whether every group has room for all that its list makes it hold."""
    return all(fits(job, group, codes) for group, codes in enumerate(lists))


def as_job(job: Job, lists: Lists) -> Lists:
    """Action lists with whole backward passes cut in two, where the job wants that."""
    return in_halves(lists) if job.apart else lists


def in_halves(lists: Lists) -> Lists:
    """Lists with every whole backward pass as an input gradient and a weight gradient behind it."""
    return tuple(
        tuple(
            new
            for code in codes
            for new in ((code - BACKWARD + INPUT, code - BACKWARD + WEIGHT) if code & 3 == BACKWARD else (code,))
        )
        for codes in lists
    )
