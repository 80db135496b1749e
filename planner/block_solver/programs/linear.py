"""Integer programs as plain numbers: minimise costs · x, where rows are kept and some of x are whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

Row = tuple[tuple[tuple[int, float], ...], float]
"""Pairs of a variable and its coefficient, whose sum must not exceed the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """An integer program.

    - One entry per variable in `costs`, `lower`, `upper` and `whole`; an upper bound may be infinite.
    - Numbers are of a size that a solver's absolute tolerances (1e-6) suit.
    """

    costs: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    whole: tuple[bool, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of a solver: values, if it found some; whether they are proved least or, without values, that there
    are none; and the bound that it proved, in the unit of the costs."""

    values: tuple[float, ...] | None
    proved: bool
    bound: float | None
