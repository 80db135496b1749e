"""Measured curves of collectives: built from rows, cleaned by rule, read on a law's clock.

A curve is (bytes, seconds) of one kind on one device, `ranks` in `hosts`. To build one from rows:

1. **Corrupt rows** are taken out. More bytes cannot take less time, so a row that took longer than a later, larger one
   by more than `SPIKE` is wrong (a stall, another job), and is named; so is one that took no time.
2. Rows of the same size (two dtypes) are joined by their geometric mean, and what still falls by less than that is
   levelled out the same way, so that a curve never falls.

Between two points a curve is read as a power of the law's time, not of the bytes: with L the law of the same group,

    log T(x)  is linear in  log L(x)  between neighbours;     T(x) = T_end L(x) / L(x_end)  outside

The law knows where a latency ends and a bandwidth begins; the points say how long it really took. A curve thus meets
its points, grows with x as L does, and goes on beyond them at the law's pace. Over wires of another rate (a user's own
device like a measured one, a link matrix) L is the law of those, and the curve says what goes with such a time: faster
wires never take longer than those that were measured. So it is with curves that a calibration measured over all hosts
of a cluster (`Network`): other groups of its hosts take what went with the time that the law has for them.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import groupby
from math import exp, log

from meshwright.cost_models.collectives.topology import GroupShape
from meshwright.cost_models.hardware.devices import device

SPIKE = 0.25
"""How much longer than a later, larger row a row may take, as a share; repetitions of one row stay within this."""

Point = tuple[float, float]
"""(bytes, seconds)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Measured times of one collective; bytes as `laws` counts them.

    - Points rise in bytes and never fall in seconds.
    """

    kind: str
    device: str
    hosts: int
    per_host: int
    points: tuple[Point, ...]
    source: str
    libraries: tuple[str, ...] = ("nccl", "xla")
    """Which libraries take as long: XLA calls NCCL on GPUs, and curves of TPUs are its own."""

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host


@dataclass(frozen=True, slots=True)
class Network:
    """The wires over which curves of several hosts were measured: those of the whole cluster, as the ranks of all hosts
    share them, and between the first ranks of two hosts."""

    hosts: int
    per_host: int
    whole: GroupShape
    pair: GroupShape

    def of(self, kind: str) -> GroupShape:
        """The group that a kind was measured on."""
        return self.pair if kind == "p2p" else self.whole


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """A collection of curves, compared by identity, so that prices can be remembered by it.

    - Curves of several hosts are read only with the `network` that they were measured on.
    """

    all: tuple[Curve, ...]
    network: Network | None = None


NO_CURVES = Curves(())
"""Leaves the laws alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement, as it was published."""

    kind: str
    device: str
    hosts: int
    per_host: int
    dtype: str
    nbytes: float
    seconds: float
    source: str


class Reader:
    """A curve on the clock of a law."""

    __slots__ = ("_law", "_points", "_ticks", "_times")

    def __init__(
        self,
        points: Sequence[Point],
        law: Callable[[float], float],
        measured: Callable[[float], float] | None = None,
    ) -> None:
        """Read a curve; `measured` is the law of the wires that its points were measured on, if those differ."""
        self._law, self._points = law, tuple(points)
        self._ticks = [log((measured or law)(nbytes)) for nbytes, _ in points]
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

    def least_s(self, nbytes: float) -> float:
        """The least seconds of so many bytes in any number of parts, none of which beats the best rate up to there."""
        paces = [seconds / size for size, seconds in self._points if size <= nbytes]
        return min([*(pace * nbytes for pace in paces), self.seconds(nbytes)])


def ends(points: Sequence[Point]) -> Callable[[float], float]:
    """The clock of a network whose rate is not stated: the least time, and the last point's rate."""
    alpha, beta = points[0][1], points[-1][1] / points[-1][0]
    return lambda nbytes: alpha + nbytes * beta


def built(rows: Iterable[Row]) -> tuple[tuple[Curve, ...], tuple[Row, ...]]:
    """Curves from rows, and the rows that were removed as corrupt."""
    curves, corrupt = [], []
    ordered = sorted(rows, key=_group_of)
    for (kind, name, hosts, per_host), same in groupby(ordered, key=_group_of):
        kept: list[Row] = []
        for _, of_dtype in groupby(sorted(same, key=_place_of), key=lambda row: row.dtype):
            sized = [row for row in of_dtype if row.nbytes > 0]
            corrupt += [row for row in sized if not row.seconds > 0]
            run = [row for row in sized if row.seconds > 0]
            bad = set(spikes([(row.nbytes, row.seconds) for row in run]))
            corrupt += [row for place, row in enumerate(run) if place in bad]
            kept += [row for place, row in enumerate(run) if place not in bad]
        if kept:
            points = levelled((row.nbytes, row.seconds) for row in kept)
            source = " + ".join(sorted({row.source for row in kept}))
            curves.append(Curve(kind=kind, device=name, hosts=hosts, per_host=per_host, points=points, source=source))
    return tuple(curves), tuple(corrupt)


def _group_of(row: Row) -> tuple[str, str, int, int]:
    return row.kind, row.device, row.hosts, row.per_host


def _place_of(row: Row) -> tuple[str, float]:
    return row.dtype, row.nbytes


def spikes(points: Sequence[Point]) -> tuple[int, ...]:
    """Indices of rows that took longer than a later one by more than `SPIKE`; points in order of bytes."""
    found, least = [], float("inf")
    for place in reversed(range(len(points))):
        seconds = points[place][1]
        if seconds > least * (1 + SPIKE):
            found.append(place)
        least = min(least, seconds)
    return tuple(reversed(found))


def levelled(points: Iterable[Point]) -> tuple[Point, ...]:
    """Points with one time per size that never falls: neighbours that fall get their geometric mean."""
    joined = [
        (nbytes, sum(log(seconds) for _, seconds in same) / len(same))
        for nbytes, rows in groupby(sorted(points), key=lambda point: point[0])
        for same in [list(rows)]
    ]
    pools: list[tuple[list[float], float]] = []
    for nbytes, seconds_log in joined:
        sizes, mean = [nbytes], seconds_log
        while pools and pools[-1][1] > mean:
            before, earlier = pools.pop()
            mean = (mean * len(sizes) + earlier * len(before)) / (len(sizes) + len(before))
            sizes = before + sizes
        pools.append((sizes, mean))
    return tuple((nbytes, exp(mean)) for sizes, mean in pools for nbytes in sizes)


@cache
def shipped() -> Curves:
    """The curves of `profiles/collectives_curves.json`."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "collectives_curves.json").read_text("utf-8")
    table = json.loads(text)
    curves = tuple(
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
    return Curves(curves)


def matching(kind: str, shape: GroupShape, curves: Curves, library: str) -> tuple[Curve, GroupShape] | None:
    """The curve of this kind that was measured on a group of the same form: one device, one host or rack, over wires of
    the device's own kind; and the shape that it was measured on, where these wires had the device's own rate. For a
    group of several hosts that of the whole cluster."""
    if len(shape.devices) != 1:
        return None
    if shape.units > 1:
        return _over_hosts(kind, shape, curves, library)
    if len(shape.levels) != 1:
        return None
    # A send between two devices behind one switch does not depend on how many more do the same.
    sends = kind in ("p2p", "shift")
    for curve in curves.all:
        same = curve.device == shape.devices[0] and curve.hosts == 1 and library in curve.libraries
        if same and curve.kind == ("p2p" if sends else kind) and (sends or curve.ranks == shape.ranks):
            found, (level,) = device(curve.device), shape.levels
            wire = found.island or found.host_link
            if wire.kind != level.kind:
                return None
            rate = wire.bandwidth.value
            at_rate = replace(level, part_bytes_per_s=rate, rank_bytes_per_s=rate, pair_bytes_per_s=rate)
            return curve, replace(shape, levels=(at_rate,))
    return None


def _over_hosts(kind: str, shape: GroupShape, curves: Curves, library: str) -> tuple[Curve, GroupShape] | None:
    network, wanted = curves.network, "p2p" if kind == "shift" else kind
    if network is None:
        return None
    for curve in curves.all:
        same = (curve.hosts, curve.per_host) == (network.hosts, network.per_host) and library in curve.libraries
        if same and curve.kind == wanted and curve.device == shape.devices[0]:
            there = network.of(wanted)
            return (curve, there) if there.levels[-1].kind == shape.levels[-1].kind else None
    return None
