"""The block problem as an integer program, others as they are given (`linear`), and the solvers. The only file that
imports PuLP.

    x[v, s] in {0, 1}       variable v has state s                          sum_s x[v, s] = 1
    e[u v, g, h] >= 0       u is in group g and v in group h                sum_h e[u v, g, h] = sum of x[u, s in g]
                                                                            sum_g e[u v, g, h] = sum of x[v, s in h]
    minimise                sum cost_v[s] x[v, s] + sum cost_uv[g, h] e[u v, g, h]
    subject to              sum use_v[s] x[v, s] / capacity <= 1            for every limit

e exists for what is allowed only, and need not be integer: where all x are, the equalities leave it no choice. They are
tighter than the usual e >= x + y - 1. A group are states with equal rows of costs (columns, for v): the program is the
same and far smaller.

This file runs in a child process (`process`), since a solver may overrun its limit or take the interpreter along: it
reads problems from its input and writes a `Finding` for each. HiGHS is asked first, CBC where there is no HiGHS.
`LpStatus` is not believed: it says Optimal of whatever a time-limited run has found. Objective and legality are
computed from the states, by the caller, not taken from the solver.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from collections.abc import Sequence

import numpy as np
import pulp

from meshwright.ir.processes import end_with
from meshwright.planner.block_solver.problem import Array, Pair, Problem
from meshwright.planner.block_solver.programs.linear import Linear, Solution
from meshwright.planner.block_solver.programs.process import Finding

HIGHS = "HiGHS"

SOLVERS = (HIGHS, "PULP_CBC_CMD", "COIN_CMD")
"""PuLP's names, best first; the last two are CBC, of PuLP 3 and of its successors."""

SPREAD = 2.0**10
"""About the largest number in the objective and in a limit as the solver sees it, whose tolerances of 1e-6 to 1e-7 are
absolute. Numbers are scaled by powers of two, which leave their digits alone."""

TOLERATED = 1e-6
"""What a solver's bound may be off by, as it sees it."""

CUTS = 20
"""Choices that are legal to the solver's tolerance and not to ours, that are forbidden one by one before giving up."""


Nodes = list[list[pulp.LpVariable]]


def find(problem: Problem, until_s: float, solver: str) -> Finding:
    """The result of the solver for a block problem by a time on the clock `time.time`."""
    scale = _scale(problem)
    program, nodes = written(problem, scale)
    for _ in range(CUTS):
        left_s = until_s - time.time()
        if left_s <= 0:
            break
        program.solve(_engine(solver, left_s))
        if _nothing(program, until_s):
            return Finding(None, proved=True, bound=None)
        bound = _dual_bound(program, scale)
        states = _read(nodes)
        if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible) or states is None:
            return Finding(None, proved=False, bound=bound)
        if problem.legal(states):
            return Finding(states, program.sol_status == pulp.LpSolutionOptimal, bound)
        program += pulp.lpSum(row[state] for row, state in zip(nodes, states, strict=True)) <= len(nodes) - 1
    return Finding(None, proved=False, bound=None)


def solved(linear: Linear, until_s: float, solver: str) -> Solution:
    """The result of the solver for a program of plain numbers by a time on the clock `time.time`."""
    program = pulp.LpProblem("linear", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(
            f"x_{index}", low, None if math.isinf(high) else high, pulp.LpInteger if whole else "Continuous"
        )
        for index, (low, high, whole) in enumerate(zip(linear.lower, linear.upper, linear.whole, strict=True))
    ]
    program.setObjective(
        pulp.LpAffineExpression([(one, cost) for one, cost in zip(variables, linear.costs, strict=True) if cost])
    )
    for terms, most in linear.rows:
        program += pulp.LpAffineExpression([(variables[index], factor) for index, factor in terms]) <= most
    left_s = until_s - time.time()
    if left_s <= 0:
        return Solution(None, proved=False, bound=None)
    program.solve(_engine(solver, left_s, presolve=True))
    if _nothing(program, until_s):
        return Solution(None, proved=True, bound=None)
    bound = _dual_bound(program, 1.0)
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Solution(None, proved=False, bound=bound)
    values = tuple(float(one.varValue or 0.0) for one in variables)
    return Solution(values, program.sol_status == pulp.LpSolutionOptimal, bound)


def written(problem: Problem, scale: float) -> tuple[pulp.LpProblem, Nodes]:
    """The program in PuLP's terms, with costs divided by the scale, and its variables x."""
    program = pulp.LpProblem("block", pulp.LpMinimize)
    objective: list[tuple[pulp.LpVariable, float]] = []
    nodes: Nodes = []
    for index, variable in enumerate(problem.variables):
        row = [pulp.LpVariable(f"x_{index}_{state}", cat=pulp.LpBinary) for state in range(len(variable.costs))]
        nodes.append(row)
        program += pulp.LpAffineExpression([(one, 1.0) for one in row]) == 1
        objective += [(one, float(cost) / scale) for one, cost in zip(row, variable.costs, strict=True)]
    for pair in problem.pairs:
        objective += _edges(program, pair, nodes, scale)
    for limit in problem.limits:
        unit = _power_of_two(limit.capacity)
        uses = [
            (one, float(use) / unit)
            for row, table in zip(nodes, limit.uses, strict=True)
            for one, use in zip(row, table, strict=True)
            if use
        ]
        program += pulp.LpAffineExpression(uses) <= limit.capacity / unit
    program.setObjective(pulp.LpAffineExpression(objective))
    return program, nodes


def _edges(program: pulp.LpProblem, pair: Pair, nodes: Nodes, scale: float) -> list[tuple[pulp.LpVariable, float]]:
    """Edge variables with their equalities, and their costs."""
    costs = pair.costs if pair.allowed is None else np.where(pair.allowed, pair.costs, np.inf)
    rows, columns = _groups(costs), _groups(costs.T)
    name = f"e_{pair.first}_{pair.second}"
    terms: list[tuple[pulp.LpVariable, float]] = []
    by_row: list[list[pulp.LpVariable]] = [[] for _ in rows]
    by_column: list[list[pulp.LpVariable]] = [[] for _ in columns]
    for g, row in enumerate(rows):
        for h, column in enumerate(columns):
            cost = float(costs[row[0], column[0]])
            if math.isfinite(cost):
                edge = pulp.LpVariable(f"{name}_{g}_{h}", lowBound=0)
                terms.append((edge, cost / scale))
                by_row[g].append(edge)
                by_column[h].append(edge)
    for groups, edges, states in ((rows, by_row, nodes[pair.first]), (columns, by_column, nodes[pair.second])):
        for group, these in zip(groups, edges, strict=True):
            ones = [(edge, 1.0) for edge in these] + [(states[state], -1.0) for state in group]
            program += pulp.LpAffineExpression(ones) == 0
    return terms


def _groups(costs: Array) -> list[list[int]]:
    """Rows that are equal, in the order of their firsts."""
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(np.ascontiguousarray(costs)):
        groups.setdefault(row.tobytes(), []).append(index)
    return list(groups.values())


def _scale(problem: Problem) -> float:
    """The divisor of costs."""
    tables = [*(one.costs for one in problem.variables), *(one.costs for one in problem.pairs)]
    return _power_of_two(max((float(np.abs(table).max()) for table in tables), default=0.0))


def _power_of_two(largest: float) -> float:
    """The divisor that brings the largest number to about `SPREAD`."""
    return 2.0 ** math.frexp(largest)[1] / SPREAD if largest > 0 else 1.0


def _engine(solver: str, left_s: float, *, presolve: bool = False) -> pulp.LpSolver:
    """The solver with its options: one thread, fixed random numbers, no gap."""
    limit = None if math.isinf(left_s) else left_s
    shared = {"msg": False, "threads": 1, "timeLimit": limit, "gapRel": 0.0, "gapAbs": 0.0}
    if solver == HIGHS and presolve:
        return pulp.getSolver(solver, **shared, random_seed=0)
    if solver == HIGHS:
        # With its presolve HiGHS 1.15 called 5 of 7,600 small problems infeasible or a dearer choice optimal, where a
        # limit is met exactly, at either tolerance; without it none (2026-11).
        return pulp.getSolver(solver, **shared, random_seed=0, presolve="off")
    return pulp.getSolver(solver, **shared, options=["randomSeed 1", "increment 0"])


def _nothing(program: pulp.LpProblem, until_s: float) -> bool:
    """Whether it is proved that there is no solution.

    PuLP has CBC's "integer infeasible" as no solution found; that the status is infeasible says it, if there was time.
    """
    if program.sol_status == pulp.LpSolutionInfeasible:
        return True
    none = program.sol_status == pulp.LpSolutionNoSolutionFound
    return none and program.status == pulp.LpStatusInfeasible and time.time() < until_s


def _dual_bound(program: pulp.LpProblem, scale: float) -> float | None:
    """HiGHS's bound, less its tolerance; PuLP has none of CBC's."""
    model = getattr(program, "solverModel", None)
    if model is None or not hasattr(model, "getInfo"):
        return None
    bound = float(model.getInfo().mip_dual_bound)
    return (bound - TOLERATED) * scale if math.isfinite(bound) else None


def _read(nodes: Nodes) -> tuple[int, ...] | None:
    """The chosen states, if each variable has one."""
    values = [[one.varValue or 0.0 for one in row] for row in nodes]
    if any(max(row) < 0.5 for row in values):
        return None
    return tuple(row.index(max(row)) for row in values)


def main() -> None:
    """Read (problems, until when, which solver or none), and write the finding for each, or the error."""
    end_with(int(sys.argv[1]))
    out = os.fdopen(os.dup(1), "wb")
    # Solvers print to the standard output as they please.
    os.dup2(2, 1)
    problems: Sequence[Problem | Linear]
    problems, until_s, solver = pickle.load(sys.stdin.buffer)
    there = pulp.listSolvers(onlyAvailable=True)
    chosen = solver or next(name for name in SOLVERS if name in there)
    for problem in problems:
        if isinstance(problem, Linear):
            pickle.dump(solved(problem, until_s, chosen), out)
        else:
            pickle.dump(find(problem, until_s, chosen), out)
        out.flush()


if __name__ == "__main__":
    main()
