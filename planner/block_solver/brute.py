"""Every choice, one by one: the oracle of the tests.

Nothing is clever here on purpose. The first of the cheapest legal choices in lexicographic order is the answer.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver.answer import found, infeasible
from meshwright.planner.block_solver.problem import Assignment, Problem

MOST_CHOICES = 200_000
"""Choices above which a problem is refused: some seconds."""


def choices(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All legal choices, in lexicographic order."""
    sizes = [len(variable.costs) for variable in problem.variables]
    if math.prod(sizes) > MOST_CHOICES:
        raise ProblemTooLarge(
            place="brute force",
            cause=f"{math.prod(sizes)} choices are more than {MOST_CHOICES}",
            fix="solve it by elimination or as an integer program",
        )
    return filter(problem.legal, itertools.product(*map(range, sizes)))


def solve(problem: Problem) -> Assignment:
    """The first of the cheapest legal choices."""
    started_s = time.perf_counter()
    best = min(choices(problem), key=problem.objective, default=None)
    if best is None:
        return infeasible(started_s)
    return found(problem, best, problem.objective(best), started_s)
