"""Limits turned into prices: a bound, and a legal choice near it.

    L(prices) = least over choices of  objective + sum_j price_j (use_j - capacity_j)   <=   every legal choice

for prices that are not negative, and each L is one sweep. The best prices make the best bound; with one limit they are
found exactly, by drawing the line through the best choice known on either side of the capacity until no choice lies
below it; with several, limit by limit in turn, which may stop short of the best and is a bound all the same. What this
cannot see are choices above the lower convex hull of (use, objective): those are left to `limited`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.elimination.order import Order
from meshwright.planner.block_solver.elimination.passing import least
from meshwright.planner.block_solver.elimination.sweeps import first_least
from meshwright.planner.block_solver.elimination.tables import Deadline
from meshwright.planner.block_solver.problem import TOLERANCE, Array, Mask, Problem, Variable

MOST_LINES = 40
"""Sweeps for one limit's price; each halves the hull in practice, and ten were the most seen."""

MOST_ROUNDS = 4
"""Times that every limit has its turn."""

ROUNDING = 1e-13
"""Of the largest costs: what a sum of some hundred of them may be off by."""


@dataclass(slots=True)
class Dual:
    """The state of the price search. Must: `bound` is that of `prices`; `best`, if any, is legal."""

    problem: Problem
    order: Order
    deadline: Deadline
    prices: tuple[float, ...]
    bound: float = -math.inf
    best: tuple[int, ...] | None = None
    objective: float = math.inf

    def offer(self, states: Sequence[int]) -> None:
        """Keep a choice if it is legal and the cheapest so far."""
        chosen = tuple(states)
        if self.problem.legal(chosen) and (objective := self.problem.objective(chosen)) < self.objective:
            self.best, self.objective = chosen, objective

    def probe(self, prices: tuple[float, ...]) -> tuple[int, ...] | None:
        """The best choice at these prices, None if none is allowed."""
        optimum, states = least(priced(self.problem, named(self.problem, prices)), self.order, self.deadline)
        if states is None:
            self.bound = math.inf
            return None
        paid = math.fsum(price * most for price, most in zip(prices, capacities(self.problem), strict=True))
        if optimum - paid > self.bound:
            self.bound, self.prices = optimum - paid, prices
        self.offer(states)
        return states


def named(problem: Problem, prices: Sequence[float]) -> dict[str, float]:
    """Prices by the names of the limits."""
    return {limit.name: float(price) for limit, price in zip(problem.limits, prices, strict=True)}


def capacities(problem: Problem) -> tuple[float, ...]:
    """The most that may be used of every limit, as `Problem.legal` sees it."""
    return tuple(limit.capacity * (1 + TOLERANCE) for limit in problem.limits)


def rounding(problem: Problem) -> float:
    """The difference that two sums of the same costs may have."""
    tables = [*(one.costs for one in problem.variables), *(one.costs for one in problem.pairs)]
    return ROUNDING * math.fsum(float(np.abs(table).max()) for table in tables)


def only_use(problem: Problem, limit: int) -> Problem:
    """The problem whose objective is the use of one limit."""
    uses = problem.limits[limit].uses
    variables = tuple(Variable(one.name, use) for one, use in zip(problem.variables, uses, strict=True))
    pairs = tuple(replace(pair, costs=np.zeros_like(pair.costs)) for pair in problem.pairs)
    return Problem(variables, pairs)


def dual(problem: Problem, order: Order, deadline: Deadline, start: Sequence[int] | None = None) -> Dual:
    """The best prices found, their bound (infinity: there is no legal choice), and the best legal choice met."""
    count = len(problem.limits)
    known = Dual(problem, order, deadline, (0.0,) * count)
    if start is not None:
        known.offer(start)
    free = known.probe((0.0,) * count)
    if free is None or known.best == free:
        return known
    frugal: list[tuple[int, ...]] = []
    for limit in range(count):
        optimum, states = least(only_use(problem, limit), order, deadline)
        if states is None or optimum > capacities(problem)[limit]:
            known.bound = math.inf
            return known
        frugal.append(states)
        known.offer(frugal[-1])
    for _ in range(MOST_ROUNDS if count > 1 else 1):
        before = known.bound
        for limit in range(count):
            _price(known, limit, frugal[limit])
        if known.bound - before <= rounding(problem):
            break
    if known.best is not None:
        known.offer(improved(problem, known.best))
    return known


def _price(known: Dual, limit: int, within: tuple[int, ...]) -> None:
    """The best price of one limit while the others stay: that of the steepest line with all choices above it."""
    others = tuple(0.0 if index == limit else price for index, price in enumerate(known.prices))
    problem, most = known.problem, capacities(known.problem)[limit]

    def point(states: tuple[int, ...]) -> tuple[float, float]:
        used = problem.used(states)
        paid = math.fsum(price * use for price, use in zip(others, used, strict=True))
        return problem.objective(states) + paid, used[limit]

    over = known.probe(others)
    if over is None or point(over)[1] <= most:
        return
    (high, over_use), (low, within_use) = point(over), point(within)
    slack = rounding(problem)
    for _ in range(MOST_LINES):
        price = max(0.0, (low - high) / (over_use - within_use))
        met = known.probe(tuple(price if index == limit else one for index, one in enumerate(others)))
        if met is None:
            return
        cost, use = point(met)
        if cost + price * use >= high + price * over_use - slack:
            return
        if use > most:
            high, over_use = cost, use
        else:
            low, within_use = cost, use


def improved(problem: Problem, states: tuple[int, ...]) -> tuple[int, ...]:
    """A legal choice improved by changing one variable at a time, until no change helps."""
    chosen = list(states)
    near: list[list[tuple[int, Array, Mask | None]]] = [[] for _ in chosen]
    for pair in problem.pairs:
        near[pair.first].append((pair.second, pair.costs, pair.allowed))
        near[pair.second].append((pair.first, pair.costs.T, None if pair.allowed is None else pair.allowed.T))
    slack = rounding(problem)
    changed = True
    while changed:
        changed = False
        used = problem.used(tuple(chosen))
        for variable, around in enumerate(near):
            costs = np.array(problem.variables[variable].costs, dtype=np.float64)
            for other, table, allowed in around:
                costs += table[:, chosen[other]]
                if allowed is not None:
                    costs[~allowed[:, chosen[other]]] = np.inf
            for limit, total, most in zip(problem.limits, used, capacities(problem), strict=True):
                use = limit.uses[variable]
                costs[total - use[chosen[variable]] + use > most] = np.inf
            better = first_least(costs)
            if costs[better] < costs[chosen[variable]] - slack:
                chosen[variable] = better
                used = problem.used(tuple(chosen))
                changed = True
    return tuple(chosen)
