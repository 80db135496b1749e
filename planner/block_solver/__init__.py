"""The block solver: one contract (`problem`), three implementations that must agree.

solve(problem)                      the optimum, by the quickest method that is exact            `methods`
min_marginals(problem)              the optimum with each state of each variable                 `sweeps`
"""

from meshwright.planner.block_solver.elimination.sweeps import MinMarginals, min_marginals
from meshwright.planner.block_solver.methods import Method, solve

__all__ = ["Method", "MinMarginals", "min_marginals", "solve"]
