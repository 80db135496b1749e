"""Assignments made of what a solver found, in one place, so that all solvers report the same finding alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.planner.block_solver.problem import TOLERANCE, Assignment, Problem, Status, Variable


def found(problem: Problem, states: Sequence[int], bound: float, started_s: float) -> Assignment:
    """The assignment for a legal choice and a lower bound on the cost: optimal if the two are equal within the
    tolerance."""
    chosen = tuple(int(state) for state in states)
    objective = problem.objective(chosen)
    met = objective - bound <= TOLERANCE * max(1.0, abs(objective))
    return Assignment(
        status=Status.OPTIMAL if met else Status.FEASIBLE,
        states=chosen,
        objective=objective,
        # What is below the objective by rounding only is not below it.
        bound=objective if met else bound,
        seconds=time.perf_counter() - started_s,
    )


def infeasible(started_s: float) -> Assignment:
    """The assignment where there is no legal choice."""
    return Assignment(Status.INFEASIBLE, seconds=time.perf_counter() - started_s)


def timed_out(problem: Problem, start: Sequence[int] | None, bound: float | None, started_s: float) -> Assignment:
    """The assignment when time is up: the start if it is legal, else nothing."""
    if start is None or not problem.legal(tuple(start)):
        return Assignment(Status.TIMED_OUT, seconds=time.perf_counter() - started_s)
    return found(problem, start, simple_bound(problem) if bound is None else bound, started_s)


def same_cost(problem: Problem, one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two choices cost the same, within the tolerance."""
    first, second = problem.objective(tuple(one)), problem.objective(tuple(other))
    return abs(first - second) <= TOLERANCE * max(1.0, abs(first))


def simple_bound(problem: Problem) -> float:
    """A lower bound at no effort: every variable and every pair at its own best."""
    bound = sum(float(variable.costs.min()) for variable in problem.variables)
    for pair in problem.pairs:
        costs = pair.costs if pair.allowed is None else pair.costs[pair.allowed]
        bound += float(costs.min()) if costs.size else 0.0
    return bound


def priced(problem: Problem, prices: Mapping[str, float]) -> Problem:
    """The problem without limits, whose costs include the named limits' use: cost + price x use.

    With prices that are not negative, its optimum less `sum of price x capacity` is below every choice that keeps
    within the limits (Lagrange).
    """
    variables = []
    for index, variable in enumerate(problem.variables):
        costs = np.asarray(variable.costs, dtype=np.float64)
        for limit in problem.limits:
            if price := prices.get(limit.name, 0.0):
                costs = costs + price * limit.uses[index]
        variables.append(Variable(variable.name, costs))
    return replace(problem, variables=tuple(variables), limits=())
