"""The block problem: numbers only.

Choose one state for every variable so that the sum of the variables' costs and of the costs of pairs of states is
least, and what the choice uses of every limited resource stays within its limit:

    minimise    sum_v cost_v[x_v]  +  sum_(u,v) cost_uv[x_u, x_v]
    subject to  allowed_uv[x_u, x_v]                     for every pair
                sum_v use_v[x_v] <= capacity             for every limit

A variable is an operator's strategy or a value's placement; a pair says what it costs to bring a value from where one
has it to where the other wants it. What these stand for is known to `planner.block`, not here: three solvers share this
contract, and each answers an `Assignment` that can be checked without trusting it (`Assignment.check`).

Illegal means absent: a state that cannot be is not listed, a pair of states that cannot be is not allowed. Costs are
finite and may be negative; nothing is infinity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from meshwright.ir.errors import ProblemMalformed

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TOLERANCE = 1e-9
"""Relative: objectives that differ by less are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable with the cost of every state. Must: at least one state, and finite costs."""

    name: str
    costs: Array


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The joint costs of two variables; rows are the states of `first`, columns those of `second`, both by index.

    Must: first < second; one table per two variables. `allowed` of None allows every pair of states.
    """

    first: int
    second: int
    costs: Array
    allowed: Mask | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """A resource: the use of it by every state of every variable (never negative), and its capacity."""

    name: str
    capacity: float
    uses: tuple[Array, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A block problem in numbers. Its parts are checked against each other when it is made."""

    variables: tuple[Variable, ...]
    pairs: tuple[Pair, ...] = ()
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        sizes = [variable.costs.shape for variable in self.variables]
        for variable, shape in zip(self.variables, sizes, strict=True):
            if len(shape) != 1 or not shape[0] or not np.isfinite(variable.costs).all():
                raise _malformed(variable.name, f"costs of shape {shape}, or not all finite", "give one per state")
        seen: set[tuple[int, int]] = set()
        for pair in self.pairs:
            place = f"pair {pair.first}, {pair.second}"
            if not 0 <= pair.first < pair.second < len(sizes) or (pair.first, pair.second) in seen:
                raise _malformed(place, "not two variables in order, or given twice", "give every two one table")
            seen.add((pair.first, pair.second))
            shape = (sizes[pair.first][0], sizes[pair.second][0])
            tables = [pair.costs] if pair.allowed is None else [pair.costs, pair.allowed]
            if any(table.shape != shape for table in tables) or not np.isfinite(pair.costs).all():
                raise _malformed(place, f"a table that is not {shape}, or not all finite", "give one cost per two")
        for limit in self.limits:
            if [use.shape for use in limit.uses] != sizes or any((use < 0).any() for use in limit.uses):
                raise _malformed(limit.name, "uses that do not fit the states, or are negative", "give one per state")

    def objective(self, states: tuple[int, ...]) -> float:
        """The cost of a choice."""
        own = sum(float(one.costs[state]) for one, state in zip(self.variables, states, strict=True))
        return own + sum(float(pair.costs[states[pair.first], states[pair.second]]) for pair in self.pairs)

    def used(self, states: tuple[int, ...]) -> tuple[float, ...]:
        """The use of every limit by a choice."""
        return tuple(
            sum(float(use[state]) for use, state in zip(limit.uses, states, strict=True)) for limit in self.limits
        )

    def legal(self, states: tuple[int, ...]) -> bool:
        """Whether a choice is allowed and within its limits."""
        if not all(
            pair.allowed is None or bool(pair.allowed[states[pair.first], states[pair.second]]) for pair in self.pairs
        ):
            return False
        return all(
            used <= limit.capacity * (1 + TOLERANCE) for used, limit in zip(self.used(states), self.limits, strict=True)
        )


class Status(Enum):
    """The knowledge about an assignment: optimal, feasible, infeasible or timed out."""

    OPTIMAL = "optimal"
    """No legal choice costs less."""
    FEASIBLE = "feasible"
    """A legal choice, and a bound below it."""
    INFEASIBLE = "infeasible"
    """There is no legal choice: proved."""
    TIMED_OUT = "timed out"
    """No legal choice was found in time; there may be one."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The answer of a solver.

    - OPTIMAL and FEASIBLE have states, others none.
    - bound <= objective; under OPTIMAL they are equal within the tolerance. Without states both are None.
    """

    status: Status
    states: tuple[int, ...] = ()
    objective: float | None = None
    bound: float | None = None
    seconds: float = field(default=0.0, compare=False)

    def check(self, problem: Problem) -> None:
        """Check that the answer is true of the problem. Raises `ProblemMalformed`."""
        if self.status in (Status.INFEASIBLE, Status.TIMED_OUT):
            if self.states or self.objective is not None:
                raise _malformed("assignment", f"{self.status.value} with a choice", "leave it out")
            return
        if self.objective is None or self.bound is None or not problem.legal(self.states):
            raise _malformed("assignment", "no legal choice, or no objective or bound", "this is a bug in a solver")
        again = problem.objective(self.states)
        slack = TOLERANCE * max(1.0, abs(again))
        if abs(again - self.objective) > slack or self.bound > self.objective + slack:
            raise _malformed(
                "assignment", f"objective {self.objective}, bound {self.bound}, and it costs {again}", "a solver's bug"
            )
        if self.status is Status.OPTIMAL and self.objective - self.bound > slack:
            raise _malformed("assignment", f"optimal, and the bound is {self.bound}", "this is a bug in a solver")


def _malformed(place: str, cause: str, fix: str) -> ProblemMalformed:
    return ProblemMalformed(place=place, cause=cause, fix=fix)
