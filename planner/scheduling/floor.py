"""Lower bounds on all orders of a job, by formula. All groups, all stages of each, the greatest counts:

    head(s) + m x sum over own stages t >= s of (F + I) + way down from s     the last I of a group's lowest stage comes
                                                                              after all forwards and I of the group
    head(first) + m x all work + ending                                       the work of a group, fill before it
    F of all stages + I of all stages + W of the first + ending               one micro-batch through everything
    head(first) + m x byte-seconds / room + way down from the first           what is held is held for a round trip

head(s): until the first value can be at stage s. Way down: from the end of an input gradient at s, through those below
it, to the end. Byte-seconds: of every stage, the bytes that a micro-batch keeps there times the least time from the
start of its forward to the end of its input gradient. Where the backward pass is whole, B stands for I, and there is no
W. Where groups roll on into the next step, only what happens
between a group's first and last action counts.
"""

from __future__ import annotations

from meshwright.ir.schedules import FORWARD
from meshwright.planner.scheduling.greedy import tails
from meshwright.planner.scheduling.job import Job

SLACK = 1e-9
"""Relative: sums in another order."""


def floor_s(job: Job) -> float:
    """The greatest of the lower bounds."""
    found = 0.0 if job.rolling else _alone_s(job)
    for group in range(len(job.shape.stages)):
        found = max(found, group_floor_s(job, group))
    return found * (1 - SLACK)


def _heads(job: Job) -> list[float]:
    """The earliest time at which a value can be at every stage."""
    release, found = job.release_s, [job.release_s[0]]
    for stage in range(1, job.shape.depth):
        before = found[-1] + job.taken_s[stage - 1][FORWARD] + job.lag_s[stage - 1][FORWARD]
        found.append(max(before, release[job.group_of[stage]]))
    return found


def _alone_s(job: Job) -> float:
    last = job.shape.depth - 1
    return _heads(job)[last] + tails(job)[last][FORWARD]


def group_floor_s(job: Job, group: int) -> float:
    """The lower bound from the work and the room of one group."""
    stages, count, back = job.shape.stages[group], job.shape.microbatches, job.back
    heads, ways, taken = _heads(job), tails(job), job.taken_s
    rolling, ending = job.rolling, job.ending_s[group]
    work = count * sum(taken[stage][kind] for stage in stages for kind in job.kinds)
    found = (0.0 if rolling else heads[stages[0]]) + work + ending
    for at, stage in enumerate(stages):
        both = count * sum(taken[own][FORWARD] + taken[own][back] for own in stages[at:])
        found = max(found, (ending if rolling else heads[stage] + ways[stage][back] - taken[stage][back]) + both)
    first = stages[0]
    window = count * _share_of_room(job, group)
    after = ending if rolling else heads[first] + ways[first][back] - taken[first][back]
    return max(found, window + after)


def _share_of_room(job: Job, group: int) -> float:
    """Least seconds for which one micro-batch fills all that a group may hold. Weight gradients may run after the last
    input gradient: what they wait with is not counted."""
    holding, depth, back = job.holdings[group], job.shape.depth, job.back
    beyond = (kept - working[FORWARD] for kept, working in zip(holding.kept_bytes, holding.working_bytes, strict=True))
    room = holding.room_bytes + max(0.0, *beyond)
    if room <= 0:
        return 0.0
    total = 0.0
    for stage, kept in zip(job.shape.stages[group], holding.kept_bytes, strict=True):
        ahead = range(stage, depth)
        trip = sum(job.taken_s[other][kind] for other in ahead for kind in (FORWARD, back))
        trip += sum(job.lag_s[other][FORWARD] for other in ahead)
        trip += sum(job.lag_s[other][back] for other in ahead if other > stage)
        total += kept * trip
    return total / room
