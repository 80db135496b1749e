"""Measured curves of collectives: built from rows, cleaned by rule, read on a law's clock.

A curve is (bytes, seconds) of one kind on one device, `ranks` in `hosts`. To build one from rows:

1. **Corrupt rows** are taken out. More bytes cannot take less time, so a row that took longer than a later, larger one by
   more than `SPIKE` is wrong (a stall, another job), and is named.
2. Rows of the same size (two dtypes) are joined by their geometric mean, and what still falls by less than that is
   levelled out the same way, so that a curve never falls.

Between two points a curve is read as a power of the law's time, not of the bytes: with L the law of the same group,

    log T(x)  is linear in  log L(x)  between neighbours;     T(x) = T_end L(x) / L(x_end)  outside

The law knows where a latency ends and a bandwidth begins; the points say how long it really took. A curve thus meets its
points, grows with x as L does, and goes on beyond them at the law's pace.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from math import exp, log

from meshwright.cost_models.topology import GroupShape

SPIKE = 0.25
"""How much longer than a later, larger row a row may take, as a share; repetitions of one row stay within this."""

Point = tuple[float, float]
"""(bytes, seconds)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Measured times of one collective; bytes as `collective_laws` counts them.

    - Points rise in bytes and never fall in seconds.
    """

    kind: str
    device: str
    hosts: int
    per_host: int
    points: tuple[Point, ...]
    source: str

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host


class Reader:
    """A curve on the clock of a law."""

    __slots__ = ("_law", "_times", "_ticks")

    def __init__(self, points: Sequence[Point], law: Callable[[float], float]) -> None:
        self._law = law
        self._ticks = [log(law(nbytes)) for nbytes, _ in points]
        self._times = [log(seconds) for _, seconds in points]

    def seconds(self, nbytes: float) -> float:
        tick = log(self._law(nbytes))
        ticks, times = self._ticks, self._times
        if tick <= ticks[0]:
            return exp(times[0] + tick - ticks[0])
        if tick >= ticks[-1]:
            return exp(times[-1] + tick - ticks[-1])
        right = bisect_left(ticks, tick)
        left = right - 1
        part = (tick - ticks[left]) / (ticks[right] - ticks[left])
        return exp(times[left] + part * (times[right] - times[left]))


def spikes(points: Sequence[Point]) -> tuple[int, ...]:
    """Places of the rows that took longer than a later one by more than `SPIKE`; points in order of bytes."""
    found, least = [], float("inf")
    for place in reversed(range(len(points))):
        seconds = points[place][1]
        if seconds > least * (1 + SPIKE):
            found.append(place)
        least = min(least, seconds)
    return tuple(reversed(found))


def levelled(points: Iterable[Point]) -> tuple[Point, ...]:
    """One point for each size, never falling: neighbours that fall are given their geometric mean."""
    joined = [
        (nbytes, sum(log(seconds) for _, seconds in same) / len(same))
        for nbytes, rows in groupby(sorted(points), key=lambda point: point[0])
        for same in [list(rows)]
    ]
    pools: list[tuple[list[float], float]] = []
    for nbytes, mean in joined:
        sizes = [nbytes]
        while pools and pools[-1][1] > mean:
            before, earlier = pools.pop()
            mean = (mean * len(sizes) + earlier * len(before)) / (len(sizes) + len(before))
            sizes = before + sizes
        pools.append((sizes, mean))
    return tuple((nbytes, exp(mean)) for sizes, mean in pools for nbytes in sizes)


@cache
def shipped() -> tuple[Curve, ...]:
    """The curves of `profiles/collectives_curves.json`."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "collectives_curves.json").read_text("utf-8")
    table = json.loads(text)
    return tuple(
        Curve(
            kind=entry["kind"],
            device=entry["device"],
            hosts=entry["hosts"],
            per_host=entry["per_host"],
            points=tuple((nbytes, microseconds * 1e-6) for nbytes, microseconds in entry["bytes_us"]),
            source=table["sources"][entry["source"]]["document"],
        )
        for entry in table["curves"]
    )


def matching(kind: str, shape: GroupShape, curves: Sequence[Curve]) -> Curve | None:
    """The curve of this kind that was measured on a group like this: one device, one host or rack."""
    if len(shape.devices) != 1 or shape.units != 1:
        return None
    for curve in curves:
        # A send between two devices behind one switch does not depend on how many more do the same.
        sized = kind in ("p2p", "shift") or curve.ranks == shape.ranks
        if curve.kind == kind and curve.device == shape.devices[0] and curve.hosts == 1 and sized:
            return curve
    return None
