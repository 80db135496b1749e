"""One step of a run that profilers traced on its ranks: which one, on one clock, and where its time goes.

    [Traced] -> Measured: the median of the steps that count; its tracks by rank, from the step's beginning on

A step lasts as long as on the rank where it lasts longest. Traces of one host share a clock, so their ranks are shown
as they ran beside each other; where clocks lie further apart than a step is long, each rank begins at 0. Its time is

    compute         of a rank: the time in which something computes
    communication   what nothing computes beside
    waiting         what is left of the step

of the rank that waits least, as a plan's shares are those of the busiest ranks. Of a plan these are its shares, summed
up; starting kernels is waiting on a device, and compute on a processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import TraceUnreadable
from meshwright.planner.answer.traced.file import Traced
from meshwright.planner.answer.traced.tracks import COMMUNICATION, COMPUTE, Track, length, segments, union, within

US = 1e6
"""Microseconds of a second."""
WAITING = "waiting"
PARTS = (COMPUTE, COMMUNICATION, WAITING)
_COMPUTES = ("matmul", "attention", "memory-bound", "recompute", "optimizer")
_WAITS = ("bubble", "launch", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one process did in the step; times are from the step's beginning on, in microseconds."""

    name: str
    start_us: float
    """When it began the step, after the first one did."""
    step_us: float
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One step of a run, and how long its steps take."""

    by: str
    number: int
    """Of the step that is shown."""
    ranks: tuple[Rank, ...]
    steps: int
    skipped: int
    step_time_s: float
    """The median."""
    slowest_s: float
    one_clock: bool
    on_device: bool

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the step by what they go to, on the rank that waits least; they add up to its step."""
        return min(map(_parts, self.ranks), key=lambda parts: parts[WAITING])


def measured_step(traces: Sequence[Traced], skip: int) -> Measured:
    """The step of a run that is shown. Must: a trace at least."""
    names = _names_of(traces)
    common = sorted(set.intersection(*(set(one.steps) for one in traces)))
    if len(common) <= skip:
        said = f"it has {len(common)} marked steps" if len(traces) == 1 else f"they have {len(common)} steps in common"
        raise TraceUnreadable(
            place=", ".join(one.place for one in traces),
            cause=f"{said}, and the first {skip} are left out",
            fix="profile more steps, the same ones on all ranks, or --skip fewer",
        )
    lasts = {number: max(_length(one.steps[number]) for one in traces) for number in common[skip:]}
    number = next(number for number, step_us in lasts.items() if step_us == median_low(lasts.values()))
    begins, one_clock = _begins(traces, number)
    return Measured(
        by="+".join(dict.fromkeys(one.by for one in traces)),
        number=number,
        ranks=tuple(_rank(one, name, number, start) for one, name, start in zip(traces, names, begins, strict=True)),
        steps=len(lasts),
        skipped=skip,
        step_time_s=median(lasts.values()) / US,
        slowest_s=max(lasts.values()) / US,
        one_clock=one_clock,
        on_device=all(one.on_device for one in traces),
    )


def _length(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]


def _names_of(traces: Sequence[Traced]) -> list[str]:
    """The names of the ranks: as their traces have them, else by the order of the files."""
    known = [at if one.rank is None else one.rank for at, one in enumerate(traces)]
    for at, rank in enumerate(known):
        if rank in known[:at]:
            first = traces[known.index(rank)].place
            raise TraceUnreadable(
                place=traces[at].place, cause=f"it is of rank {rank}, as {first} is", fix="give one file for each rank"
            )
    return [f"rank {rank}" for rank in known]


def _begins(traces: Sequence[Traced], number: int) -> tuple[list[float], bool]:
    """When each rank begins the step after the first one does, and whether that is known."""
    starts = [one.base_us + one.steps[number][0] for one in traces if one.base_us is not None]
    first = min(starts, default=0.0)
    longest = max(_length(one.steps[number]) for one in traces)
    if len(starts) < len(traces) or max(starts) - first > longest:
        return [0.0] * len(traces), len(traces) == 1
    return [start - first for start in starts], True


def _rank(one: Traced, name: str, number: int, start_us: float) -> Rank:
    begin, end = one.steps[number]
    cut = (within(track, begin, end) for track in one.tracks)
    return Rank(
        name=name,
        start_us=start_us,
        step_us=end - begin,
        tracks=tuple(track.moved(start_us - begin) for track in cut if track.spans),
    )


def _parts(rank: Rank) -> dict[str, float]:
    """Seconds of a rank's step, by what they go to."""
    found = [piece for track in rank.tracks for piece in segments(track)]
    computes = union(own for kind, own in found if kind == COMPUTE)
    compute_us, busy_us = length(computes), length(own for _, own in found)
    parts = (compute_us, busy_us - compute_us, rank.step_us - busy_us)
    return {name: part / US for name, part in zip(PARTS, parts, strict=True)}


def predicted_parts(predicted: Prediction, *, on_device: bool) -> Mapping[str, float]:
    """A plan's shares, summed up as a trace's parts are."""
    shares = dict(predicted.shares)
    computes = _COMPUTES if on_device else (*_COMPUTES, "launch")
    waits = [name for name in _WAITS if name not in computes]
    compute_s = sum(shares.get(name, 0.0) for name in computes)
    waiting_s = sum(shares.get(name, 0.0) for name in waits)
    return {
        COMPUTE: compute_s,
        COMMUNICATION: sum(shares.values()) - compute_s - waiting_s,
        WAITING: waiting_s,
    }
