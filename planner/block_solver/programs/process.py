"""Integer programs in a child process, with a wall limit that holds.

A solver's own limit is a wish: CBC took 52 s at a limit of 25. So it runs in a child with its own process group, which
is killed when time is up, and waited for; what it had said by then counts. The child is told the limit too, and returns
what it has when it can.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from meshwright.ir.errors import SolverFailed
from meshwright.planner.block_solver.answer import found, infeasible, same_cost, simple_bound, timed_out
from meshwright.planner.block_solver.problem import Assignment, Problem
from meshwright.planner.block_solver.programs.linear import Linear, Solution

GRACE_S = 0.5
"""What a child may take beyond its limit, to hand over what it has."""

CHILD = "meshwright.planner.block_solver.programs.milp"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a solver. `proved`: nothing is cheaper, or, without states, there is nothing. The bound is the
    solver's own."""

    states: tuple[int, ...] | None
    proved: bool
    bound: float | None


def solve(
    problem: Problem, *, limit_s: float | None = None, start: Sequence[int] | None = None, solver: str | None = None
) -> Assignment:
    """The optimum, or the best that is known when time is up."""
    return solve_all([problem], limit_s=limit_s, starts=[start], solver=solver)[0]


def solve_all(
    problems: Sequence[Problem],
    *,
    limit_s: float | None = None,
    starts: Sequence[Sequence[int] | None] | None = None,
    solver: str | None = None,
) -> list[Assignment]:
    """Solve several problems, one after another in one child, within one limit. `solver` is a name of PuLP's, or the
    best one."""
    started_s = time.perf_counter()
    said, complaint = _asked(problems, limit_s, solver)
    findings = [one for one in said if isinstance(one, Finding)]
    answers = []
    for index, problem in enumerate(problems):
        start = starts[index] if starts is not None else None
        if index < len(findings):
            answers.append(_answer(problem, findings[index], start, started_s))
        elif complaint is None:
            answers.append(timed_out(problem, start, None, started_s))
        else:
            raise _failed(f"integer program {index}", complaint)
    return answers


def solve_linear(linears: Sequence[Linear], *, limit_s: float | None = None) -> list[Solution]:
    """Solve programs of plain numbers, one after another in one child, within one limit: their solutions, or the best
    that is known when time is up."""
    said, complaint = _asked(linears, limit_s, None)
    found = [one for one in said if isinstance(one, Solution)]
    if len(found) < len(linears) and complaint is not None:
        raise _failed(f"integer program {len(found)}", complaint)
    return found + [Solution(None, proved=False, bound=None)] * (len(linears) - len(found))


def _failed(place: str, complaint: str) -> SolverFailed:
    return SolverFailed(
        place=place,
        cause=f"the solver's process ended early: {complaint}",
        fix="install pulp and highspy anew, or solve by elimination",
    )


def _answer(problem: Problem, finding: Finding, start: Sequence[int] | None, started_s: float) -> Assignment:
    """The assignment for a finding and the start, which may show that the solver's proof is none."""
    chosen = [finding.states] if finding.states is not None else []
    if start is not None and problem.legal(tuple(start)):
        chosen.append(tuple(start))
    best = min(chosen, key=problem.objective, default=None)
    if best is None:
        return infeasible(started_s) if finding.proved else timed_out(problem, None, None, started_s)
    if finding.proved and finding.states is not None and same_cost(problem, best, finding.states):
        return found(problem, finding.states, problem.objective(finding.states), started_s)
    bounds = [simple_bound(problem)]
    if finding.bound is not None and not finding.proved:
        bounds.append(min(finding.bound, problem.objective(best)))
    return found(problem, best, max(bounds), started_s)


def _asked(
    problems: Sequence[Problem | Linear], limit_s: float | None, solver: str | None
) -> tuple[list[Finding | Solution], str | None]:
    """The findings of the child in time, and its errors if it ended early."""
    until_s = math.inf if limit_s is None else time.time() + limit_s
    # Solvers that talk by files leave them behind when they are killed.
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        paths = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-P", "-m", CHILD, str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": scratch}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        ) as child:
            try:
                asked = pickle.dumps((tuple(problems), until_s, solver))
                said, complained = child.communicate(asked, timeout=None if limit_s is None else limit_s + GRACE_S)
            except subprocess.TimeoutExpired:
                _end(child)
                said, _ = child.communicate()
                return _read(said), None
            finally:
                _end(child)
    complaint = complained.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
    return _read(said), complaint[0] if child.returncode else None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its own children, and wait for it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _read(said: bytes) -> list[Finding | Solution]:
    """The findings that were written completely."""
    stream = BytesIO(said)
    findings: list[Finding | Solution] = []
    while stream.tell() < len(said):
        try:
            findings.append(pickle.load(stream))
        except (EOFError, pickle.UnpicklingError):
            break
    return findings
