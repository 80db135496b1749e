"""The integer program against elimination and brute force; its process, which must end when time is up."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.ir.errors import SolverFailed
from meshwright.planner.block_solver import brute, solve
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.methods import Method
from meshwright.planner.block_solver.problem import Limit, Problem, Status
from meshwright.planner.block_solver.programs import process
from meshwright.planner.block_solver.programs.linear import Linear
from tests.planner.block_solver.problems import KINDS, same, written


def many(count: int) -> list[Problem]:
    """Problems of every kind, in a fixed order; hypothesis cannot ask one process for many."""
    rng = np.random.default_rng(20)
    made = []
    for index in range(count):
        size = int(rng.integers(1, 7))
        sizes = [int(one) for one in rng.integers(1, 5, size)]
        edges = [pair for pair in itertools.combinations(range(size), 2) if rng.random() < 0.5]
        kind, forbidden = KINDS[index % len(KINDS)], (0.0, 0.0, 0.3)[index % 3]
        made.append(written(rng, sizes, edges, kind, forbidden, limits=index // 4 % 3, tight=float(rng.random())))
    return made


def hard(states: int = 12) -> Problem:
    """Thirty variables, all in pairs with one another, and a limit: nobody solves this in a second."""
    rng = np.random.default_rng(5)
    edges = list(itertools.combinations(range(30), 2))
    return written(rng, [states] * 30, edges, limits=1, tight=0.4)


@pytest.mark.parametrize(("solver", "count"), [("HiGHS", 300), ("PULP_CBC_CMD", 40)])
def test_the_integer_program_is_elimination(solver: str, count: int) -> None:
    problems = many(count)
    statuses = set()
    for problem, answer in zip(problems, process.solve_all(problems, solver=solver), strict=True):
        answer.check(problem)
        expected = elimination.solve(problem)
        assert answer.status is expected.status
        assert same(answer.objective, expected.objective)
        statuses.add(answer.status)
    assert statuses == {Status.OPTIMAL, Status.INFEASIBLE}


@pytest.mark.parametrize("method", ["auto", "elimination", "ilp", "brute"])
def test_every_method_agrees(method: Method) -> None:
    problem = next(one for one in many(30) if one.limits and brute.solve(one).status is Status.OPTIMAL)
    answer = solve(problem, method=method)
    answer.check(problem)
    assert answer.status is Status.OPTIMAL
    assert same(answer.objective, brute.solve(problem).objective)


def test_what_is_too_wide_for_elimination_is_solved_as_an_integer_program() -> None:
    """A clique of sixteen: 4 ** 15 numbers in a table, and few edges in the program since its columns repeat."""
    rng = np.random.default_rng(2)
    problem = written(rng, [4] * 16, list(itertools.combinations(range(16), 2)), "equal columns")
    answer = solve(problem)
    answer.check(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.objective == pytest.approx(min(_descents(problem, rng)), rel=1e-9)


def _descents(problem: Problem, rng: np.random.Generator) -> list[float]:
    """Where one-by-one improvement ends from many starts: one of these is the optimum, as a rule."""
    from meshwright.planner.block_solver.elimination.dual import improved

    starts = [tuple(int(one) for one in rng.integers(0, 4, 16)) for _ in range(60)]
    return [problem.objective(improved(problem, start)) for start in starts]


class Watched(subprocess.Popen[bytes]):
    """A process that remembers how long it was given, and whose time runs from when it says that it is at work."""

    started: list[Watched]
    working: Callable[[], bool]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given_s: float | None = None
        self.started.append(self)

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:  # noqa: A002
        self.given_s = self.given_s or timeout
        while not self.working() and self.poll() is None:
            try:
                return super().communicate(input, 0.05)
            except subprocess.TimeoutExpired:
                input = None  # noqa: A001  # it was sent
        return super().communicate(input, timeout)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """The processes that are started."""
    monkeypatch.setattr(Watched, "started", [], raising=False)
    monkeypatch.setattr(Watched, "working", lambda _: True, raising=False)
    monkeypatch.setattr(process.subprocess, "Popen", Watched)
    return Watched.started


@pytest.mark.parametrize("limit_s", [0.001, 0.7])
@pytest.mark.parametrize("method", ["ilp", "auto"])
def test_time_is_up_in_time_and_said(limit_s: float, method: Method, children: list[Watched]) -> None:
    problem = hard()
    answer = solve(problem, limit_s=limit_s, method=method)
    assert all(child.given_s is not None and child.given_s <= limit_s + process.GRACE_S for child in children)
    answer.check(problem)
    assert answer.status in (Status.TIMED_OUT, Status.FEASIBLE)
    # A return code is what a process has that ended and was waited for.
    assert [child.returncode is not None for child in children] == [True]


def test_a_start_is_kept_when_time_is_up() -> None:
    problem = hard()
    frugal = tuple(int(use.argmin()) for use in problem.limits[0].uses)
    answer = solve(problem, limit_s=0.001, start=frugal)
    answer.check(problem)
    assert (answer.status, answer.states) == (Status.FEASIBLE, frugal)
    greedy = tuple(int(use.argmax()) for use in problem.limits[0].uses)
    assert solve(problem, limit_s=0.001, start=greedy).status is Status.TIMED_OUT


def test_a_solver_that_heeds_no_limit_is_killed_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, children: list[Watched], tmp_path: Path
) -> None:
    note = tmp_path / "overrun.pid"
    monkeypatch.setenv("OVERRUN_NOTE", str(note))
    monkeypatch.setattr(process, "CHILD", "tests.planner.block_solver.overrun")
    monkeypatch.setattr(Watched, "working", lambda _: note.exists())
    answer = process.solve(hard(2), limit_s=0.2)
    worker = int(note.read_text())
    assert answer.status is Status.TIMED_OUT
    assert children[0].returncode is not None
    for _ in range(100):
        if not _runs(worker):
            break
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_solver_that_breaks_is_an_error_not_an_answer() -> None:
    with pytest.raises(SolverFailed, match="ended early"):
        process.solve(written(np.random.default_rng(0), [2], []), solver="no such solver")


def test_a_capacity_of_nothing() -> None:
    uses = (np.array([1.0, 0.0]), np.array([0.0, 0.0]))
    bare = written(np.random.default_rng(0), [2, 2], [(0, 1)])
    problem = Problem(bare.variables, bare.pairs, (Limit("memory", 0.0, uses),))
    for method in ("elimination", "ilp"):
        answer = solve(problem, method=method)
        answer.check(problem)
        assert answer.states[0] == 1


def test_the_library_is_imported_by_the_child_only() -> None:
    code = "import sys, meshwright.planner.block_solver; sys.exit('pulp' in sys.modules or 'highspy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_any_program_of_numbers_is_solved() -> None:
    """At most two and a half of three things; nothing is at most a negative number; no time, no answer."""
    free = {"lower": (0.0,) * 3, "upper": (1.0,) * 3, "costs": (-3.0, -2.0, -1.0)}
    rows = ((((0, 1.0), (1, 1.0), (2, 1.0)), 2.5),)
    whole = Linear(**free, whole=(True,) * 3, rows=rows)
    part = Linear(**free, whole=(False,) * 3, rows=rows)
    never = Linear(**free, whole=(True,) * 3, rows=((((0, 1.0),), -1.0),))
    found = process.solve_linear([whole, part, never])
    assert [one.proved for one in found] == [True, True, True]
    assert found[0].values == pytest.approx((1.0, 1.0, 0.0))
    assert found[1].values == pytest.approx((1.0, 1.0, 0.5))
    assert found[2].values is None
    assert found[0].bound == pytest.approx(-5.0, abs=1e-5)
    (late,) = process.solve_linear([whole], limit_s=0.0)
    assert not late.proved
    assert late.values is None
