"""List scheduling: every group, whenever it is free, starts the best action that is ready.

Time goes forward from event to event; what a group can start is, of each of its stages and kinds, the next micro-batch.
A `Rule` says which is best, how many micro-batches may be in flight, and whether to wait for something better that is
known to arrive while the second best would run.

Memory. A forward may start only if afterwards there is a way out: the oldest micro-batch can run through, then the next
(Dijkstra's banker). Every stage of a group is entered in the order of micro-batches, so it is enough to look at the
oldest one that has not entered a stage behind: with what it and younger ones hold, and all that it still needs, the
group must not be fuller than it may. An input gradient may start if no weight gradient must make room first; weight
gradients always may. So no order gets stuck that has room for one micro-batch at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

from meshwright.ir.schedules import FORWARD, WEIGHT
from meshwright.planner.scheduling.job import ROUNDING, Job, Lists

BACKWARD_FIRST, OLDEST_FIRST, IN_TURN, FORWARD_FIRST = range(4)


@dataclass(frozen=True, slots=True)
class Rule:
    """The priority by which a free group chooses.

    order     backward before forward; the oldest micro-batch; forward and backward in turn; forward before backward.
              Among equals what has the longest way to the end. Weight gradients come last
    ahead     micro-batches in flight on the first of v stages of group g of p, at most ahead (p - g) + (v - 1) p: with
              one stage, 1 as in 1F1B, 2 as in ZB-H2
    patient   wait for what comes first by the order and is known to arrive before the second best would end
    """

    order: int
    ahead: float
    patient: bool


RULES = tuple(
    Rule(order, ahead, patient)
    for patient, ahead, order in product(
        (False, True), (inf, 1, 1.5), (IN_TURN, BACKWARD_FIRST, FORWARD_FIRST, OLDEST_FIRST)
    )
)
"""Those that are best most often come first: a budget of work may end before the last."""


def listed(job: Job, rule: Rule) -> Lists | None:
    """The lists that a rule makes; None if a group has no room for one micro-batch."""
    return _Run(job, rule).lists()


def roomy(job: Job) -> bool:
    """Whether every group has room for one micro-batch."""
    return all(sum(holding.kept_bytes) <= limit for holding, limit in zip(job.holdings, limits(job), strict=True))


def limits(job: Job) -> list[float]:
    """The bytes that a group may hold between actions so that there is room for any action that it can run next."""
    found = []
    for holding in job.holdings:
        most = 0.0
        for kept, waiting, working in zip(
            holding.kept_bytes, holding.waiting_bytes, holding.working_bytes, strict=True
        ):
            most = max(most, *(working[kind] - kept for kind in job.kinds if kind != WEIGHT))
            if job.apart:
                most = max(most, max(0.0, waiting - kept) + max(0.0, working[WEIGHT] - waiting))
        found.append(holding.room_bytes * (1 + ROUNDING / 2) - most)
    return found


class _Run:
    """One pass of list scheduling."""

    def __init__(self, job: Job, rule: Rule) -> None:
        shape = job.shape
        self.job, self.rule, self.depth, self.count = job, rule, shape.depth, shape.microbatches
        self.done = [[0, 0, 0, 0] for _ in range(self.depth)]
        """By stage and kind, actions that have started."""
        self.arrived = [[[inf] * self.count for _ in range(2)] for _ in range(self.depth)]
        """By stage, of values and gradients: when those of every micro-batch are there."""
        self.arrived[0][0] = [0.0] * self.count
        self.free = list(job.release_s)
        self.link: dict[tuple[int, int], float] = {}
        self.held = [0.0] * len(shape.stages)
        self.limits = limits(job)
        groups = len(shape.stages)
        self.caps = [
            rule.ahead * (groups - group) + (len(stages) - 1) * groups for group, stages in enumerate(shape.stages)
        ]
        self.turn = [FORWARD] * len(shape.stages)
        self.codes: list[list[int]] = [[] for _ in shape.stages]
        self.events = [(at, group) for group, at in enumerate(job.release_s)]
        self.ways = tails(job)
        self.bytes = {
            stage: (holding.kept_bytes[at], holding.waiting_bytes[at] if job.apart else 0.0)
            for stages, holding in zip(shape.stages, job.holdings, strict=True)
            for at, stage in enumerate(stages)
        }

    def lists(self) -> Lists | None:
        if not roomy(self.job):
            return None
        heapq.heapify(self.events)
        while self.events:
            now, group = heapq.heappop(self.events)
            if now >= self.free[group]:
                self.step(now, group)
        lists = tuple(tuple(codes) for codes in self.codes)
        return lists if sum(map(len, lists)) == self.job.size else None

    def step(self, now: float, group: int) -> None:
        """Start the best action that is ready, or wait."""
        best: tuple[tuple[float, ...], int, int, int] | None = None
        better: list[tuple[tuple[float, ...], float]] = []
        for stage, kind, microbatch, there in self.next(group):
            key = self.key(group, stage, kind, microbatch)
            if there > now:
                better.append((key, there))
            elif best is None or key < best[0]:
                best = key, stage, kind, microbatch
        if best is None:
            return
        key, stage, kind, microbatch = best
        if self.rule.patient:
            end = now + self.job.taken_s[stage][kind]
            if any(other < key and there < end for other, there in better):
                return
        self.start(now, group, stage, kind, microbatch)

    def next(self, group: int) -> Iterator[tuple[int, int, int, float]]:
        """The next micro-batch of every stage and kind, if it can start as soon as its inputs arrive, and when they
        do."""
        back = self.job.back
        held, limit = self.held[group], self.limits[group]
        for stage in self.job.shape.stages[group]:
            done = self.done[stage]
            forward, backward = done[FORWARD], done[back]
            if forward < self.count:
                there = self.arrived[stage][0][forward]
                if there < inf and self.enters(group, stage):
                    yield stage, FORWARD, forward, there
            if backward < forward and held <= limit:
                there = self.arrived[stage][1][backward]
                if there < inf:
                    yield stage, back, backward, there
            if self.job.apart and done[WEIGHT] < backward:
                yield stage, WEIGHT, done[WEIGHT], 0.0

    def enters(self, group: int, stage: int) -> bool:
        """Whether memory allows the rest of the step after one more forward pass of a stage."""
        kept, limit = self.bytes[stage][0], self.limits[group]
        if self.held[group] + kept > limit:
            return False
        stages, done = self.job.shape.stages[group], self.done
        if stage == stages[0] and done[stage][FORWARD] - done[stage][self.job.back] >= self.caps[group]:
            return False
        for behind in stages:
            if behind <= stage:
                continue
            oldest = done[behind][FORWARD]
            needed = kept
            for other in stages:
                own = self.bytes[other][0]
                needed += own if other >= behind else own * (done[other][FORWARD] - oldest)
            if needed > limit:
                return False
        return True

    def key(self, group: int, stage: int, kind: int, microbatch: int) -> tuple[float, ...]:
        way = -self.ways[stage][kind]
        if kind == WEIGHT:
            return (2.0, microbatch, way)
        order = self.rule.order
        if order == OLDEST_FIRST:
            return (0.0, microbatch, way)
        forward = kind == FORWARD
        if order == IN_TURN:
            return (0.0, float(forward != (self.turn[group] == FORWARD)), microbatch, way)
        return (0.0, float(forward == (order == BACKWARD_FIRST)), way, microbatch)

    def start(self, now: float, group: int, stage: int, kind: int, microbatch: int) -> None:
        end = now + self.job.taken_s[stage][kind]
        self.free[group] = end
        heapq.heappush(self.events, (end, group))
        self.codes[group].append(4 * (microbatch * self.depth + stage) + kind)
        self.done[stage][kind] += 1
        kept, waiting = self.bytes[stage]
        if kind == WEIGHT:
            self.held[group] -= waiting
            return
        self.held[group] += kept if kind == FORWARD else waiting - kept
        self.turn[group] = self.job.back if kind == FORWARD else FORWARD
        to, what = (stage + 1, 0) if kind == FORWARD else (stage - 1, 1)
        if kind == FORWARD and to == self.depth:
            to, what = stage, 1
        if to < 0:
            return
        there = end
        receiver = self.job.group_of[to]
        lag = self.job.lag_s[stage][kind]
        if receiver != group:
            there = max(end, self.link.get((group, receiver), 0.0)) + lag
            self.link[group, receiver] = there
            heapq.heappush(self.events, (there, receiver))
        self.arrived[to][what][microbatch] = there


def tails(job: Job) -> list[list[float]]:
    """The longest way from the start of an action to the end of the step, by stage and kind."""
    back = job.back
    found = [[0.0] * 4 for _ in range(job.shape.depth)]
    for stage in range(job.shape.depth):
        taken, ending = job.taken_s[stage], job.ending_s[job.group_of[stage]]
        found[stage][WEIGHT] = taken[WEIGHT] + ending
        after = found[stage][WEIGHT] if job.apart else ending
        if stage:
            after = max(after, job.lag_s[stage][back] + found[stage - 1][back])
        found[stage][back] = taken[back] + after
    after = found[-1][back]
    for stage in reversed(range(job.shape.depth)):
        found[stage][FORWARD] = job.taken_s[stage][FORWARD] + after
        if stage:
            after = job.lag_s[stage - 1][FORWARD] + found[stage][FORWARD]
    return found
