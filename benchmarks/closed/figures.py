"""Figures of predicted against measured step times.

tau        Kendall's, over pairs whose measured difference is beyond noise: the paired difference of rounds, whose
           95 % interval (Student's t) does not hold 0
regret     how much longer than the best measured plan the one with the least prediction takes
error      mean |predicted - measured| / measured; and the same after one common factor was taken out, fitted on
           all other plans
inside     the share of measurements that lie in the interval of their prediction
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from statistics import fmean, median, stdev

T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t of 95 % by the number of rounds; of more, that of the normal distribution, a little more."""
NORMAL = 2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How well one profile predicts."""

    pairs: int
    tau: float
    regret: float
    error: float
    error_left_out: float
    inside: float


def figures(
    predicted: Sequence[float], intervals: Sequence[tuple[float, float]], rounds: Sequence[Sequence[float]]
) -> Figures:
    """The figures of a profile; `rounds` are the measured seconds of each plan, round by round."""
    measured = [median(of) for of in rounds]
    signs = list(_signs(predicted, rounds))
    picked = min(range(len(predicted)), key=predicted.__getitem__)
    return Figures(
        pairs=len(signs),
        tau=fmean(signs) if signs else 0.0,
        regret=measured[picked] / min(measured) - 1,
        error=fmean(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)),
        error_left_out=fmean(_left_out(predicted, measured)),
        inside=fmean(low <= m <= high for (low, high), m in zip(intervals, measured, strict=True)),
    )


def _signs(predicted: Sequence[float], rounds: Sequence[Sequence[float]]) -> Iterator[int]:
    """Of pairs that differ beyond noise: 1 where prediction and measurement agree, -1 where not, 0 where equal."""
    for one, other in combinations(range(len(predicted)), 2):
        apart = [a - b for a, b in zip(rounds[one], rounds[other], strict=True)]
        if abs(fmean(apart)) > T_95.get(len(apart), NORMAL) * stdev(apart) / sqrt(len(apart)):
            said = predicted[one] - predicted[other]
            yield 0 if said == 0 else 1 if (said > 0) == (fmean(apart) > 0) else -1


def _left_out(predicted: Sequence[float], measured: Sequence[float]) -> Iterator[float]:
    ratios = [log(m / p) for p, m in zip(predicted, measured, strict=True)]
    for index, (p, m) in enumerate(zip(predicted, measured, strict=True)):
        factor = exp(fmean(ratios[:index] + ratios[index + 1 :]))
        yield abs(p * factor / m - 1)
