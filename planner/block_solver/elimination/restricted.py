"""Problems with fewer states: what is known to be in no best choice is left out, and answers are brought back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.planner.block_solver.elimination.tables import Index
from meshwright.planner.block_solver.problem import Mask, Pair, Problem, Variable


@dataclass(frozen=True, slots=True, eq=False)
class Restricted:
    """A problem with fewer states, and their numbers in the whole problem."""

    problem: Problem
    kept: tuple[Index, ...]

    def back(self, states: Sequence[int]) -> tuple[int, ...]:
        """The choice in the whole problem's states."""
        return tuple(int(kept[state]) for kept, state in zip(self.kept, states, strict=True))


def restricted(problem: Problem, masks: Sequence[Mask]) -> Restricted:
    """The problem with only the states of the masks; at least one for each variable."""
    kept = tuple(np.flatnonzero(mask) for mask in masks)
    variables = tuple(Variable(one.name, one.costs[some]) for one, some in zip(problem.variables, kept, strict=True))
    pairs = []
    for pair in problem.pairs:
        where = np.ix_(kept[pair.first], kept[pair.second])
        allowed = None if pair.allowed is None else pair.allowed[where]
        pairs.append(Pair(pair.first, pair.second, pair.costs[where], allowed))
    limits = tuple(
        replace(limit, uses=tuple(use[some] for use, some in zip(limit.uses, kept, strict=True)))
        for limit in problem.limits
    )
    return Restricted(Problem(variables, tuple(pairs), limits), kept)
