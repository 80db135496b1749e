"""Exact elimination: the optimum, with a proof, as long as the tables are small enough (`order.Order.fits`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver.answer import found, infeasible, timed_out
from meshwright.planner.block_solver.order import order_of
from meshwright.planner.block_solver.problem import Assignment, Problem
from meshwright.planner.block_solver.sweeps import checked, swept
from meshwright.planner.block_solver.tables import Deadline


def solve(problem: Problem, *, limit_s: float | None = None, start: Sequence[int] | None = None) -> Assignment:
    """The optimum, or a refusal (`ProblemTooLarge`) where the tables would be too large."""
    started_s = time.perf_counter()
    deadline = Deadline.after(limit_s)
    if problem.limits:
        raise ProblemTooLarge(place="elimination", cause="limits", fix="price them")
    order = checked(order_of(problem))
    try:
        sweep = swept(problem, order, deadline=deadline)
    except TimeoutError:
        return timed_out(problem, start, None, started_s)
    if not math.isfinite(sweep.optimum):
        return infeasible(started_s)
    return found(problem, sweep.states(len(problem.variables)), sweep.optimum, started_s)
