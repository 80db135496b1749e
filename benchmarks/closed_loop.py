"""The closed loop on this machine: plans predicted by the shipped and by a calibrated profile, emitted, run, compared.

    plan calibrate --ranks 2 --out profile.json
    python -m benchmarks.closed_loop --profile profile.json [--models llama gpt] [--plans 12]
        [--done FILE] [--table docs/closed_loop.md]

Plans of small models are drawn from the space of two ranks and written as scripts; one group of processes runs all of
them in turns. What is printed: how the order of predictions and of measurements agree, what the plan with the least
prediction loses, and how far predictions are off. Without --profile, only shipped prices are held against the runs.
Models that FILE has are not run again. The exit code is 1 where the calibrated order is no better than the shipped one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.closed.figures import Figures, figures
from benchmarks.closed.plans import Planned, Question, planned
from meshwright.backends.door import measurer
from meshwright.calibrate.machine import busy_share
from meshwright.planner.question import ask

MODELS = ("llama", "gpt", "lines", "wide")
RANKS, BATCH, SEQ, LIMIT_S = 2, 8, 64, 1800.0
SHIPPED, CALIBRATED = "shipped", "calibrated"


def compared(question: Question, profile: str | None, count: int, seed: int, rounds: int, steps: int) -> dict[str, Any]:
    """All that is found of one model, as data."""
    profiles = {SHIPPED: ask.SHIPPED} | ({} if profile is None else {CALIBRATED: profile})
    with tempfile.TemporaryDirectory() as folder:
        plans = planned(question, profiles, count, seed, Path(folder))
        before = busy_share()
        measured = measurer("torch-gloo").steps(
            [one.script for one in plans], ranks=question.ranks, threads=1, rounds=rounds, each=steps, limit_s=LIMIT_S
        )
    return {
        "question": asdict(question),
        "busy before": before,
        "plans": [
            {"name": one.name, "predicted": dict(one.seconds), "interval": dict(one.interval), "rounds": of}
            for one, of in zip(plans, measured, strict=True)
        ],
        "figures": {name: asdict(figures_of(plans, measured, name)) for name in profiles},
    }


def figures_of(plans: Sequence[Planned], measured: Sequence[Sequence[float]], profile: str) -> Figures:
    return figures([one.seconds[profile] for one in plans], [one.interval[profile] for one in plans], measured)


def shown(found: dict[str, Any]) -> str:
    """One model in words."""
    asked = found["question"]
    lines = [f"{asked['model']}, {asked['batch']} x {asked['seq']} on {asked['ranks']} ranks"]
    lines[0] += f"; {found['busy before']:.0%} of the processors were busy before"
    for one in sorted(found["plans"], key=lambda plan: median(plan["rounds"])):
        said = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in one["predicted"].items())
        lines.append(f"  {median(one['rounds']) * 1e3:6.0f} ms measured; predicted {said}   {one['name']}")
    for name, told in found["figures"].items():
        lines.append(
            f"  {name}: tau {told['tau']:+.2f} over {told['pairs']} pairs, regret {told['regret']:.0%}, "
            f"error {told['error']:.0%}, {told['error_left_out']:.0%} with one factor left out, "
            f"{told['inside']:.0%} inside their intervals"
        )
    return "\n".join(lines)


ABOUT = """\
Written by `python -m benchmarks.closed_loop --profile FILE --done FILE --table docs/closed_loop.md`: plans of the
models of `examples/loop.py` on two ranks of one machine, predicted, emitted, run in turns and measured. *busy before*:
the share of the processors that something else had when the runs began; where that is much, measurements are of a
machine that is shared. *tau* is Kendall's, over pairs of plans whose measured difference is beyond noise; *regret*: how
much longer than the best measured plan the one with the least prediction takes; *error*: of predictions, in the mean;
*left out*: the same after one common factor, fitted on all other plans; *inside*: measurements in the interval of
their prediction."""


def page(done: Sequence[dict[str, Any]]) -> str:
    """The figures of all models as a page."""
    lines = ["# The closed loop", "", ABOUT, ""]
    lines.append("| model | plans | busy before | prices | pairs | tau | regret | error | left out | inside |")
    lines.append("|---|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for found in done:
        asked = found["question"]
        model = f"{asked['model']}, {asked['batch']} x {asked['seq']}"
        for name, told in found["figures"].items():
            figures_ = f"{told['tau']:+.2f} | {told['regret']:.0%} | {told['error']:.0%} | {told['error_left_out']:.0%}"
            figures_ += f" | {told['inside']:.0%}"
            busy = f"{found['busy before']:.0%}"
            lines.append(f"| {model} | {len(found['plans'])} | {busy} | {name} | {told['pairs']} | {figures_} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", help="what `plan calibrate` wrote on this machine")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--plans", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--done", type=Path, help="write everything there, as JSON, and take it up from there")
    parser.add_argument("--table", type=Path, help="write the page there")
    args = parser.parse_args(argv)
    done = json.loads(args.done.read_text()) if args.done and args.done.exists() else []
    known = [found["question"]["model"] for found in done]
    for model in args.models:
        if model in known:
            continue
        question = Question(model=model, ranks=RANKS, batch=BATCH, seq=SEQ)
        found = compared(question, args.profile, args.plans, args.seed, args.rounds, args.steps)
        print(shown(found), flush=True)
        done.append(found)
        if args.done:
            args.done.write_text(json.dumps(done, indent=1))
    if args.table:
        args.table.write_text(page(done))
    taus = {name: [one["figures"][name]["tau"] for one in done] for name in done[0]["figures"]}
    return int(CALIBRATED in taus and sum(taus[CALIBRATED]) <= sum(taus[SHIPPED]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
