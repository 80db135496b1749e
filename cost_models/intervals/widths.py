"""Intervals around predicted steps: how far published runs lay from prices that nothing like them was fitted on.

A price is worth what it stands on. The interval is predicted · exp(±w), and holds four of five published runs that are
as far from what was fitted (`seen`):

    w² = base²  +  sum over all that no fitted run had of widening²

as errors add up that have nothing to do with each other. The base is one of dense models or one of mixtures of experts,
whose published times differ more. So nothing that becomes unseen makes an interval narrower. All numbers are in
`profiles/step.json`, by `python -m benchmarks.fit_interval`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import exp, sqrt
from typing import Any

from meshwright.cost_models.intervals.seen import UNSEEN, Case, Seen
from meshwright.ir.errors import BadQuantity

PREFIX = "interval_"
"""Of the names of widths in the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Half widths of intervals in the logarithm of seconds: two bases, and the widening for each that is unseen.

    - None must be negative, and no base 0.
    """

    dense: float
    experts: float
    precision: float
    device: float
    stack: float
    ranks: float

    def __post_init__(self) -> None:
        widenings = [getattr(self, name) for name in UNSEEN]
        if min(self.dense, self.experts) <= 0 or min(widenings) < 0:
            raise BadQuantity(
                place="the widths of intervals",
                cause=f"bases {self.dense} and {self.experts}, widenings {widenings}",
                fix="give positive bases, and no negative widening",
            )

    def half(self, case: Case, lacks: Iterable[str]) -> float:
        """The half width for a case that lacks these of `UNSEEN` among what was fitted."""
        base: float = self.experts if case.experts else self.dense
        return sqrt(base**2 + sum(getattr(self, name) ** 2 for name in lacks))

    @staticmethod
    def read(table: Mapping[str, Any]) -> Widths:
        """Read from the table of constants of a step."""
        return Widths(**{field.name: float(table[PREFIX + field.name]["value"]) for field in fields(Widths)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The intervals of a profile."""

    seen: Seen
    widths: Widths

    def around(self, case: Case) -> tuple[float, float]:
        """The ends of the interval around a predicted step, as shares of it."""
        half = self.widths.half(case, self.seen.lacks(case))
        return exp(-half), exp(half)
