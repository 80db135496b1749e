"""What whole training steps take beyond kernels and collectives: plans of reference models, run and fitted.

Plans of every kind that the runtime treats in its own way (copies, shards, tensor parallelism, pipelines whose backward
passes are whole and made apart, recomputation) are emitted, run in turns, and priced with what was measured of kernels
and collectives. A step is nearly linear in what is not known yet,

    T(x) = T(x0) + sum over j of (x_j - x0_j) g_j

    x       the scale of kernels and what their bytes add, host seconds of a launch, and all `Overheads`
    g_j     what the evaluator says a change of x_j alone costs

so x >= 0 is the least-squares fit of measured steps, each error relative to its step; and again from there, since what
hides behind something else does so up to a point. Two numbers for kernels and a few times of the runtime: few enough
for some thirty steps, and each is about what it is called.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.backends.door import Measurer, backend
from meshwright.backends.measuring import Case, Sample
from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.measured.measured import Measured, Overheads, Spread, family_of
from meshwright.cost_models.profile import calibrated
from meshwright.ir.errors import EnvironmentFault, MeshwrightError
from meshwright.ir.program.program import Program
from meshwright.planner.question.ask import SHIPPED, Ask, asked
from meshwright.planner.question.pins import fill, parse
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.emittable import subject_of

Vector = npt.NDArray[np.float64]
PINS = (
    "dp={n}",
    "dp={n},zero=1,microbatches=2",
    "dp={n},zero=2",
    "dp={n},zero=3",
    "dp={n},zero=3,microbatches=2",
    "dp={n},recompute=full",
    "dp={n},recompute=selective_op",
    "tp={n}",
    "tp={n},microbatches=4",
    "pp={n},microbatches=4,schedule=gpipe",
    "pp={n},microbatches=8,schedule=1f1b",
    "pp={n},microbatches=4,schedule=1f1b,recompute=full",
    "pp={n},microbatches=4,schedule=1f1b,recompute=selective_op",
    "pp={n},vp=2,microbatches=4,schedule=zbv",
    "pp={n},microbatches=4,schedule=zb-h1",
)
"""Kinds of plans, for n ranks."""
MODELS_OF_A_KIND = 2
"""Of the reference models, those that each kind of plan is run of, in turns."""
ROUNDS, EACH, LIMIT_S = 3, 1, 600.0
"""How often all scripts are run in turns, measured steps of each run, and seconds that all of it may take."""
ROUNDS_OF_FIT = 3
"""Linear fits, each from where the one before ended."""
CHANGES = {"scale": 0.1, "launch_s": 1e-5, "cold_s_per_byte": 1e-11} | {
    one.name: 1e-11 if one.name.endswith("_per_byte") else 1e-5 for one in fields(Overheads)
}
"""What is fitted, each with the change by which what it costs is found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A program and the question whose cluster it runs on: it can be priced by any profile."""

    program: Program
    ask: Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Priced):
    """A plan of a reference model: its case and its script."""

    case: Case
    script: Path


def with_residuals(
    found: Measured, by: Measurer, known: Mapping[Case, Sequence[Sample]], keep: Callable[[Sample], None]
) -> Measured:
    """The profile with what whole steps take beyond kernels. Steps that are `known` are not run again, others kept."""
    took = {case: median(samples[0].seconds) for case, samples in known.items()}
    ranks = found.busy[-1].ranks
    with TemporaryDirectory() as folder:
        plans = list(_plans(by, ranks, found.identity.threads, Path(folder)))
        left = [plan for plan in plans if plan.case not in took]
        if left:
            scripts = [plan.script for plan in left]
            rounds = by.steps(
                scripts, ranks=ranks, threads=found.identity.threads, rounds=ROUNDS, each=EACH, limit_s=LIMIT_S
            )
            for plan, seconds in zip(left, rounds, strict=True):
                for rank in range(ranks):  # the slowest counts, for all
                    keep(Sample(case=plan.case, rank=rank, seconds=tuple(seconds)))
                took[plan.case] = median(seconds)
    return fitted(found, plans, [took[plan.case] for plan in plans])


def _plans(by: Measurer, ranks: int, threads: int, folder: Path) -> Iterator[Plan]:
    """Plans of the reference models, but for what the model or the target refuses on so many ranks."""
    for at, (model, batch, seq) in enumerate(by.REFERENCES):
        ask, setting = _ask(f"{by.REFERENCE}:{model}", batch, seq, ranks).loaded()
        for number, pins in enumerate(pins.format(n=ranks) for pins in PINS):
            if (number - at - 1) % len(by.REFERENCES) >= MODELS_OF_A_KIND:
                continue
            try:
                yield _plan(ask, setting, pins, Case("step", (model, pins), ranks), folder / f"{model}-{number}")
            except EnvironmentFault:
                raise
            except MeshwrightError:
                continue


def _ask(model: str, batch: int, seq: int, ranks: int) -> Ask:
    usual: dict[str, Any] = dict.fromkeys(("micro_batch", "stack", "style", "recipe"))
    usual |= {
        "profile": SHIPPED,
        "cluster": f"cpu:{ranks}",
        "fix": [],
        "optimizer": "adamw",
        "imbalance": 1.0,
        "seed": 0,
    }
    usual |= {"model": model, "global_batch": batch, "seq": seq, "dtype": "fp32", "target": "torch-gloo"}
    return asked(Namespace(**usual, verb="calibrate"))


def _plan(ask: Ask, setting: Setting, pins: str, case: Case, folder: Path) -> Plan:
    batch = setting.workload.global_batch
    config = setting.settled(fill(parse([pins]), ranks=ask.cluster.ranks, global_batch=batch), batch)
    decisions = setting.decisions(config, batch)
    subject = subject_of(setting, setting.folds.calls(ask.model, config.batch), config, decisions)
    written_by = backend(setting.target.target)
    assert written_by is not None, "its target has a runtime"
    written_by.emit(subject, folder).write(folder)
    return Plan(case=case, program=subject.program, ask=ask, script=folder / "train.py")


def fitted(found: Measured, plans: Sequence[Plan], seconds: Sequence[float]) -> Measured:
    """The profile under which these steps take these seconds, as nearly as may be."""
    x, measured = np.eye(len(CHANGES))[0], np.array(seconds)
    for _ in range(ROUNDS_OF_FIT if plans else 0):
        base, slopes = prices(with_values(found, x), plans), slopes_at(found, plans, x)
        x = least_squares(slopes / measured[:, None], (measured - base + slopes @ x) / measured)
    return replace(with_values(found, x), spreads=_spreads(found, plans, measured, x)) if plans else found


QUANTILES = (0.1, 0.9)
"""Of measured over predicted seconds, between which the interval of a prediction reaches."""


def _spreads(found: Measured, plans: Sequence[Plan], measured: Vector, x: Vector) -> tuple[Spread, ...]:
    """How far the steps of each family are from what is predicted of them by a fit on all others, which is linear from
    where the fit ended. The reference models span what steps are made of (launches, products, tokens), so a user's is
    among them, and its plan is one that was not run."""
    base, slopes = prices(with_values(found, x), plans), slopes_at(found, plans, x)
    rows, wanted = slopes / measured[:, None], (measured - base + slopes @ x) / measured
    ratios: dict[str, list[float]] = {}
    for index, plan in enumerate(plans):
        rest = [number for number in range(len(plans)) if number != index]
        predicted = base[index] + slopes[index] @ (least_squares(rows[rest], wanted[rest]) - x)
        ratios.setdefault(family_of(len(plan.program.stages)), []).append(float(measured[index] / predicted))
    return tuple(
        Spread(family=family, plans=len(of), low=min(1.0, float(low)), high=max(1.0, float(high)))
        for family, of in sorted(ratios.items())
        for low, high in [np.quantile(of, QUANTILES)]
    )


def slopes_at(found: Measured, plans: Sequence[Priced], x: Vector) -> Vector:
    """What a change of each value costs each plan."""
    base = prices(with_values(found, x), plans)
    changes = np.array(list(CHANGES.values()))
    moved = [prices(with_values(found, x + change), plans) for change in np.diag(changes)]
    return np.array([(one - base) / change for one, change in zip(moved, changes, strict=True)]).T


def prices(measured: Measured, plans: Sequence[Priced]) -> Vector:
    """The seconds of a step of each plan by a profile."""
    profile = calibrated(measured)
    evaluators: dict[int, Evaluator] = {}
    for plan in plans:
        if id(plan.ask) not in evaluators:
            evaluators[id(plan.ask)] = Evaluator(plan.ask.cluster, profile)
    return np.array([evaluators[id(plan.ask)](plan.program).step_time_s for plan in plans])


def values_of(found: Measured) -> Vector:
    """What a profile has of each value."""
    last = found.busy[-1]
    values = asdict(found.overheads)
    values |= {"scale": last.scale, "launch_s": last.launch_s, "cold_s_per_byte": last.cold_s_per_byte}
    return np.array([values[name] for name in CHANGES])


def with_values(found: Measured, x: Vector) -> Measured:
    """The profile with these values in place of what it has of each."""
    values = dict(zip(CHANGES, map(float, x), strict=True))
    scale, launch_s, cold_s_per_byte = (values.pop(name) for name in ("scale", "launch_s", "cold_s_per_byte"))
    last = replace(found.busy[-1], scale=scale, launch_s=launch_s, cold_s_per_byte=cold_s_per_byte)
    busy = (*found.busy[:-1], last)
    return replace(found, busy=busy, overheads=Overheads(**values))


LEAST_SCALE = 1.0
"""Of seconds of kernels in a step to seconds alone, again and again: caches are never warmer, so less is noise."""
SWEEPS = 2000
"""Of all coordinates, at most."""
SETTLED = 1e-9
"""Of what a coordinate is, the change below which it counts as found."""


def least_squares(rows: Vector, wanted: Vector) -> Vector:
    """The x >= 0 with the least |rows x - wanted|, by coordinates; the first, a scale, at least `LEAST_SCALE`."""
    x, least = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    least[0] = LEAST_SCALE
    products, seen = rows.T @ rows, rows.T @ wanted
    for _ in range(SWEEPS):
        before = x.copy()
        for j in np.flatnonzero(np.diag(products) > 0):
            x[j] = max(least[j], x[j] + (seen[j] - products[j] @ x) / products[j, j])
        if np.all(np.abs(x - before) <= SETTLED * np.abs(x)):
            break
    return np.maximum(x, least)
