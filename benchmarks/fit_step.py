"""Fits the constants of a step on published runs.

    python -m benchmarks.fit_step [--effects] [--write]

Most constants of prices come from benchmarks of kernels and of collectives. What is left are those that only whole
steps show: how fast products run for minutes on end, what host launches cost, what hides behind what. They are
`CONSTANTS`; the profile says of each that it was fitted so, on which rows, and when.

The method. For every run i the logarithm of predicted over measured time, e_i, and its slopes J_ik by finite
differences, are taken at the constants that are shipped. Then

    z = argmin  sum_i w_i |e_i + J_i z|  +  ridge · sum_i w_i · |z|²          z in units of each constant's range

by iteratively reweighted least squares, kept inside the ranges, and once more from there. w_i is 1/sqrt(rows of the
source), halved for runs whose recomputation is blank, and again for mixtures of experts (their replicates differ by
five times as much). Runs that we doubt (`doubts`) teach nothing, and are scored all the same. A run that is left out
is left out of the sum; its slopes are not looked at, and a constant that no other run depends on forgets what it was
(`without_a_word`).

`--effects` fits nothing: it says of every constant how many rows it moves, and how far these are off with it and
without (`WITHOUT`).
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import takewhile
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import b200_single_node
from benchmarks.doubts import believed
from benchmarks.models import read_models
from benchmarks.price import Pricer
from benchmarks.reading import read_runs
from benchmarks.runs import Run
from benchmarks.scoring import by_model, score_run, spread
from meshwright.cost_models.compute.profile import ComputeConstants
from meshwright.cost_models.profile import Profile, StepConstants, published
from meshwright.ir.errors import MeshwrightError

DATA = Path(__file__).resolve().parent / "data"
PROFILES = Path(__file__).resolve().parent.parent / "cost_models" / "profiles"

CONSTANTS: Mapping[str, tuple[float, float]] = {
    "sustained_ampere": (0.5, 1.0),
    "sustained_hopper": (0.5, 1.0),
    "sustained_hopper_8": (0.5, 1.0),
    "sustained_blackwell": (0.4, 1.0),
    "sustained_blackwell_8": (0.4, 1.0),
    "sustained_blackwell_4": (0.3, 1.0),
    "sustained_ultra": (0.8, 1.5),
    "sustained_tpu": (0.5, 1.0),
    "sustained_grouped": (0.4, 1.0),
    "sustained_untuned": (0.5, 1.0),
    "narrow_heads": (0.0, 1.0),
    "host_s": (0.0, 4e-5),
    "covered": (0.0, 1.0),
    "slowdown": (0.0, 1.0),
    "hidden_tensor": (0.0, 1.0),
    "straggling": (0.0, 0.05),
}
"""What is fitted, each within a range that the physics allows."""

WITHOUT: Mapping[str, float] = {name: 1.0 if name.startswith("sustained") else 0.0 for name in CONSTANTS}
"""What a constant is where there is none: all that lasts, nothing hidden, no host, nobody to wait for."""

STEP = 0.04
"""Of a finite difference, as a share of the range."""
NO_SLOPE = 1e-9
"""Rows with less do not depend on a constant."""
FLOOR = 0.03
"""Errors below this weigh alike: what rows are rounded to."""
RIDGE = 0.003
FARTHEST = 0.4
"""Of a solution from where the slopes were taken, as a share of the range."""
ROUNDS = 30
FITTED = (
    "whole training steps of benchmarks/data/training_runs.csv and b200_single_node.csv, "
    "by python -m benchmarks.fit_step"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slopes:
    """The error of one run under the shipped constants, and how it changes with each."""

    run: Run
    error: float
    by_constant: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fitter:
    """Fits on any part of the runs whose slopes it knows."""

    known: Mapping[int, Slopes]

    @staticmethod
    def of(runs: Sequence[Run], start: Profile, processes: int = 1) -> Fitter:
        timed = [run for run in runs if run.step_time_s is not None]
        lots = spread(by_model(timed), partial(slopes_of, start=start), processes)
        return Fitter({one.run.row: one for lot in lots for one in lot})

    def __call__(self, rows: Sequence[Run], start: Profile) -> Profile:
        """The start, moved to where these rows want it."""
        known = [self.known[run.row] for run in rows if run.row in self.known and believed(run)]
        errors, slopes = np.array([one.error for one in known]), np.array([one.by_constant for one in known])
        moves = solved(errors, slopes, weights([one.run for one in known]), start)
        return moved(start, without_a_word(moves, slopes, start))


def slopes_of(runs: Sequence[Run], *, start: Profile) -> list[Slopes]:
    """Finite differences: every run priced once more for every constant."""
    shifted = [Pricer(moved(start, _shift(index, start))) for index in range(len(CONSTANTS))]
    base, found = Pricer(start), []
    for run in runs:
        assert run.step_time_s is not None
        try:
            at = score_run(run, base).step_time_s
            beside = [score_run(run, pricer).step_time_s for pricer in shifted]
        except MeshwrightError:  # a run that cannot be priced teaches nothing; the benchmark names it
            continue
        steps = [_shift(index, start)[index] for index in range(len(CONSTANTS))]
        by_constant = tuple(log(one / at) / step for one, step in zip(beside, steps, strict=True))
        found.append(Slopes(run, log(at / run.step_time_s), by_constant))
    return found


@dataclass(frozen=True, slots=True)
class Effect:
    """Rows that a constant moves, and their mean error with it and without."""

    rows: int
    error: float
    without: float


def effects(runs: Sequence[Run], start: Profile, processes: int = 1) -> dict[str, Effect]:
    """The effect of every constant that moves a row."""
    timed = [run for run in runs if run.step_time_s is not None]
    lots = spread(by_model(timed), partial(_errors, start=start), processes)
    errors = np.array([row for lot in lots for row in lot])
    found = {}
    for index, name in enumerate(CONSTANTS, 1):
        sizes = np.abs(errors[np.abs(errors[:, 0] - errors[:, index]) > NO_SLOPE])
        if len(sizes):
            found[name] = Effect(len(sizes), *(float(sizes[:, at].mean()) for at in (0, index)))
    return found


def _errors(runs: Sequence[Run], *, start: Profile) -> list[list[float]]:
    """The error of every run with all constants, and without each."""
    pricers = [Pricer(start), *(Pricer(with_values(start, {name: value})) for name, value in WITHOUT.items())]
    found = []
    for run in runs:
        try:
            errors = [score_run(run, pricer).error for pricer in pricers]
        except MeshwrightError:
            continue
        found.append([error for error in errors if error is not None])
    return found


def _shift(index: int, start: Profile) -> Floats:
    """A small move of one constant, inward where it stands at the end of its range."""
    name = list(CONSTANTS)[index]
    low, high = CONSTANTS[name]
    at = (value_of(start, name) - low) / (high - low)
    moves = np.zeros(len(CONSTANTS))
    moves[index] = STEP if at + STEP <= 1 else -STEP
    return moves


def weights(runs: Sequence[Run]) -> Floats:
    rows = Counter(run.source for run in runs)
    return np.array(
        [rows[r.source] ** -0.5 * (0.5 if r.recompute_open else 1.0) * (0.5 if r.model.routed else 1.0) for r in runs]
    )


def solved(errors: Floats, slopes: Floats, weight: Floats, start: Profile) -> Floats:
    """The moves, in units of the ranges."""
    ends = [
        ((low - value_of(start, name)) / (high - low), (high - value_of(start, name)) / (high - low))
        for name, (low, high) in CONSTANTS.items()
    ]
    lowest, highest = (np.array(side) for side in zip(*ends, strict=True))
    moves = np.zeros(len(CONSTANTS))
    for _ in range(ROUNDS):
        each = weight / np.maximum(np.abs(errors + slopes @ moves), FLOOR)
        gram = (slopes * each[:, None]).T @ slopes + np.eye(len(CONSTANTS)) * each.sum() * RIDGE
        wanted = np.linalg.solve(gram, -(slopes * each[:, None]).T @ errors)
        moves = np.clip(wanted, np.maximum(lowest, -FARTHEST), np.minimum(highest, FARTHEST))
    return moves


def without_a_word(moves: Floats, slopes: Floats, start: Profile) -> Floats:
    """The moves, but of constants that no run depends on to where their likes are in the mean, else to the middle of
    their range: where they stand now, runs put them that are left out. Alike are those whose names begin with the most
    words in common."""
    known = [bool((np.abs(column) > NO_SLOPE).any()) for column in slopes.T]
    spans = {name: (value_of(start, name), high - low) for name, (low, high) in CONSTANTS.items()}
    ends = {
        name: at + move * span for (name, (at, span)), move, one in zip(spans.items(), moves, known, strict=True) if one
    }
    for index, (name, (at, span)) in enumerate(spans.items()):
        if not known[index]:
            common = {other: _words_in_common(name, other) for other in ends}
            most = max(common.values(), default=0)
            likes = [end for other, end in ends.items() if common[other] == most]
            moves[index] = ((fmean(likes) if most else fmean(CONSTANTS[name])) - at) / span
    return moves


def _words_in_common(one: str, other: str) -> int:
    pairs = zip(one.split("_"), other.split("_"), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def value_of(profile: Profile, name: str) -> float:
    part = profile.compute if name in _OF_COMPUTE else profile.step
    value: float = getattr(part, name)
    return value


def moved(profile: Profile, moves: Floats) -> Profile:
    """The profile with every constant moved by a share of its range, and kept inside it."""
    values = {
        name: float(np.clip(value_of(profile, name) + move * (high - low), low, high))
        for (name, (low, high)), move in zip(CONSTANTS.items(), moves, strict=True)
    }
    return with_values(profile, values)


def with_values(profile: Profile, values: Mapping[str, float]) -> Profile:
    """The profile with these constants."""
    compute = {name: value for name, value in values.items() if name in _OF_COMPUTE}
    step = {name: value for name, value in values.items() if name not in _OF_COMPUTE}
    return replace(profile, compute=replace(profile.compute, **compute), step=replace(profile.step, **step))


_OF_COMPUTE = frozenset(field.name for field in fields(ComputeConstants))
assert set(CONSTANTS) <= _OF_COMPUTE | {field.name for field in fields(StepConstants)}


def write(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """What is known of the constants into the shipped profiles."""
    for name, path in (("compute", PROFILES / "compute.json"), ("step", PROFILES / "step.json")):
        whole: dict[str, Any] = json.loads(path.read_text())
        table = whole["constants"] if name == "compute" else whole
        for constant, entry in entries.items():
            if (constant in _OF_COMPUTE) == (name == "compute"):
                table[constant] = {**table[constant], **entry}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def parser_of(name: str, about: str | None) -> ArgumentParser:
    """The arguments of a command that fits what the shipped profiles hold."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{name}", description=(about or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=DATA / "training_runs.csv", help="table of runs")
    parser.add_argument("--models", type=Path, default=DATA / "models.csv", help="table of models")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put what is found into the shipped profiles")
    return parser


def main(argv: Sequence[str]) -> int:
    parser = parser_of("fit_step", __doc__)
    parser.add_argument("--effects", action="store_true", help="say what every constant does, and fit nothing")
    given = parser.parse_args(argv)
    runs = [row for row in read_runs(given.runs, read_models(given.models)) if isinstance(row, Run)]
    runs += b200_single_node.runs_of(DATA / "b200_single_node.csv", given.models)
    start = published()
    if given.effects:
        told = effects(runs, start, given.processes)
        for name, effect in told.items():
            print(f"{name:22} moves {effect.rows:4} rows: {effect.error:.1%} off, without it {effect.without:.1%}")
        if given.write:
            write({name: {key: round(value, 4) for key, value in asdict(one).items()} for name, one in told.items()})
        return 0
    fitter = Fitter.of(runs, start, given.processes)
    found = fitter(runs, start)
    for name in CONSTANTS:
        print(f"{name:20} {value_of(start, name):12.4g} -> {value_of(found, name):.4g}")
    if given.write:
        values = {name: float(f"{value_of(found, name):.4g}") for name in CONSTANTS}
        write({name: {"value": value, "kind": "fitted", "how": FITTED} for name, value in values.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
