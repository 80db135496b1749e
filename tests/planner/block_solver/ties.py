"""Answers to block problems with many ties, which `tests.e2e.same_answers` holds against those of another process."""

from __future__ import annotations

import numpy as np

from meshwright.planner.block_solver import min_marginals
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.programs import process
from tests.planner.block_solver.problems import written


def told() -> list[str]:
    """Answers to problems with many ties."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (0, 3), (2, 3), (3, 4), (4, 5), (1, 5)]
    problems = [written(rng, [4] * 6, edges, "ties", limits=limits, tight=0.4) for limits in (0, 1, 2, 0, 1, 2)]
    by_sweep = [str(elimination.solve(problem).states) for problem in problems]
    by_program = [str(answer.states) for answer in process.solve_all(problems)]
    marginals = [str([best.tolist() for best in min_marginals(problem).best]) for problem in problems]
    return [*by_sweep, *by_program, *marginals]
