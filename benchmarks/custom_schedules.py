"""What schedules made for plans gain: the best plan whose schedule has a name, beside the best plan of all.

Every question is asked twice, once with `--forbid schedule=custom`. Both answers are the evaluator's prices; `at least`
is what no order of the same work takes less than, by formula. Small global batches on slow links between hosts, where
pipelines pay and idle time counts.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

from meshwright.ir.schedules import CUSTOM
from meshwright.planner.answer.solve import Solved, solve
from meshwright.planner.cli.main import VERBS, build_parser, with_verb
from meshwright.planner.question.ask import read_asked

CONFIGS = Path(__file__).resolve().parent.parent / "examples" / "configs"

QUESTIONS = (
    ("phi-3-mini", "4x1xA100-40G,inter=10G", 8, 2048),
    ("llama-3.1-8b", "4x1xA100,inter=25G", 8, 2048),
    ("llama-3.1-8b", "8x1xA100,inter=25G", 16, 4096),
    ("gemma-3-27b", "8x1xH100,inter=25G", 16, 4096),
    ("llama-3.1-70b", "8x8xH100,inter=25G", 32, 8192),
)
"""Model, cluster, global batch, tokens of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One question."""

    model: str
    cluster: str
    global_batch: int
    seq: int
    named: str
    """The configuration with a schedule that has a name."""
    named_s: float
    custom: str
    """That of the best plan; the same, if no schedule of its own is faster."""
    custom_s: float
    least_s: float
    """0 if the best plan has no schedule of its own."""
    more_cpu_s: float

    @property
    def gain(self) -> float:
        return 1 - self.custom_s / self.named_s


def answer(*argv: str) -> tuple[Solved, float]:
    """The answer to a command line, and the CPU seconds that the search took."""
    ask, asked = read_asked(build_parser().parse_args(with_verb(argv, VERBS)))
    setting = ask.setting()
    setting.folds.first(2)
    began = process_time()
    solved = solve(ask, setting, asked)
    return solved, process_time() - began


def gain_of(model: str, cluster: str, batch: int, seq: int) -> Gain:
    """Ask one question twice."""
    argv = (str(CONFIGS / model), "--cluster", cluster, "--global-batch", str(batch), "--seq", str(seq))
    named, named_cpu_s = answer(*argv, "--forbid", f"schedule={CUSTOM}")
    free, free_cpu_s = answer(*argv)
    assert named.best is not None, f"nothing fits: {argv}"
    assert free.best is not None, f"nothing fits: {argv}"
    made = free.refined.custom if free.refined else None
    return Gain(
        model=model,
        cluster=cluster,
        global_batch=batch,
        seq=seq,
        named=str(named.best.config),
        named_s=named.best.step_s,
        custom=str(free.best.config),
        custom_s=free.best.step_s,
        least_s=made.least_s if made else 0.0,
        more_cpu_s=free_cpu_s - named_cpu_s,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print what every question gains; 1 if any answer is slower for having a choice more."""
    parser = ArgumentParser(
        prog="python -m benchmarks.custom_schedules", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found = [gain_of(*question) for question in QUESTIONS]
    if args.json:
        sys.stdout.write(f"{json.dumps([asdict(one) | {'gain': one.gain} for one in found], indent=2)}\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for one in found for line in lines_of(one)))
    return int(any(one.custom_s > one.named_s for one in found))


def lines_of(one: Gain) -> tuple[str, ...]:
    """A question as it is printed."""
    least = f"at least {one.least_s:.3f} s; " if one.least_s else ""
    return (
        f"{one.model} on {one.cluster}, {one.global_batch} x {one.seq} tokens",
        f"  {one.named_s:.3f} s  {one.named}",
        f"  {one.custom_s:.3f} s  {one.custom}",
        f"  {one.gain:.2%} faster; {least}{one.more_cpu_s:+.2f} CPU-s",
    )


if __name__ == "__main__":
    sys.exit(main())
