"""Exact elimination: the optimum, with a proof, as long as the tables are small enough (`order.Order.fits`).

Without limits one sweep is all, over the states that messages leave (`passing`). With limits:

1. uses are paid for at the best prices (`dual`): a bound L, and as a rule a legal choice of cost U;
2. states that no choice of cost <= U has are dropped, by min-marginals at those prices: lossless;
3. what lies between L and U is gone through with labels (`labelled`): the cheapest legal choice is U or one of them.

Where the labels become too many, the answer is what 1 knows: U with the bound L, feasible, not optimal; or a refusal if
there is no U.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver.answer import found, infeasible, priced, timed_out
from meshwright.planner.block_solver.elimination.dual import Dual, capacities, dual, named, rounding
from meshwright.planner.block_solver.elimination.labelled import (
    TooManyLabelsError,
    choice,
    labelled,
    run_of,
)
from meshwright.planner.block_solver.elimination.order import Order, order_of
from meshwright.planner.block_solver.elimination.passing import least
from meshwright.planner.block_solver.elimination.restricted import restricted
from meshwright.planner.block_solver.elimination.sweeps import checked, marginals_of, outside, swept
from meshwright.planner.block_solver.elimination.tables import Deadline
from meshwright.planner.block_solver.problem import Assignment, Problem


def solve(problem: Problem, *, limit_s: float | None = None, start: Sequence[int] | None = None) -> Assignment:
    """The optimum, or a refusal (`ProblemTooLarge`) where tables or labels would be too large.

    `start` is a choice to begin from, and to fall back on when time is up; one that is not legal is ignored.
    """
    started_s = time.perf_counter()
    try:
        return solve_until(problem, Deadline.after(limit_s), start)
    except TimeoutError:
        return timed_out(problem, start, None, started_s)


def solve_until(problem: Problem, deadline: Deadline, start: Sequence[int] | None = None) -> Assignment:
    """The optimum, or a refusal; `TimeoutError` where nothing better than the start is known in time."""
    started_s = time.perf_counter()
    order = checked(order_of(problem))
    if problem.limits:
        return _within_limits(problem, order, deadline, start, started_s)
    optimum, states = least(problem, order, deadline)
    if states is None:
        return infeasible(started_s)
    return found(problem, states, optimum, started_s)


def _within_limits(
    problem: Problem, order: Order, deadline: Deadline, start: Sequence[int] | None, started_s: float
) -> Assignment:
    known = dual(problem, order, deadline, start)
    if known.bound == math.inf:
        return infeasible(started_s)
    slack = rounding(problem)
    if known.best is not None and known.objective - known.bound <= slack:
        return found(problem, known.best, known.bound, started_s)
    try:
        better, proved = _between(known, slack), True
    except TooManyLabelsError:
        better, proved = None, False
    except TimeoutError:
        if known.best is None:
            raise
        better, proved = None, False
    best = known.best if better is None else better
    if best is not None:
        return found(problem, best, problem.objective(best) if proved else known.bound, started_s)
    if proved:
        return infeasible(started_s)
    raise ProblemTooLarge(
        place="elimination", cause="too many choices that none beats", fix="solve it as an integer program"
    )


def _between(known: Dual, slack: float) -> tuple[int, ...] | None:
    """The cheapest legal choice that costs less than a known one, if there is one."""
    problem, deadline = known.problem, known.deadline
    kept = restricted(problem, [np.ones(len(variable.costs), dtype=bool) for variable in problem.variables])
    if known.best is not None:
        caps = capacities(problem)
        paid = math.fsum(price * cap for price, cap in zip(known.prices, caps, strict=True))
        sweep = swept(priced(problem, named(problem, known.prices)), known.order, deadline=deadline)
        masks = marginals_of(sweep, outside(sweep, deadline), deadline).within(known.objective + paid)
        if not all(mask.any() for mask in masks):
            return None
        kept = restricted(problem, masks)
    run = run_of(kept.problem, order_of(kept.problem), deadline, known.prices, known.objective - slack)
    whole = labelled(run)
    if not len(whole):
        return None
    return kept.back(choice(run, whole, int(whole.costs.argmin())))
