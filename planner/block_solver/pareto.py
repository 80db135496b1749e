"""The trade-off between the objective and the use of limits: legal choices that no other matches or beats in all of
these.

Prices on uses see only the lower convex hull of that set; labels see all of it (`labelled`), and where it is small
enough, all of it is the answer. Else it is sampled, one limit at a time: the hull first, a sweep for each of its
corners, then exact solves under a capacity in the middle of the widest gap in use, until there are as many points as
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from meshwright.planner.block_solver.answer import priced
from meshwright.planner.block_solver.elimination.dual import only_use, rounding
from meshwright.planner.block_solver.elimination.elimination import solve_until
from meshwright.planner.block_solver.elimination.labelled import TooManyLabelsError, choice, labelled, run_of
from meshwright.planner.block_solver.elimination.order import Order, order_of
from meshwright.planner.block_solver.elimination.sweeps import checked, swept
from meshwright.planner.block_solver.elimination.tables import Deadline
from meshwright.planner.block_solver.problem import Problem

MOST_LABELS = 1 << 15
"""Rows of one relation above which the frontier is sampled."""

MOST_JOINED = 1 << 21
"""Rows made in all above which the frontier is sampled: about a second."""

NARROW = 1e-3
"""Of the whole range of use: gaps that are not looked into."""


LITTLE = 1e-6
"""Of the whole range of use: what is not worth any cost, at the frugal end."""


@dataclass(frozen=True, slots=True)
class Point:
    """A legal choice with its cost and its use of every limit."""

    states: tuple[int, ...]
    objective: float
    used: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points by rising objective. Must: all are legal, and none dominates another.

    `complete`: every trade that is not dominated is here. If not, each point is still the cheapest for what it uses of
    one of the limits, unless it took too much to prove.
    """

    points: tuple[Point, ...]
    complete: bool


def frontier(problem: Problem, *, most_points: int = 64, limit_s: float | None = None) -> Frontier:
    """All points, if they are at most so many and few enough to be found, else a sample; a smaller one when time is
    up."""
    deadline = Deadline.after(limit_s)
    order = checked(order_of(problem))
    found: dict[tuple[int, ...], Point] = {}
    try:
        whole = _whole(problem, order, deadline)
        if whole is not None:
            return Frontier(tuple(_spaced(whole, most_points)), len(whole) <= most_points)
        for limit in range(len(problem.limits)):
            share = most_points * (limit + 1) // len(problem.limits)
            _sample(problem, order, limit, share, found, deadline)
        # Without a single point there is no legal choice: proved.
        complete = not found
    except TimeoutError:
        complete = False
    return Frontier(tuple(_spaced(_undominated(list(found.values())), most_points)), complete)


def _whole(problem: Problem, order: Order, deadline: Deadline) -> list[Point] | None:
    """All points, if they are not too many."""
    if order.cells > MOST_LABELS:
        return None
    try:
        run = run_of(problem, order, deadline)
        run.most_labels, run.most_joined = MOST_LABELS, MOST_JOINED
        labels = labelled(run)
    except TooManyLabelsError:
        return None
    return _undominated([_point(problem, choice(run, labels, row)) for row in range(len(labels))])


def _sample(
    problem: Problem,
    order: Order,
    limit: int,
    most_points: int,
    found: dict[tuple[int, ...], Point],
    deadline: Deadline,
) -> None:
    """Points between the least use of a limit and the cheapest choice."""
    cheapest = _within(problem, limit, problem.limits[limit].capacity, None, deadline)
    if cheapest is None:
        return
    found[cheapest.states] = cheapest
    frugal = _frugal(problem, order, limit, cheapest, deadline)
    found[frugal.states] = frugal
    # Half of the points at least are left for what prices cannot see.
    for corner in _hull(problem, order, limit, (cheapest, frugal), most_points // 2, deadline):
        found[corner.states] = corner
    points = sorted(found.values(), key=lambda point: (point.used[limit], point.objective))
    _gaps(problem, limit, points, most_points, found, deadline)


def _frugal(problem: Problem, order: Order, limit: int, cheapest: Point, deadline: Deadline) -> Point:
    """The least use of a limit, and the cheapest choice with it, found at a price that makes a little use dear."""
    bare = only_use(problem, limit)
    least = _point(problem, swept(bare, order, deadline=deadline).states(len(problem.variables)))
    if not problem.legal(least.states):
        # Other limits forbid it.
        answer = solve_until(replace(bare, limits=problem.limits), deadline, cheapest.states)
        return _point(problem, answer.states) if answer.states else cheapest
    grain = LITTLE * (cheapest.used[limit] - least.used[limit])
    if grain <= 0:
        return cheapest
    price = (least.objective - cheapest.objective) / grain
    paid = priced(problem, {problem.limits[limit].name: price})
    dear = _point(problem, swept(paid, order, deadline=deadline).states(len(problem.variables)))
    return dear if problem.legal(dear.states) else least


def _hull(
    problem: Problem, order: Order, limit: int, ends: tuple[Point, Point], most: int, deadline: Deadline
) -> Iterator[Point]:
    """At most so many of the legal corners of the lower convex hull between two points, the widest span first."""
    spans = [ends]
    slack = rounding(problem)
    while spans and most:
        more, less = widest = max(spans, key=lambda span: span[0].used[limit] - span[1].used[limit])
        spans.remove(widest)
        if more.used[limit] <= less.used[limit]:
            return
        price = max(0.0, (less.objective - more.objective) / (more.used[limit] - less.used[limit]))
        sweep = swept(priced(problem, {problem.limits[limit].name: price}), order, deadline=deadline)
        if sweep.optimum >= more.objective + price * more.used[limit] - slack:
            continue
        corner = _point(problem, sweep.states(len(problem.variables)))
        inside = less.used[limit] < corner.used[limit] < more.used[limit]
        if inside and problem.legal(corner.states):
            spans += [(more, corner), (corner, less)]
            most -= 1
            yield corner


def _gaps(
    problem: Problem,
    limit: int,
    points: Sequence[Point],
    most_points: int,
    found: dict[tuple[int, ...], Point],
    deadline: Deadline,
) -> None:
    """Choices in the widest gaps in use. A gap is (low, high, start): nothing is known that uses what is between."""
    gaps = [(low.used[limit], high.used[limit], low.states) for low, high in pairwise(points)]
    narrow = NARROW * (points[-1].used[limit] - points[0].used[limit])
    # As many solves as points: there may be nothing in a gap.
    for _ in range(most_points):
        if not gaps or len(found) >= most_points:
            return
        low, high, start = widest = max(gaps, key=lambda gap: (gap[1] - gap[0], gap[0]))
        gaps.remove(widest)
        if high - low <= narrow:
            return
        middle = (low + high) / 2
        point = _within(problem, limit, middle, start, deadline)
        if point is None:
            continue
        found[point.states] = point
        # What uses between the point and the middle costs no less than the point.
        gaps += [(low, point.used[limit], start)] if point.used[limit] > low else []
        gaps.append((middle, high, point.states))


def _within(
    problem: Problem, limit: int, capacity: float, start: tuple[int, ...] | None, deadline: Deadline
) -> Point | None:
    """The cheapest legal choice that uses at most this much of one limit, if there is one."""
    scarce = replace(problem.limits[limit], capacity=capacity)
    limits = (*problem.limits[:limit], scarce, *problem.limits[limit + 1 :])
    answer = solve_until(replace(problem, limits=limits), deadline, start)
    return _point(problem, answer.states) if answer.objective is not None else None


def _point(problem: Problem, states: tuple[int, ...]) -> Point:
    return Point(states, problem.objective(states), problem.used(states))


def _undominated(points: list[Point]) -> list[Point]:
    """Points by rising objective, without those that another matches or beats in everything; the first of equals
    stays."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.objective, point.used, point.states)):
        if not any(all(a <= b for a, b in zip(one.used, point.used, strict=True)) for one in kept):
            kept.append(point)
    return kept


def _spaced(points: list[Point], most: int) -> list[Point]:
    """At most so many points: the first, the last and others evenly between."""
    if len(points) <= most:
        return points
    return [points[int(index)] for index in np.linspace(0, len(points) - 1, most).round()]
