"""All that is not dominated: the trade between the objective and what is used.

A point is on the frontier if no legal choice matches or beats it in the objective and in every use. Prices on uses see
only the convex hull of these; labels see them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.planner.block_solver.labelled import MOST_LABELS, choice, labelled, run_of
from meshwright.planner.block_solver.labels import thinned
from meshwright.planner.block_solver.order import order_of
from meshwright.planner.block_solver.problem import Problem
from meshwright.planner.block_solver.sweeps import checked
from meshwright.planner.block_solver.tables import Deadline


@dataclass(frozen=True, slots=True)
class Point:
    """A legal choice, what it costs, and what it uses of every limit."""

    states: tuple[int, ...]
    objective: float
    used: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points by rising objective. Must: none dominates another.

    `complete`: every point that is not dominated is here. If not, all points are legal, the cheapest may be missing,
    and other choices may dominate them.
    """

    points: tuple[Point, ...]
    complete: bool


def frontier(
    problem: Problem,
    *,
    most_points: int = 1000,
    most_labels: int = MOST_LABELS,
    within: float = math.inf,
    limit_s: float | None = None,
) -> Frontier:
    """The points of at most the objective `within`; a sample if there are more than so many, or labels.

    `TimeoutError` when time is up.
    """
    deadline = Deadline.after(limit_s)
    run = run_of(problem, checked(order_of(problem)), deadline, (), within)
    run.thin, run.most_labels = True, most_labels
    whole = labelled(run)
    complete = run.exact
    if len(whole) > most_points:
        whole, complete = thinned(whole, most_points), False
    points = []
    for row in np.argsort(whole.costs, kind="stable"):
        states = choice(run, whole, int(row))
        points.append(Point(states, problem.objective(states), problem.used(states)))
    return Frontier(tuple(points), complete)
