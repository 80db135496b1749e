"""The block builder: from a body, a mesh and prices to the block problem, and from its answer to a plan.

groups       operators that share one choice, and the values between them
strategies   the options of a group on a mesh: one choice per axis, jointly
kernels      what operators take, moves what values take on their way, storage what parameters take
build        the problem: numbers only (`planner.block_solver`)
plan         a problem with what its numbers stand for; from an assignment back to a body plan
solve        the doors: `solve_block`, `block_frontier`
"""

from meshwright.planner.block.choice import BlockChoice, BlockCost, cost_of_plan
from meshwright.planner.block.solve import BlockFrontier, block_frontier, solve_block
from meshwright.planner.block.space import Space, Terms

__all__ = [
    "BlockChoice",
    "BlockCost",
    "BlockFrontier",
    "Space",
    "Terms",
    "block_frontier",
    "cost_of_plan",
    "solve_block",
]
