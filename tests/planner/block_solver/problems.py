"""Random block problems: small enough for brute force, and all that makes real ones hard.

Hypothesis draws the structure (so that it can shrink it) and a seed for the numbers.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from meshwright.planner.block_solver.problem import TOLERANCE, Array, Limit, Pair, Problem, Variable

MOST_CHOICES = 500

KINDS = ("real", "ties", "seconds", "equal columns")
"""How costs are drawn: at large, small whole numbers (many ties), of a step's size, or with columns that repeat."""


def numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    if kind == "ties":
        return rng.integers(-1, 3, shape).astype(float)
    costs = rng.normal(size=shape)
    if kind == "seconds":
        return costs * 1e-4
    if kind == "equal columns" and len(shape) == 2:
        rows, columns = (rng.integers(0, (size + 1) // 2, size) for size in shape)
        return costs[rows][:, columns]
    return costs


@st.composite
def problems(draw: st.DrawFn, limits: int | None = None) -> Problem:
    """At most six variables in any graph (chains, hubs, loose ones), with forbidden pairs and, if asked, limits."""
    count = draw(st.sampled_from([1, 2, 3, 4, 5, 5, 6, 6]))
    sizes = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    while math.prod(sizes) > MOST_CHOICES:
        sizes[sizes.index(max(sizes))] -= 1
    every = list(itertools.combinations(range(count), 2))
    skeleton = draw(st.sampled_from(["chain", "hub", "ladder", "none"]))
    edges = {
        "none": [],
        "chain": [(one, one + 1) for one in range(count - 1)],
        "hub": [(0, one) for one in range(1, count)],
        "ladder": [(one, two) for one, two in every if two - one <= 2],
    }[skeleton]
    more = draw(st.lists(st.sampled_from(every), unique=True, max_size=4)) if every else []
    edges = sorted({*edges, *more})
    kind = draw(st.sampled_from(KINDS))
    forbidden = draw(st.sampled_from([0.0, 0.0, 0.2, 0.5]))
    many = draw(st.integers(0, 2)) if limits is None else limits
    tight = draw(st.sampled_from([0.5, 0.3, 0.7, 0.1]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return written(rng, sizes, edges, kind, forbidden, many, tight)


def written(
    rng: np.random.Generator,
    sizes: list[int],
    edges: list[tuple[int, int]],
    kind: str = "real",
    forbidden: float = 0.0,
    limits: int = 0,
    tight: float = 0.5,
) -> Problem:
    """A problem of this structure; `tight` is where between the least and the most use the capacity lies."""
    variables = tuple(Variable(f"v{index}", numbers(rng, kind, (size,))) for index, size in enumerate(sizes))
    pairs = []
    for first, second in edges:
        shape = (sizes[first], sizes[second])
        allowed = rng.random(shape) >= forbidden if forbidden else None
        pairs.append(Pair(first, second, numbers(rng, kind, shape), allowed))
    scarce = []
    for index in range(limits):
        uses = tuple(rng.integers(0, 6, size).astype(float) for size in sizes)
        least, most = (sum(float(edge(use)) for use in uses) for edge in (np.min, np.max))
        scarce.append(Limit(f"limit{index}", math.floor(least + tight * (most - least)), uses))
    return Problem(variables, tuple(pairs), tuple(scarce))


def traded(*points: tuple[float, ...], capacity: tuple[float, ...]) -> Problem:
    """One variable: of every state its cost, and what it uses of every limit."""
    table = np.array(points, dtype=float)
    limits = (Limit(f"limit{at}", most, (table[:, 1 + at],)) for at, most in enumerate(capacity))
    return Problem((Variable("a", table[:, 0]),), (), tuple(limits))


def same(one: float | None, other: float | None) -> bool:
    """Equal within the tolerance; costs of 1e-4 s too."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other), 1e-4)
