"""Prices beside measurements: the errors of single rows, and what they come to.

    error        (predicted - measured) / measured
    mape         mean |error|            macro_mape  mean over sources of their mape
    bias         mean error              p50, p90    of |error|, between neighbours by their distance
    pairs        two rows of equal work whose settings differ and whose times differ by more than 5 % of the smaller;
                 `ordered` is the share that the prices put in the measured order, ties counting half
    rank_correlation   Spearman's, within each group of equal work of three or more different rows, weighted by rows
    top1_regret  of each group of equal work: how much longer our pick took than the best, mean; ties share
    memory_mape  mean |error| of peak memory
    false_fits   rows that ran out of memory, and that we say fit          (a count)
    false_ooms   rows that ran, and that we say do not fit                 (a count)
    replicate_mape     mean |time - median| / time of rows with the same settings: what no price can beat

Equal work: the same model, task, sequence, global batch, precision, device, number of devices, and source. All are None
where there is nothing to take a mean of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from benchmarks.runs import Run

CLEAR_GAP = 0.05
"""Times that differ by less are not asked to be in order."""

OUTLIER_SPREADS = 4.0
OUTLIER_ERROR = 0.3
"""A row is suspect if its error is so many spreads, and so much, from the median of its source."""

NORMAL_SPREAD = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""

REPLICATE_GAP = 0.15
"""A replicate that differs more than this from the median of its like is suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What a price says of a run; bytes are of the fullest device.

    `peak_bytes` is all that a device shows, `reserved_bytes` what torch's allocator took of it, and `allocated_bytes`
    what tensors lie in of that. A price that says nothing of the last two means no difference.
    """

    step_time_s: float
    peak_bytes: float
    fits: bool
    reserved_bytes: float = 0.0
    allocated_bytes: float = 0.0

    def comparable_bytes(self, meaning: str) -> float:
        """What a published figure of this meaning counts (`cells.MEMORY_MEANINGS`)."""
        of = {"reserved": self.reserved_bytes, "allocated": self.allocated_bytes}
        return of.get(meaning, 0.0) or self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A run and its price.

    - `low_s` and `high_s` must enclose `step_time_s`; they differ only where the recomputation is unknown.
    """

    run: Run
    step_time_s: float
    low_s: float
    high_s: float
    peak_bytes: float
    fits: bool

    def __post_init__(self) -> None:
        if not 0 < self.low_s <= self.step_time_s <= self.high_s:
            raise ValueError(f"{self.step_time_s} s is not in {self.low_s}..{self.high_s} s")

    @property
    def error(self) -> float | None:
        measured = self.run.step_time_s
        return None if measured is None else (self.step_time_s - measured) / measured

    @property
    def memory_error(self) -> float | None:
        measured = self.run.peak_bytes
        return None if measured is None else (self.peak_bytes - measured) / measured

    @property
    def ran(self) -> bool:
        return self.run.ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the errors of some rows come to; `timed` of them have a time."""

    timed: int
    mape: float | None
    macro_mape: float | None
    bias: float | None
    p50: float | None
    p90: float | None
    pairs: int
    ordered: float | None
    rank_correlation: float | None
    top1_regret: float | None
    memory_mape: float | None
    false_fits: int
    false_ooms: int
    replicate_mape: float | None


def statistics(rows: Sequence[Scored]) -> Statistics:
    """All figures of these rows."""
    errors = [error for row in rows if (error := row.error) is not None]
    sizes = sorted(abs(error) for error in errors)
    by_source: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if (error := row.error) is not None:
            by_source[row.run.source].append(abs(error))
    groups = equal_work(rows)
    marks = [mark for group in groups for mark in _marks(group)]
    return Statistics(
        timed=len(errors),
        mape=_mean(sizes),
        macro_mape=_mean(fmean(each) for each in by_source.values()),
        bias=_mean(errors),
        p50=quantile(sizes, 0.5),
        p90=quantile(sizes, 0.9),
        pairs=len(marks),
        ordered=_mean(marks),
        rank_correlation=_rank_correlation(groups),
        top1_regret=_mean(_regret(group) for group in groups if _choices(group) > 1),
        memory_mape=_mean(abs(error) for row in rows if (error := row.memory_error) is not None),
        false_fits=sum(row.fits and not row.ran for row in rows),
        false_ooms=sum(row.ran and not row.fits for row in rows),
        replicate_mape=_mean(replicate_errors([row.run for row in rows])),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The quantile of values in order, between neighbours by their distance."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def equal_work(rows: Sequence[Scored]) -> list[list[Scored]]:
    """Rows with a time, by what they compute on what; groups of at least two."""
    groups: defaultdict[tuple[object, ...], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.run.step_time_s is not None:
            groups[row.run.work].append(row)
    return [group for group in groups.values() if len(group) > 1]


def _measured(row: Scored) -> float:
    assert row.run.step_time_s is not None  # equal_work takes no others
    return row.run.step_time_s


def _choices(group: Sequence[Scored]) -> int:
    return len({row.run.settings for row in group})


def _marks(group: Sequence[Scored]) -> Iterable[float]:
    """1 for each clear pair in the right order, 0 in the wrong one, 1/2 for a tie."""
    for one, other in combinations(group, 2):
        quick, slow = sorted((one, other), key=_measured)
        if one.run.settings != other.run.settings and _measured(slow) > (1 + CLEAR_GAP) * _measured(quick):
            yield 0.5 if quick.step_time_s == slow.step_time_s else float(quick.step_time_s < slow.step_time_s)


def _regret(group: Sequence[Scored]) -> float:
    least = min(row.step_time_s for row in group)
    picked = fmean(_measured(row) for row in group if row.step_time_s == least)
    return picked / min(map(_measured, group)) - 1


def _rank_correlation(groups: Sequence[Sequence[Scored]]) -> float | None:
    weighted = weights = 0.0
    for group in groups:
        rho = spearman([row.step_time_s for row in group], [_measured(row) for row in group])
        if rho is not None and _choices(group) > 2:
            weighted, weights = weighted + len(group) * rho, weights + len(group)
    return weighted / weights if weights else None


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in their order; equal values share the mean of their places."""
    return [
        (sum(other < value for other in values) + sum(other <= value for other in values) + 1) / 2 for value in values
    ]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The correlation of ranks; None where a side is constant."""
    first, second = ranks(one), ranks(other)
    mean = (len(one) + 1) / 2
    within = sum((a - mean) ** 2 for a in first) * sum((b - mean) ** 2 for b in second)
    if not within:
        return None
    across = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    return float(across / within**0.5)


def replicates(runs: Sequence[Run]) -> list[list[Run]]:
    """Rows with a time and the same settings, where there are several."""
    groups: defaultdict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if run.step_time_s is not None:
            groups[run.settings].append(run)
    return [group for group in groups.values() if len(group) > 1]


def replicate_errors(runs: Sequence[Run]) -> list[float]:
    """|time - median of the replicates| / time of every replicate."""
    found: list[float] = []
    for group in replicates(runs):
        times = [run.step_time_s for run in group if run.step_time_s is not None]
        found += [abs(time - median(times)) / time for time in times]
    return found


def suspects(rows: Sequence[Scored]) -> list[tuple[Scored, str]]:
    """Rows that we believe wrong, and why: far from their replicates, or from the other errors of their source."""
    found: dict[int, tuple[Scored, str]] = {}
    usual: dict[int, float] = {}
    for group in replicates([row.run for row in rows]):
        middle = median(run.step_time_s for run in group if run.step_time_s is not None)
        usual |= {run.row: middle for run in group if len(group) > 2}
    by_source: defaultdict[str, list[tuple[Scored, float]]] = defaultdict(list)
    for row in rows:
        if (error := row.error) is not None:
            by_source[row.run.source].append((row, error))
            if row.run.row in usual and abs(gap := _measured(row) / usual[row.run.row] - 1) > REPLICATE_GAP:
                found[row.run.row] = (row, f"{gap:+.0%} from the median of its replicates")
    for of_source in by_source.values():
        middle = median(error for _, error in of_source)
        spread = NORMAL_SPREAD * median(abs(error - middle) for _, error in of_source)
        for row, error in of_source:
            if abs(error - middle) > max(OUTLIER_SPREADS * spread, OUTLIER_ERROR):
                found.setdefault(row.run.row, (row, f"error {error:+.0%}, its source's median is {middle:+.0%}"))
    return [found[row] for row in sorted(found)]
