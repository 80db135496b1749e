"""The block solver: one contract (`problem`), three implementations that must agree.

solve(problem)                      the optimum, by the quickest method that is exact            `methods`
min_marginals(problem)              the optimum with each state of each variable                 `sweeps`
boundary_table(problem, p, q)       the optimum for each two states of an entry and an exit      `boundary`
min_plus_power(boundary, n)         n equal blocks in a row                                      `boundary`
"""

from meshwright.planner.block_solver.boundary import (
    Block,
    Boundary,
    boundary_table,
    chained,
    min_plus,
    min_plus_power,
)
from meshwright.planner.block_solver.elimination.sweeps import MinMarginals, min_marginals
from meshwright.planner.block_solver.methods import Method, solve
from meshwright.planner.block_solver.pareto import Frontier, Point, frontier

__all__ = [
    "Block",
    "Boundary",
    "Frontier",
    "Method",
    "MinMarginals",
    "Point",
    "boundary_table",
    "chained",
    "frontier",
    "min_marginals",
    "min_plus",
    "min_plus_power",
    "solve",
]
