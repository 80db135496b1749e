"""One rank of each stage of Llama-3.1-405B on 16,384 ranks, each alone: what it takes here, and whether it communicates
what was priced.

    python -m benchmarks.fake_ranks

The plan is searched for (`PLAN`), its script emitted, and of every group of ranks that hold the same stages one rank
builds and does a step, forward and backward, all micro-batches of its schedule: `plan verify --alone`. A rank must stay
below 60 CPU-seconds (of one thread: other load on the machine does not count) and 4 GB, and communicate exactly what
the Program has: kind, group and bytes.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.inspect_cost import CONFIGS
from meshwright.backends.results import Alone
from meshwright.backends.torch_.verify.alone import each_alone
from meshwright.backends.torch_.verify.run.fake import counted
from meshwright.planner.cli.main import main as plan
from meshwright.planner.cli.views.code.alone import to_json
from meshwright.planner.plan.emitted import subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload

PLAN = (
    *("--cluster", "2048x8xH100", "--global-batch", "2048", "--seq", "8192", "--dtype", "bf16"),
    *("--target", "torch-cuda", "--fix", "tp=8,pp=16,dp=128"),
)
LIMIT_S, LIMIT_BYTES = 60.0, 4e9


def main(argv: Sequence[str]) -> int:
    """Plan, run, print each as it is known; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.fake_ranks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=str(CONFIGS / "llama-3.1-405b"), help="(default: %(default)s)")
    parser.add_argument("--fix", action="append", default=[], metavar="PINS", help="more pins of the plan")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="end a rank then")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    pins = [word for pin in args.fix for word in ("--fix", pin)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        with redirect_stdout(sys.stderr):
            code = plan([args.model, *PLAN, *pins, "--out", name])
        if code:
            return code
        again = reload(load_plan(name))
        subject, found = subject_of(again), list[Alone]()
        if not args.json:
            print(f"{again.plan.config}\n\n{HEAD}", flush=True)
        for one in each_alone(subject, folder / "train", counted, limit_s=args.time_limit):
            found.append(one)
            if not args.json:
                print(row(one), flush=True)
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found, subject.ranks), indent=2)}\n")
    return int(not all(map(holds, found)))


def holds(one: Alone) -> bool:
    """Whether a rank stays within its limits, and communicates what was priced."""
    return not one.differences and one.cpu_s <= LIMIT_S and one.peak_bytes <= LIMIT_BYTES


HEAD = "| rank | stages | collectives | messages | differences | CPU-s | GB |\n|---|---|---|---|---|---|---|"


def row(one: Alone) -> str:
    """A row of the table."""
    messages = sum(count for kind, _, count, _ in one.collectives if kind in ("send", "recv"))
    others = sum(count for _, _, count, _ in one.collectives) - messages
    cells = (
        str(one.rank),
        " ".join(map(str, one.stages)),
        str(others),
        str(messages),
        str(len(one.differences)),
        f"{one.cpu_s:.1f}",
        f"{one.peak_bytes / 1e9:.2f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
