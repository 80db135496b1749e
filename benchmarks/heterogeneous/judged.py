"""What was found on a topology, held against the bars.

order      Kendall's tau of at least `TAU` between predictions and measurements, over all that was run
regret     what has the least prediction takes no more than `REGRET` longer than the best
error      of predictions, `ERROR` in the mean at most
placement  of each configuration, our order of ranks is the best measured or within `REGRET` of it
ratio      where an order is predicted to take `APART` times as long as ours or more, so it does, within `WITHIN`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.closed.figures import Figures, figures
from benchmarks.heterogeneous.placed import OURS

TAU, REGRET, ERROR = 0.85, 0.05, 0.12
APART, WITHIN = 1.5, 0.2
Run = dict[str, Any]
"""A `Placed` as data, with the `seconds` of its steps."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An order of a configuration's ranks beside ours: how many times as long it takes."""

    config: str
    placement: str
    predicted: float
    measured: float

    @property
    def holds(self) -> bool:
        best = self.measured >= 1 / (1 + REGRET)
        return best and (self.predicted < APART or abs(self.measured / self.predicted - 1) <= WITHIN)


def judged(runs: Sequence[Run]) -> tuple[Figures, list[Pair]]:
    """The figures of all runs of a topology, and its pairs."""
    found = figures(
        [run["step_s"] for run in runs], [run["interval_s"] for run in runs], [run["seconds"] for run in runs]
    )
    return found, list(_pairs(runs))


def _pairs(runs: Sequence[Run]) -> Iterator[Pair]:
    ours = {run["pins"]: run for run in runs if run["placement"] == OURS}
    for run in runs:
        own = ours[run["pins"]]
        if run is not own:
            measured = median(run["seconds"]) / median(own["seconds"])
            yield Pair(run["config"], run["placement"], run["step_s"] / own["step_s"], measured)


def faults(found: Figures, pairs: Sequence[Pair]) -> Iterator[str]:
    """The bars that are not met."""
    if found.tau < TAU:
        yield f"tau {found.tau:.2f}, of {TAU} wanted"
    if found.regret > REGRET:
        yield f"regret {found.regret:.0%}, of {REGRET:.0%} allowed"
    if found.error > ERROR:
        yield f"error {found.error:.0%}, of {ERROR:.0%} allowed"
    for pair in pairs:
        if not pair.holds:
            told = f"{pair.config} in {pair.placement} order: {pair.measured:.2f} times ours"
            yield f"{told}, {pair.predicted:.2f} predicted"
