"""Rows that contradict each other, and what no price can beat.

Two rows of one *configuration* (`Run.configuration`: model, task, sequence, batches, precision, devices, degrees,
ZeRO) contradict each other if their times differ by more than `CONTRADICTION` times. What differs between them is
software: a release, or an option that one row states and the other does not. Which of the two is right is not asked;
both are named.

    floor_mape      the least mape of any function of the configuration: rows of one configuration get one time, the
                    best for all of them. For relative errors that is the median of the times, each weighing 1/time.
    stated_floor    the same, of any function of all that rows state (`Run.settings`, and the release)
    mape_without    mape of the rows that no other contradicts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import fmean
from typing import Any

from benchmarks.runs import Run
from benchmarks.scores import Scored

CONTRADICTION = 1.5


def contradicted(runs: Iterable[Run]) -> list[list[Run]]:
    """Configurations with rows that contradict each other: those rows, quickest first."""
    found: list[list[Run]] = []
    for group in _grouped(runs, lambda run: run.configuration):
        group.sort(key=_time)
        quickest, slowest = _time(group[0]), _time(group[-1])
        rows = [run for run in group if max(slowest / _time(run), _time(run) / quickest) > CONTRADICTION]
        if rows:
            found.append(rows)
    return found


def floor_mape(runs: Iterable[Run], of: Callable[[Run], Hashable]) -> float | None:
    """The least mean relative error of any function of what `of` gives."""
    groups = _grouped(runs, of)
    errors = [abs(best_time(group) - _time(run)) / _time(run) for group in groups for run in group]
    return fmean(errors) if errors else None


def best_time(group: Sequence[Run]) -> float:
    """The time with the least sum of relative errors: the median, each time weighing 1/time."""
    times = sorted(map(_time, group))
    half, passed = sum(1 / time for time in times) / 2, 0.0
    for time in times:
        passed += 1 / time
        if passed >= half:
            return time
    return times[-1]


def summary(rows: Sequence[Scored]) -> dict[str, Any]:
    """The figures of the module docstring, of rows with a time."""
    timed = [row for row in rows if row.error is not None]
    runs = [row.run for row in timed]
    named = {run.row for group in contradicted(runs) for run in group}
    kept = [abs(row.error) for row in timed if row.error is not None and row.run.row not in named]
    return {
        "timed": len(timed),
        "contradicted": sorted(named),
        "mape": fmean(abs(row.error) for row in timed if row.error is not None) if timed else None,
        "mape_without": fmean(kept) if kept else None,
        "floor_mape": floor_mape(runs, lambda run: run.configuration),
        "stated_floor": floor_mape(runs, lambda run: (*run.settings, run.release)),
    }


def _time(run: Run) -> float:
    assert run.step_time_s is not None  # only rows with a time are grouped
    return run.step_time_s


def _grouped(runs: Iterable[Run], of: Callable[[Run], Hashable]) -> list[list[Run]]:
    groups: defaultdict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        if run.step_time_s is not None:
            groups[of(run)].append(run)
    return list(groups.values())
