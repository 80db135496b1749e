"""Block solving: the best plan of one body on one mesh, and the frontier of plans where memory is short.

`solve_block` answers the fastest plan, or the fastest within so many bytes. Where the space leaves ZeRO open and bytes
are limited, every level is a problem of its own, and the best answer counts; its bound is the least of theirs.

`block_frontier` goes through levels of ZeRO and kinds of recomputation, each a problem that is solved without a limit
and under several; the plans are lowered, and those that another one dominates are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.ir.decisions.sharding import levels
from meshwright.ir.errors import BlockUnsolvable, ProblemMalformed, ProblemTooLarge
from meshwright.ir.graph.fold import Fold
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.planner.block.build import build
from meshwright.planner.block.choice import BlockChoice, cost_of_plan
from meshwright.planner.block.plan import Block, body_plan
from meshwright.planner.block.space import ALL, Space, Terms
from meshwright.planner.block_solver import methods
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Assignment, Problem, Status, Variable

BETWEEN = (0.0, 0.25, 0.5)
"""Limits on bytes that a problem of a frontier is solved under: shares of the way from the leanest plan to the
fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFrontier:
    """Plans of one body by rising time. Must: none is matched or beaten by another in time, saved bytes and state
    bytes."""

    body: str
    microbatches: int
    points: tuple[BlockChoice, ...]

    def __post_init__(self) -> None:
        if undominated(self.points, self.microbatches) != self.points:
            raise ProblemMalformed(
                place=f"frontier of {self.body}", cause="a point dominates another", fix="leave it out"
            )


def solve_block(
    fold: Fold,
    body: str,
    mesh: Mesh,
    terms: Terms,
    space: Space = ALL,
    *,
    boundary: Mapping[str, State] | None = None,
    memory_bytes: float | None = None,
    in_flight: int = 1,
    limit_s: float | None = None,
    name: str = "",
) -> BlockChoice:
    """The fastest plan of a body, by the sum of its parts, within `memory_bytes` for what `in_flight` micro-batches
    keep and what its parameters' states take. `boundary` fixes states of inputs and outputs; a block that feeds itself
    ends as it begins. Raises `BlockUnsolvable` if there is none."""
    found: list[tuple[Block, Assignment]] = []
    for one in _spaces(space, terms, limited=memory_bytes is not None):
        block = build(fold, body, mesh, terms, one, boundary, found[-1][0] if found else None)
        problem = block.problem if memory_bytes is None else block.within(memory_bytes, in_flight)
        found.append((block, solve(problem, limit_s)))
    known = [(block, answer) for block, answer in found if answer.objective is not None]
    if not known:
        raise BlockUnsolvable(
            place=f"body {body} on ({mesh})",
            cause="no plan fits" if memory_bytes is not None else "no plan was found in time",
            fix="allow more memory, or recompute" if memory_bytes is not None else "allow more time",
        )
    block, answer = min(known, key=lambda pair: pair[1].objective or 0.0)
    bounds = [one.bound for _, one in found if one.bound is not None]
    proved = all(one.status in (Status.OPTIMAL, Status.INFEASIBLE) for _, one in found)
    best = replace(answer, status=Status.OPTIMAL if proved else Status.FEASIBLE, bound=min(bounds))
    return _choice(block, best, terms, name)


def solve(problem: Problem, limit_s: float | None, start: Sequence[int] | None = None) -> Assignment:
    """Solve by elimination, which answers at once also where limits leave a gap; by any method where it cannot."""
    try:
        return elimination.solve(problem, limit_s=limit_s, start=start)
    except ProblemTooLarge:
        return methods.solve(problem, limit_s=limit_s, start=start)


def _spaces(space: Space, terms: Terms, *, limited: bool) -> Iterable[Space]:
    """The space itself, or one per ZeRO level that it leaves open: the cheapest level may not fit."""
    if space.zero is not None or not limited:
        return (space,)
    return tuple(replace(space, zero=level) for level in levels([line.name for line in terms.target.storage]))


def _choice(block: Block, answer: Assignment, terms: Terms, name: str) -> BlockChoice:
    assert answer.objective is not None
    assert answer.bound is not None
    plan = body_plan(block, answer.states, name)
    ends = [*(item.value for item in block.graph.inputs), *block.graph.outputs]
    states = dict(plan.states)
    return BlockChoice(
        plan=plan,
        status=answer.status,
        objective_s=answer.objective,
        bound_s=answer.bound,
        boundary=tuple((value, states[value]) for value in dict.fromkeys(ends)),
        cost=cost_of_plan(block.graph, plan, block.mesh, terms),
    )


def block_frontier(
    fold: Fold,
    body: str,
    mesh: Mesh,
    terms: Terms,
    space: Space = ALL,
    *,
    boundary: Mapping[str, State] | None = None,
    recompute: Sequence[str] = ("none", "selective", "full"),
    within: float = 2.0,
    limit_s: float | None = None,
) -> BlockFrontier:
    """Plans of a body that no other one beats in time, saved bytes and state bytes; none slower than `within` times the
    fastest of its kind."""
    points: list[BlockChoice] = []
    block: Block | None = None
    allowed = {line.name for line in terms.target.recompute}
    for kind in recompute:
        if kind.partition(":")[0] not in allowed:
            continue
        for one in _spaces(replace(space, recompute=kind), terms, limited=True):
            block = build(fold, body, mesh, terms, one, boundary, block)
            points += _points(block, terms, within, limit_s)
    return BlockFrontier(body=body, microbatches=terms.microbatches, points=undominated(points, terms.microbatches))


def _points(block: Block, terms: Terms, within: float, limit_s: float | None) -> list[BlockChoice]:
    """The fastest plan of one problem, the leanest, and the fastest within limits between them."""
    best, leanest = solve(block.problem, limit_s), solve(_by_bytes(block), limit_s)
    if best.objective is None or best.bound is None or leanest.objective is None:
        return []
    most, least = block.within(0.0, 1).used(best.states)[0], leanest.objective
    answers = {best.states: best}
    for share in BETWEEN:
        capacity = least + share * (most - least)
        answer = solve(block.within(capacity, 1), limit_s, leanest.states)
        if answer.objective is not None and answer.objective <= within * best.objective:
            answers.setdefault(answer.states, answer)
    return [_choice(block, answer, terms, "") for answer in answers.values()]


def _by_bytes(block: Block) -> Problem:
    """The problem with bytes in place of seconds."""
    (limit,) = block.within(0.0, 1).limits
    named = zip(block.problem.variables, limit.uses, strict=True)
    return Problem(
        tuple(Variable(one.name, uses) for one, uses in named),
        tuple(replace(pair, costs=np.zeros_like(pair.costs)) for pair in block.problem.pairs),
    )


def undominated(points: Iterable[BlockChoice], microbatches: int) -> tuple[BlockChoice, ...]:
    """Plans by rising time, without those that another matches or beats in time, saved bytes and state bytes."""

    def key(point: BlockChoice) -> tuple[float, float, float]:
        return point.cost.total_s(microbatches), point.cost.saved_bytes, point.cost.state_bytes

    kept: list[BlockChoice] = []
    for point in sorted(points, key=key):
        own = key(point)
        if not any(all(a <= b for a, b in zip(key(other), own, strict=True)) for other in kept):
            kept.append(point)
    return tuple(kept)
