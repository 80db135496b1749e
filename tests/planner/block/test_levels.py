"""Which block problems are solved for a body, and what is made of their answers: prices and bytes are told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import BlockUnsolvable, ProblemTooLarge
from meshwright.planner.block import block_frontier, solve_block
from meshwright.planner.block.choice import BlockChoice, BlockCost
from meshwright.planner.block.solve import solve as solve_problem
from meshwright.planner.block.space import Space
from meshwright.planner.block_solver import methods
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Assignment, Limit, Problem, Status
from tests.planner.block_solver.problems import traded

OPTIMAL, FEASIBLE = Status.OPTIMAL, Status.FEASIBLE
INFEASIBLE, TIMED_OUT = Assignment(Status.INFEASIBLE), Assignment(Status.TIMED_OUT)


def named(*words: str) -> list[Any]:
    return [SimpleNamespace(name=word) for word in words]


TERMS: Any = SimpleNamespace(
    target=SimpleNamespace(storage=named("optimizer", "grads", "params"), recompute=named("none", "full_layers")),
    microbatches=4,
)


def found(objective: float, bound: float) -> Assignment:
    return Assignment(OPTIMAL if objective == bound else FEASIBLE, (0,), objective, bound)


LEVELS: list[tuple[list[Assignment], int | None, float | None, Status, float, float, list[int | None]]] = [
    # of all levels the cheapest; below the least of the bounds there is nothing
    ([found(6, 6), found(5, 5), found(4, 4), INFEASIBLE], None, 9.0, OPTIMAL, 4, 4, [0, 1, 2, 3]),
    ([found(6, 2), found(5, 5), found(4, 4), INFEASIBLE], None, 9.0, FEASIBLE, 4, 2, [0, 1, 2, 3]),
    ([INFEASIBLE, found(5, 5), found(6, 6), TIMED_OUT], None, 9.0, FEASIBLE, 5, 5, [0, 1, 2, 3]),
    ([found(5, 5), found(5, 3), INFEASIBLE, INFEASIBLE], None, 9.0, FEASIBLE, 5, 3, [0, 1, 2, 3]),
    ([found(5, 5)], 2, 9.0, OPTIMAL, 5, 5, [2]),
    ([found(0, 0)], None, None, OPTIMAL, 0, 0, [None]),
    ([found(7, 6)], 3, None, FEASIBLE, 7, 6, [3]),
]


def test_of_every_level_that_may_fit_the_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is built from the one before, and solved within what there is for so many micro-batches."""
    for row in LEVELS:
        answered(monkeypatch, *row)


def answered(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Assignment],
    zero: int | None,
    memory_bytes: float | None,
    status: Status,
    objective: float,
    bound: float,
    levels: list[int | None],
) -> None:
    built: list[tuple[int | None, object]] = []
    asked: list[object] = []

    def build(fold: Any, body: Any, mesh: Any, terms: Any, space: Space, boundary: Any, like: Any) -> Any:
        built.append((space.zero, like))
        return SimpleNamespace(at=space.zero, problem="free", within=lambda *words: words)

    def solved(problem: object, limit_s: object) -> Assignment:
        asked.append((problem, limit_s))
        return answers[len(asked) - 1]

    monkeypatch.setattr("meshwright.planner.block.solve.build", build)
    monkeypatch.setattr("meshwright.planner.block.solve.solve", solved)
    monkeypatch.setattr("meshwright.planner.block.solve._choice", lambda *words: words)
    given: Any = None, "body", None, TERMS, Space(zero=zero)
    block, answer, _, name = solve_block(  # type: ignore[misc]
        *given, memory_bytes=memory_bytes, in_flight=3, limit_s=7.0, name="own"
    )
    assert (answer.status, answer.objective, answer.bound, name) == (status, objective, bound, "own")  # type: ignore[has-type]
    assert block.at == levels[[one.objective for one in answers].index(objective)]  # type: ignore[has-type]
    assert asked == [("free" if memory_bytes is None else (9.0, 3), 7.0)] * len(levels)
    assert [zero for zero, _ in built] == levels
    assert [getattr(like, "at", None) for _, like in built] == [None, *levels[:-1]]


def test_nothing_that_fits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "meshwright.planner.block.solve.build", lambda *_: SimpleNamespace(problem=None, within=lambda *words: words)
    )
    monkeypatch.setattr("meshwright.planner.block.solve.solve", lambda *_: TIMED_OUT)
    given: Any = None, "body", None, TERMS
    for memory_bytes, cause in ((9.0, "no plan fits"), (None, "no plan was found in time")):
        with pytest.raises(BlockUnsolvable, match=cause):
            solve_block(*given, memory_bytes=memory_bytes)


def test_what_elimination_refuses_goes_to_any_method(monkeypatch: pytest.MonkeyPatch) -> None:
    problem: Any = "problem"
    asked = ("problem", {"limit_s": 7.0, "start": (1,)})
    monkeypatch.setattr(elimination, "solve", lambda own, **words: ("eliminated", own, words))
    monkeypatch.setattr(methods, "solve", lambda own, **words: ("any", own, words))
    assert solve_problem(problem, 7.0, (1,)) == ("eliminated", *asked)

    def refused(*_: object, **__: object) -> None:
        raise ProblemTooLarge(place="here", cause="too large", fix="none")

    monkeypatch.setattr(elimination, "solve", refused)
    assert solve_problem(problem, 7.0, (1,)) == ("any", *asked)


PRICES = ((10, 500), (11, 400), (13, 300), (19, 200), (25, 100))
"""Of every plan of a body its seconds and bytes."""


def test_a_frontier_has_the_fastest_and_what_fits_in_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter and half of the way from 100 to 500 bytes, and the leanest, two and a half times as slow; none that is
    too slow; of every kind of recomputation that a target can do, and every level."""
    for within, seconds in (
        (2.0, [10, 13, 19]),
        (2.5, [10, 13, 19, 25]),
        (1.9, [10, 13, 19]),
        (1.8, [10, 13]),
        (1.0, [10]),
    ):
        traded_within(monkeypatch, within, seconds)


def traded_within(monkeypatch: pytest.MonkeyPatch, within: float, seconds: list[float]) -> None:
    built: list[tuple[object, object]] = []
    free = traded(*PRICES, capacity=(0.0,))
    uses = free.limits[0].uses

    def bounded(capacity: float, in_flight: int) -> Problem:
        return replace(free, limits=(Limit("memory", capacity, tuple(in_flight * use for use in uses)),))

    def build(fold: Any, body: Any, mesh: Any, terms: Any, space: Space, boundary: Any, like: Any) -> Any:
        built.append((space.recompute, space.zero))
        return SimpleNamespace(problem=replace(free, limits=()), within=bounded)

    def choice(block: Any, answer: Assignment, terms: Any, name: str) -> BlockChoice:
        taken, held = PRICES[answer.states[0]]
        cost = BlockCost(
            forward_s=taken,
            inputs_s=0.0,
            weights_s=0.0,
            once_s=0.0,
            saved_bytes=held,
            state_bytes=0.0,
            peak_bytes=0.0,
            traffic=(),
        )
        plan: Any = SimpleNamespace()
        return BlockChoice(plan=plan, status=OPTIMAL, objective_s=1.0, bound_s=1.0, boundary=(), cost=cost)

    monkeypatch.setattr("meshwright.planner.block.solve.build", build)
    monkeypatch.setattr("meshwright.planner.block.solve._choice", choice)
    given: Any = None, "body", None, TERMS
    found = block_frontier(*given, recompute=("none", "selective", "full_layers:2"), within=within)
    assert [point.cost.forward_s for point in found.points] == seconds
    assert built == [(kind, level) for kind in ("none", "full_layers:2") for level in range(4)]
    assert (found.body, found.microbatches) == ("body", 4)
