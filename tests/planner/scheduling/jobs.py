"""Jobs at random: stages that take unequally long, in loops and folded to a V, with much room and little."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from meshwright.cost_models.memory.peak import Holding
from meshwright.cost_models.schedule import Seconds
from meshwright.ir.errors import ScheduleImpossible
from meshwright.ir.schedules import SCHEDULES, Shape, check_schedule, stage_groups, work_lists
from meshwright.planner.scheduling import Job, Lists

AMPLE = 1e6


def job(
    groups: int,
    virtual: int,
    microbatches: int,
    seed: int,
    *,
    vee: bool = False,
    apart: bool = True,
    exposed: bool = False,
    rolling: bool = False,
    room: float = AMPLE,
    even: bool = False,
) -> Job:
    """A job drawn by a seed. `room` is in micro-batches of a whole group."""
    draw = Random(seed)
    stages = stage_groups("zbv" if vee else "interleaved", groups, virtual)
    depth = groups * virtual

    def some(*values: float) -> tuple[float, ...]:
        return tuple(1.0 if even else draw.choice(values) for _ in range(depth))

    forward, inputs, weights = some(0.5, 1, 1, 1, 1.5, 2), some(1, 1, 1.2, 2.5), some(0.3, 0.8, 1)
    lag = 0.0 if even else draw.choice((0.0, 0.1, 0.6))
    return Job(
        shape=Shape(stages, microbatches),
        seconds=Seconds(
            forward_s=forward,
            backward_s=tuple(a + b for a, b in zip(inputs, weights, strict=True)),
            input_s=inputs,
            weight_s=weights,
            value_s=(lag,) * (depth - 1),
            gradient_s=(lag,) * (depth - 1),
            exposed=exposed,
        ),
        release_s=tuple(0.0 if even else draw.choice((0.0, 0.0, 0.7)) for _ in stages),
        ending_s=tuple(0.0 if even else draw.choice((0.0, 0.0, 1.3)) for _ in stages),
        holdings=tuple(_holding(draw, len(own), room, even) for own in stages),
        apart=apart,
        rolling=rolling,
    )


def _holding(draw: Random, stages: int, room: float, even: bool) -> Holding:
    kept = tuple(1.0 if even else draw.choice((1.0, 2.0)) for _ in range(stages))
    waiting = tuple(one * (0.5 if even else draw.choice((0.1, 0.5, 1.5))) for one in kept)
    beyond = 0.0 if even else draw.choice((0.0, 0.7))
    working = tuple((a, a + beyond, a + beyond, b) for a, b in zip(kept, waiting, strict=True))
    most = max(beyond, *(b - a for a, b in zip(kept, waiting, strict=True)), 0.0)
    return Holding(room * sum(kept) + most, kept, waiting, working)


@st.composite
def jobs(draw: st.DrawFn, *, rolling: bool = True) -> Job:
    vee = draw(st.booleans())
    return job(
        draw(st.integers(1, 5)),
        2 if vee else draw(st.integers(1, 3)),
        draw(st.integers(1, 7)),
        draw(st.integers(0, 10_000)),
        vee=vee,
        apart=draw(st.booleans()),
        exposed=draw(st.booleans()),
        rolling=rolling and draw(st.booleans()),
        room=draw(st.sampled_from((1.0, 1.5, 2.0, 3.0, AMPLE))),
    )


def named(job: Job) -> list[Lists]:
    """Every named schedule that has this job's layout; those that split only where the job does."""
    found = []
    for name, schedule in SCHEDULES.items():
        try:
            check_schedule(name, job.shape)
        except ScheduleImpossible:
            continue
        if job.apart or not schedule.splits:
            found.append(work_lists(name, job.shape).lists)
    return found
