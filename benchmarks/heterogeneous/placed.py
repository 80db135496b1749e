"""Plans of a topology: what `plan` answers under each pin, and the same configurations on ranks in other orders.

    pins -> plan.json -> its decisions on its own ranks, in the naive order, and in drawn ones -> priced, written

Orders whose prices are alike are the same to the planner, so of each price one is taken.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import Decisions
from meshwright.planner.cli.main import main
from meshwright.planner.plan.emitted import backend_of, seats, subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import Reloaded, program_of, reload
from meshwright.planner.refine.placement.placement import assignment_of, on_ranks

OURS, NAIVE, DRAWN = "ours", "naive", "drawn"
DRAWS = 12
ALIKE = 0.02
"""Relative difference of prices that are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A configuration on ranks in an order: its price, and the folder of its script."""

    pins: str
    config: str
    placement: str
    order: tuple[int, ...]
    step_s: float
    interval_s: tuple[float, float]
    folder: Path


def placed(pins: str, asked: Sequence[str], folder: Path, others: int) -> list[Placed]:
    """The plan under some pins, its naive order, and so many other orders of other prices, written into a folder."""
    fixed = [word for pin in ([pins] if pins else []) for word in ("--fix", pin)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["plan", *asked, *fixed, "--out", str(folder / "plan"), "--force"])
    if code:
        raise RuntimeError(f"plan --fix {pins} ended with {code}: {said.getvalue()[-2000:]}")
    again = reload(load_plan(str(folder / "plan")))
    return [
        _written(pins, again, decisions, prediction, name, folder / f"{number}-{name}")
        for number, (name, decisions, prediction) in enumerate(_orders(again, others))
    ]


def _orders(again: Reloaded, others: int) -> Iterator[tuple[str, Decisions, Prediction]]:
    own = again.plan.decisions
    ranks = sorted(assignment_of(own))
    draw = Random(0)
    orders = [ranks, *(draw.sample(ranks, len(ranks)) for _ in range(DRAWS))]
    yield OURS, own, again.prediction
    prices = [again.prediction.step_time_s]
    for name, order in zip((NAIVE, *(DRAWN,) * DRAWS), orders, strict=True):
        decisions = on_ranks(own, tuple(order))
        prediction = again.setting.price(program_of(replace(again.plan, decisions=decisions), again.setting))
        step_s = prediction.step_time_s
        if all(abs(step_s / known - 1) > ALIKE for known in prices) and len(prices) <= others + 1:
            prices.append(step_s)
            yield name, decisions, prediction


def _written(
    pins: str, again: Reloaded, decisions: Decisions, prediction: Prediction, name: str, folder: Path
) -> Placed:
    plan = replace(again.plan, decisions=decisions)
    subject = subject_of(replace(again, plan=plan, prediction=prediction))
    written_by, places = backend_of(subject), seats(again.ask.cluster)
    written_by.with_hosts(written_by.emit(subject, folder), decisions.target, places).write(folder)
    return Placed(
        pins=pins,
        config=str(plan.config),
        placement=name,
        order=assignment_of(decisions),
        step_s=prediction.step_time_s,
        interval_s=(prediction.step_time_low_s, prediction.step_time_high_s),
        folder=folder,
    )
