"""One door to the solvers."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planner.block_solver import brute, elimination
from meshwright.planner.block_solver.problem import Assignment, Problem

METHODS = ("auto", "elimination", "brute")


def solve(
    problem: Problem,
    *,
    limit_s: float | None = None,
    method: str = "auto",
    start: Sequence[int] | None = None,
) -> Assignment:
    """The cheapest legal choice, as far as it can be known within the time limit.

    `start` is a choice to fall back on when time is up; it may be illegal.
    """
    if method == "brute":
        return brute.solve(problem)
    return elimination.solve(problem, limit_s=limit_s, start=start)
