"""The same problem has the same answer in every process, whatever the hash seed; printed when run as a script."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from meshwright.planner.block_solver import elimination, frontier, min_marginals, process
from tests.planner.block_solver.problems import written


def told() -> list[str]:
    """Answers to problems with many ties."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (0, 3), (2, 3), (3, 4), (4, 5), (1, 5)]
    problems = [written(rng, [4] * 6, edges, "ties", limits=limits, tight=0.4) for limits in (0, 1, 2, 0, 1, 2)]
    by_sweep = [str(elimination.solve(problem).states) for problem in problems]
    by_program = [str(answer.states) for answer in process.solve_all(problems)]
    trades = [str([point.states for point in frontier(problem).points]) for problem in problems]
    marginals = [str([best.tolist() for best in min_marginals(problem).best]) for problem in problems]
    return [*by_sweep, *by_program, *trades, *marginals]


@pytest.mark.parametrize("seed", ["1", "7"])
def test_answers_do_not_depend_on_the_hash_seed(seed: str) -> None:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-P", "-m", "tests.planner.block_solver.test_same_answers"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == told()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in told())
