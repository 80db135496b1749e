"""One door to the three solvers.

    elimination     exact, and quick while the graph is narrow; the method of choice whenever its tables fit
    ilp             an integer program in a child process; any graph, seconds to minutes
    brute           every choice; for tests

All give the same objective. Where several choices have it, each method always takes the same one, but not necessarily
the one that another takes: brute force the first in lexicographic order, elimination by the rule in `sweeps`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver import brute
from meshwright.planner.block_solver.answer import found
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Assignment, Problem, Status
from meshwright.planner.block_solver.programs import process

Method = Literal["auto", "elimination", "ilp", "brute"]


def solve(
    problem: Problem,
    *,
    limit_s: float | None = None,
    method: Method = "auto",
    start: Sequence[int] | None = None,
) -> Assignment:
    """The cheapest legal choice, or what is known of it when time is up.

    `start` is a choice to begin from, and to fall back on; one that is not legal is ignored. Brute force knows no time
    limit. A method that is asked for by name may refuse (`ProblemTooLarge`); 'auto' goes on to the next.
    """
    if method == "brute":
        return brute.solve(problem)
    if method == "elimination":
        return elimination.solve(problem, limit_s=limit_s, start=start)
    if method == "ilp":
        return process.solve(problem, limit_s=limit_s, start=start)
    started_s = time.perf_counter()
    try:
        first = elimination.solve(problem, limit_s=limit_s, start=start)
    except ProblemTooLarge:
        first = None
    spent_s = time.perf_counter() - started_s
    if first is not None and (first.status is not Status.FEASIBLE or (limit_s is not None and spent_s >= limit_s)):
        return first
    left_s = None if limit_s is None else max(0.0, limit_s - spent_s)
    second = process.solve(problem, limit_s=left_s, start=start if first is None else first.states)
    return replace(_both(problem, first, second, started_s), seconds=time.perf_counter() - started_s)


def _both(problem: Problem, first: Assignment | None, second: Assignment, started_s: float) -> Assignment:
    """The cheaper choice with the higher bound of two methods, the second started from the first's choice."""
    if first is None or first.bound is None or second.bound is None or second.status is Status.OPTIMAL:
        return second
    return found(problem, second.states, max(first.bound, second.bound), started_s)
