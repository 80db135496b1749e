"""What it costs to find the best plan of one block: CPU seconds to build its problem, and to solve it.

One block of Llama-3.1-8B, captured once, on meshes of one, two and three axes of a cluster of H100s, two sequences of
8,192 tokens per rank. Every mesh is solved cold, in a process of its own that has imported and captured beforehand; the
growth with ranks (axes of 2, 4, 8) and with axes is printed beside. Best of some rounds.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from time import process_time

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.analysis.rebatch import with_batch
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.reader import parse_fold
from meshwright.ir.graph.text import fold_text
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.target.workload import STACKS, Workload
from meshwright.planner.block.build import build
from meshwright.planner.block.space import Terms
from meshwright.planner.block_solver.methods import solve

MODEL = Path(__file__).resolve().parent.parent / "examples" / "configs" / "llama-3.1-8b"
SEQ, PER_RANK = 8192, 2
GPUS_PER_HOST = 8
LIMITS_S = {"8x8": 1.0, "2x2x2": 3.0, "8x8x8": 3.0}
"""CPU seconds to build and to solve."""
GROWTH = ("8", "2x2", "4x4", "8x8", "2x2x2", "4x4x4", "8x8x8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One mesh: CPU seconds, and how large its problem is."""

    mesh: str
    build_s: float
    solve_s: float
    variables: int
    states: int

    @property
    def total_s(self) -> float:
        return self.build_s + self.solve_s

    @property
    def holds(self) -> bool:
        return self.total_s <= LIMITS_S.get(self.mesh, float("inf"))


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.block_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="repetitions (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    fold = capture(load_model(str(MODEL), dtype="bf16"), batch=PER_RANK, seq=SEQ, seed=0).fold
    costs = [best(fold, sizes, args.rounds) for sizes in GROWTH]
    if args.json:
        print(json.dumps({cost.mesh: asdict(cost) | {"holds": cost.holds} for cost in costs}))
    else:
        print("mesh     build s  solve s    states of variables")
        for cost in costs:
            limit = f"  (limit {LIMITS_S[cost.mesh]:g} s together)" if cost.mesh in LIMITS_S else ""
            size = f"{cost.states:6} of {cost.variables}"
            print(f"{cost.mesh:7} {cost.build_s:8.3f} {cost.solve_s:8.3f}    {size}{limit}")
    return 0 if all(cost.holds for cost in costs) else 1


def best(fold: Fold, sizes: str, rounds: int) -> Cost:
    """The best of the rounds, each in a process that has seen no mesh before."""
    found, text = [], fold_text(with_batch(fold, PER_RANK * mesh_of(sizes).size))
    for _ in range(rounds):
        with get_context("fork").Pool(1) as pool:
            found.append(pool.apply(measure, (text, sizes)))
    return min(found, key=lambda cost: cost.total_s)


def mesh_of(sizes: str) -> Mesh:
    return Mesh(tuple(MeshAxis(f"axis{number}", int(size)) for number, size in enumerate(sizes.split("x"))))


def measure(text: str, sizes: str) -> Cost:
    """One mesh, cold; reading the model is not counted."""
    fold = parse_fold(text)
    mesh = mesh_of(sizes)
    cluster = read_cluster(f"{-(-mesh.size // GPUS_PER_HOST)}x{min(mesh.size, GPUS_PER_HOST)}xH100")
    workload = Workload(global_batch=PER_RANK * mesh.size, seq=SEQ, stack=STACKS["torch"])
    terms = Terms.of(Prices(cluster, published()), workload, tuple(range(mesh.size)))
    body = next(segment.period[0] for segment in fold.segments if not segment.glue)
    started_s = process_time()
    block = build(fold, body, mesh, terms)
    built_s = process_time()
    solve(block.problem)
    solved_s = process_time()
    return Cost(
        mesh=sizes,
        build_s=built_s - started_s,
        solve_s=solved_s - built_s,
        variables=len(block.problem.variables),
        states=sum(len(variable.costs) for variable in block.problem.variables),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
