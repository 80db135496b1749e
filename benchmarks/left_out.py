"""Runs held out of the fit by kind: what prices are where nobody tuned them.

A fold is the runs that constants are fitted on, and runs that are priced under them, none of which is among the first.
Kinds of folds (`KINDS`), each with one fold for every value in turn but the last:

    source      the document that published the runs
    device      the architecture of the chip
    precision   the precision of products on one architecture
    framework   the software, by name
    stack       execution style and generation of attention
    family      the family of the model: the letters that its name begins with
    scale       one fold: fitted on runs of at most N devices, priced are those of 4 N and more; of the counts in the
                table N is that with which next to a quarter of all runs are priced

Every run gets the interval that a plan like it would print if the runs of its fold were all that had been seen
(`meshwright.cost_models.intervals`). Of each kind and fold (`Figures`):

    rows, mape, bias, p50, p90      as in `scores`, over the runs of all folds
    macro_mape                      mean over folds of their mape
    coverage                        share of the measurements that lie in their interval
    width                           mean half width of the intervals, in the logarithm of seconds
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import log
from statistics import fmean
from typing import Any

from benchmarks.price import workload_of
from benchmarks.runs import Run
from benchmarks.scores import Scored, quantile
from benchmarks.scoring import Fit, Price, Progress, score_run, silent, spread
from meshwright.cost_models.compute.profile import chip_of
from meshwright.cost_models.intervals.seen import FAR, Case, Seen
from meshwright.cost_models.profile import Profile

_LETTERS = re.compile(r"[^a-z]")

SCORED_AT_SCALE = 0.25
"""Share of the runs that the fold of scale is to price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Runs that constants are fitted on, and runs that are priced under them.

    - No run may be on both sides, and neither may be empty.
    """

    kind: str
    name: str
    fitted: tuple[Run, ...]
    scored: tuple[Run, ...]

    def __post_init__(self) -> None:
        fitted, scored = self.rows
        if not fitted or not scored or not set(fitted).isdisjoint(scored):
            raise ValueError(f"{self.kind} {self.name}: fitted on rows {fitted}, scored {scored}")

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows of both sides: folds of the same rows come to the same prices."""
        return tuple(run.row for run in self.fitted), tuple(run.row for run in self.scored)


def case_of(run: Run) -> Case:
    """What the interval of a run depends on."""
    devices = (run.device, *(other for other, _ in run.beside))
    return Case.of(devices, workload_of(run), experts=run.model.routed, ranks=run.devices)


def _architecture(run: Run) -> str:
    return chip_of(run.device).architecture


def _in_turn(kind: str, key: Callable[[Run], str]) -> Callable[[Sequence[Run]], list[Fold]]:
    """One fold for every value of a key: its runs are priced, all others fitted on."""

    def folds(runs: Sequence[Run]) -> list[Fold]:
        values = dict.fromkeys(map(key, runs))
        sides = {
            value: (
                tuple(run for run in runs if key(run) != value),
                tuple(run for run in runs if key(run) == value),
            )
            for value in values
        }
        return [
            Fold(kind=kind, name=value, fitted=fitted, scored=scored)
            for value, (fitted, scored) in sides.items()
            if fitted
        ]

    return folds


def _scale(runs: Sequence[Run]) -> list[Fold]:
    """Small runs are fitted on, large ones priced."""
    folds = [
        Fold(kind="scale", name=f"{FAR * most} devices and more", fitted=fitted, scored=scored)
        for most in sorted({run.devices for run in runs})
        if (fitted := tuple(run for run in runs if run.devices <= most))
        and (scored := tuple(run for run in runs if run.devices >= FAR * most))
    ]
    nearest = min(folds, key=lambda fold: abs(len(fold.scored) - SCORED_AT_SCALE * len(runs)), default=None)
    return [] if nearest is None else [nearest]


KINDS: Mapping[str, Callable[[Sequence[Run]], list[Fold]]] = {
    "source": _in_turn("source", lambda run: run.source),
    "device": _in_turn("device", _architecture),
    "precision": _in_turn("precision", lambda run: f"{run.precision} on {_architecture(run)}"),
    "framework": _in_turn("framework", lambda run: run.stack.name),
    "stack": _in_turn("stack", lambda run: " ".join(case_of(run).stack)),
    "family": _in_turn("family", lambda run: _LETTERS.split(run.model.name.lower(), maxsplit=1)[0]),
    "scale": _scale,
}
"""Folds of runs, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run priced under constants that were fitted on the other side of its fold."""

    kind: str
    fold: str
    row: Scored
    case: Case
    lacks: tuple[str, ...]
    """What of the run no fitted one had, of `meshwright.cost_models.intervals.seen.UNSEEN`."""
    half: float
    """The half width of its interval, in the logarithm of seconds."""

    @property
    def residual(self) -> float:
        """The logarithm of measured over predicted seconds."""
        assert self.row.run.step_time_s is not None  # leave_out takes no others
        return log(self.row.run.step_time_s / self.row.step_time_s)

    @property
    def inside(self) -> bool:
        return abs(self.residual) <= self.half


def folds_of(kinds: Iterable[str], runs: Sequence[Run]) -> list[Fold]:
    """The folds of these kinds, of the runs that have a time."""
    timed = [run for run in runs if run.step_time_s is not None]
    return [fold for kind in kinds for fold in KINDS[kind](timed)]


def leave_out(
    folds: Sequence[Fold],
    fit: Fit,
    start: Profile,
    price_under: Callable[[Profile], Price],
    *,
    processes: int = 1,
    progress: Progress = silent,
) -> list[LeftOut]:
    """The runs of every fold, priced under constants fitted on its others, fold by fold.

    Folds of the same rows are priced once, the largest first, spread over processes. Programs that were built before
    are not built again.
    """
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Fold]] = {}
    for fold in folds:
        alike.setdefault(fold.rows, []).append(fold)
    lots = sorted(alike.values(), key=lambda lot: len(lot[0].scored), reverse=True)
    found: dict[tuple[str, str], list[LeftOut]] = {}
    priced = partial(_priced, lots=lots, fit=fit, start=start, price_under=price_under)
    for done, rows in enumerate(spread(range(len(lots)), priced, processes), 1):
        for row in rows:
            found.setdefault((row.kind, row.fold), []).append(row)
        progress(done, len(lots))
    return [row for fold in folds for row in found[fold.kind, fold.name]]


def _priced(
    lot: int, *, lots: Sequence[Sequence[Fold]], fit: Fit, start: Profile, price_under: Callable[[Profile], Price]
) -> list[LeftOut]:
    """The runs of one of the lots, whose folds have the same rows. It is told by its number, so that runs are those
    that a forked process has."""
    fitted, scored = lots[lot][0].fitted, lots[lot][0].scored
    price, seen, widths = price_under(fit(fitted, start)), Seen.of(map(case_of, fitted)), start.intervals.widths
    cases = [(score_run(run, price), case := case_of(run), seen.lacks(case)) for run in scored]
    return [
        LeftOut(kind=fold.kind, fold=fold.name, row=row, case=case, lacks=lacks, half=widths.half(case, lacks))
        for fold in lots[lot]
        for row, case, lacks in cases
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What runs that were left out come to; None where there are none."""

    rows: int
    mape: float | None
    macro_mape: float | None
    bias: float | None
    p50: float | None
    p90: float | None
    coverage: float | None
    width: float | None


def figures(rows: Sequence[LeftOut]) -> Figures:
    errors = {id(row): error for row in rows if (error := row.row.error) is not None}
    sizes = sorted(map(abs, errors.values()))
    by_fold: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        by_fold.setdefault((row.kind, row.fold), []).append(abs(errors[id(row)]))
    return Figures(
        rows=len(rows),
        mape=_mean(sizes),
        macro_mape=_mean(map(fmean, by_fold.values())),
        bias=_mean(errors.values()),
        p50=quantile(sizes, 0.5),
        p90=quantile(sizes, 0.9),
        coverage=_mean(row.inside for row in rows),
        width=_mean(row.half for row in rows),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def summary(rows: Sequence[LeftOut], parts: Mapping[str, Callable[[Run], bool]]) -> dict[str, Any]:
    """The figures of every kind: of all its rows, of each of its folds, and of parts of the rows."""
    found: dict[str, Any] = {}
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        folds = {name: [row for row in own if row.fold == name] for name in dict.fromkeys(row.fold for row in own)}
        splits = {name: [row for row in own if of(row.row.run)] for name, of in parts.items()}
        found[kind] = {
            **asdict(figures(own)),
            "folds": {name: asdict(figures(some)) for name, some in folds.items()},
            "splits": {name: asdict(figures(some)) for name, some in splits.items()},
        }
    return found


def told(found: Mapping[str, Any]) -> list[str]:
    """Lines of a report on a summary."""
    head = ("mape", "macro", "bias", "p50", "p90", "inside", "width")
    lines = [f"{'left out, by kind and fold':38} {'rows':>5} " + " ".join(f"{name:>7}" for name in head)]
    for kind, whole in found.items():
        lines.append(_line(kind, whole))
        lines += [_line(f"  {name}", part) for name, part in whole["folds"].items()]
    return lines


def _line(name: str, part: Mapping[str, Any]) -> str:
    values = (part[key] for key in ("mape", "macro_mape", "bias", "p50", "p90", "coverage", "width"))
    return f"{name[:38]:38} {part['rows']:5} " + " ".join(
        f"{'-' if value is None else f'{100 * value:.1f}%':>7}" for value in values
    )
