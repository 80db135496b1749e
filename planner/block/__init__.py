"""The block builder: from a body, a mesh and prices to the block problem, and from its answer to a plan.

groups       operators that share one choice, and the values between them
singles      what one mesh axis may do in a group
strategies   the options of a group on a mesh: one choice per axis, jointly
kernels      what operators take, moves what values take on their way, storage what parameters take
build        the problem: numbers only (`planner.block_solver`)
plan         a problem with what its numbers stand for; from an assignment back to a body plan
choice       what a body plan costs by itself, as the evaluator prices it
"""

from meshwright.planner.block.choice import BlockCost, cost_of_plan
from meshwright.planner.block.space import Space, Terms

__all__ = ["BlockCost", "Space", "Terms", "cost_of_plan"]
