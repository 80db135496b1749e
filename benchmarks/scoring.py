"""Tables of runs, scored: every row read, priced and held against its measurement, on several processes.

A price is any function of a run. Runs of one model are priced by one process, one after another, since what takes long
is to capture the model, and that is kept. Processes are forked: they begin with what the parent holds, hence with every
program that it has built. What comes back does not depend on how many there are.

A run that the price refuses (a `MeshwrightError`) is skipped with the refusal; any other exception is a mistake of ours
and ends the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.models import read_models
from benchmarks.reading import read_runs
from benchmarks.runs import Run, Skipped, readings, zero_stages
from benchmarks.scores import Priced, Scored
from meshwright.cost_models.profile import Profile
from meshwright.ir.errors import MeshwrightError

Price = Callable[[Run], Priced]
Progress = Callable[[int, int], None]
"""Told the rows that are done, of how many."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class Fit(Protocol):
    """Constants fitted on some runs, none of which is looked at but these."""

    def __call__(self, rows: Sequence[Run], start: Profile) -> Profile: ...


def silent(done: int, of: int) -> None:
    """Nobody is told."""


def read_and_score(
    runs_csv: Path, models_csv: Path, price: Price, *, processes: int = 1, progress: Progress = silent
) -> tuple[Scored | Skipped, ...]:
    """Both tables, read and scored under a price: one entry for each row, in order."""
    rows = read_runs(runs_csv, read_models(models_csv))
    runs = [row for row in rows if isinstance(row, Run)]
    done = len(rows) - len(runs)
    found: dict[int, Scored | Skipped] = {row.row: row for row in rows if isinstance(row, Skipped)}
    for priced in spread(by_model(runs), partial(score_all, price=price), processes):
        found |= {(each.run.row if isinstance(each, Scored) else each.row): each for each in priced}
        done += len(priced)
        progress(done, len(rows))
    return tuple(found[row.row] for row in rows)


def by_model(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs that share captures; the largest lots first, so that processes end together."""
    lots: dict[str, list[Run]] = {}
    for run in runs:
        lots.setdefault(run.model.name, []).append(run)
    return sorted(lots.values(), key=len, reverse=True)


def score_all(runs: Sequence[Run], *, price: Price) -> list[Scored | Skipped]:
    return [score_or_skip(run, price) for run in runs]


def score_or_skip(run: Run, price: Price) -> Scored | Skipped:
    try:
        return score_run(run, price)
    except MeshwrightError as refusal:
        timed = run.step_time_s is not None
        return Skipped(row=run.row, source=run.source, model=run.model.name, reason=str(refusal), timed=timed)


def score_run(run: Run, price: Price) -> Scored:
    """One run under a price. A blank recomputation is the least usual one that fits, since nobody computes twice what
    fits; of what else is blank, the middle of the readings counts. The interval is that of all usual readings."""
    read = [(one.recompute, _lowest_that_fits(one, price)) for one in readings(run)]
    priced = [one for one in read if not run.recompute_open or one[0].kind in run.stack.recomputes]
    believed = next((kind for kind, each in priced if each.fits), priced[-1][0])
    times = [each.step_time_s for kind, each in priced if kind == believed]
    every = [each.step_time_s for _, each in priced]
    peaks = [each.comparable_bytes(run.memory_meaning) for kind, each in priced if kind == believed]
    return Scored(
        run=run,
        step_time_s=(min(times) + max(times)) / 2,
        low_s=min(every),
        high_s=max(every),
        peak_bytes=(min(peaks) + max(peaks)) / 2,
        fits=any(each.fits for _, each in read),
    )


def _lowest_that_fits(run: Run, price: Price) -> Priced:
    for staged in zero_stages(run):
        priced = price(staged)
        if priced.fits:
            return priced
    return priced


def spread(tasks: Sequence[Task], work: Callable[[Task], Result], processes: int) -> Iterable[Result]:
    """What `work` makes of every task, in the order in which they end."""
    if processes < 2 or len(tasks) < 2:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(processes, get_context("fork"), initializer=_WORK.append, initargs=(work,)) as pool:
        waiting = [pool.submit(_ask, task) for task in tasks]
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_WORK: list[Callable[[Any], Any]] = []
"""What a forked process does: handed over at the fork, since functions need not be picklable."""


def _ask(task: Any) -> Any:
    return _WORK[-1](task)
