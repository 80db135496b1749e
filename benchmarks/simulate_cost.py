"""What it costs to make, order and simulate a pipeline schedule.

    large    interleaved 1F1B on 16 groups of 8 stages, 512 micro-batches: 131,072 actions
             made       lists written and ordered, and simulated once
             simulated  once more with other durations
    small    1F1B on 4 stages, 64 micro-batches, simulated: what a search does hundreds of times a second

Best of some rounds, by the wall clock; a busy machine makes it longer, never shorter.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from meshwright.cost_models.schedule import Compiled, Seconds, compiled, simulate
from meshwright.ir.schedules import Shape, WorkLists, named, stage_groups

LARGE = ("interleaved", 16, 8, 512)
SMALL = ("1f1b", 4, 1, 64)

LARGE_LIMIT_S = 0.3
SIMULATED_LIMIT_S = 0.15
SMALL_LIMIT_S = 0.6e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The best of the rounds."""

    actions: int
    large_s: float
    simulated_s: float
    small_s: float

    @property
    def holds(self) -> bool:
        return self.large_s <= LARGE_LIMIT_S and self.simulated_s <= SIMULATED_LIMIT_S and self.small_s <= SMALL_LIMIT_S


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.simulate_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    cost = measure(args.rounds)
    if args.json:
        print(json.dumps(asdict(cost) | {"holds": cost.holds}))
    else:
        print(
            f"{cost.actions} actions made and simulated  {cost.large_s:8.3f} s  (limit {LARGE_LIMIT_S})\n"
            f"{cost.actions} actions simulated           {cost.simulated_s:8.3f} s  (limit {SIMULATED_LIMIT_S})\n"
            f"4 stages, 64 micro-batches         {cost.small_s * 1e3:8.3f} ms (limit {SMALL_LIMIT_S * 1e3:.1f})"
        )
    return 0 if cost.holds else 1


def measure(rounds: int) -> Cost:
    """Nothing is taken from a cache but what the second and third figure mean to leave out."""
    large, small = _made(*LARGE), _made(*SMALL)
    large_seconds, small_seconds = _seconds(large), _seconds(small)
    return Cost(
        actions=len(large.codes),
        large_s=_best(lambda: simulate(_made(*LARGE), large_seconds), rounds),
        simulated_s=_best(lambda: simulate(large, large_seconds), rounds),
        small_s=_best(lambda: simulate(small, small_seconds), 20 * rounds),
    )


def _made(name: str, groups: int, virtual: int, microbatches: int) -> Compiled:
    """Lists written afresh: those that `work_lists` gives are remembered."""
    shape = Shape(stage_groups(name, groups, virtual), microbatches)
    return compiled(WorkLists(shape, named(name).write(shape)))


def _seconds(made: Compiled) -> Seconds:
    depth = made.shape.depth
    return Seconds(
        forward_s=tuple(1e-3 + 1e-5 * stage for stage in range(depth)),
        backward_s=(2e-3,) * depth,
        input_s=(1e-3,) * depth,
        weight_s=(1e-3,) * depth,
        value_s=(1e-4,) * (depth - 1),
        gradient_s=(1e-4,) * (depth - 1),
        exposed=False,
    )


def _best(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        begin = perf_counter()
        work()
        taken.append(perf_counter() - begin)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
