"""Networks that are not alike everywhere: plans predicted, run on a testbed through their launch.sh, and compared.

    python -m benchmarks.hetero [--only "two islands" …] [--done FILE] [--table docs/hetero.md]

Hosts are network namespaces of this machine with shaped links, and compute is slept at declared rates
(`benchmarks.testbed`). On each topology, `plan calibrate` runs there first; then what `plan` answers under several pins
is written and started, and so are its configurations with their ranks in the naive order and in drawn ones. A run with
time-outs of TCP fails. What FILE has is predicted anew, and not run again. The exit code is 1 where a bar of
`benchmarks.heterogeneous.judged` is not met; without root, `ip` or `tc` nothing is run, and the reason is told.
"""

from __future__ import annotations

import hashlib
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.heterogeneous.calibrating import calibrated
from benchmarks.heterogeneous.judged import faults, judged
from benchmarks.heterogeneous.placed import placed
from benchmarks.heterogeneous.running import steps_of
from benchmarks.heterogeneous.topologies import FLOPS_PER_S, TOPOLOGIES, Topology
from benchmarks.searches import EXAMPLES
from benchmarks.testbed.hosts import hosts, lacking

MODEL = (f"{EXAMPLES / 'loop.py'}:llama", "--global-batch", "8", "--seq", "64", "--dtype", "fp32")
WARM = 2
"""First steps of a run that are left out."""
OTHERS, STEPS, LIMIT_S = 2, 6, 300.0
Found = dict[str, Any]
"""Of a topology: its `profile`, the `seconds` of steps by what was run, and its `runs` with today's predictions."""


def measured(topology: Topology, found: Found, keep: Callable[[], None], *, others: int, steps: int) -> None:
    """Predict what is run on a topology, run what was not run yet, and keep it run by run."""
    with TemporaryDirectory() as name, hosts(topology.mbits, topology.limits) as made:
        folder = Path(name)
        cluster, profile = folder / "cluster.toml", folder / "profile.json"
        cluster.write_text(topology.cluster())
        if "profile" not in found:
            found["profile"] = json.loads(calibrated(made, MODEL, profile).read_text())
            keep()
        profile.write_text(json.dumps(found["profile"]))
        asked = [*MODEL, "--cluster", str(cluster), "--target", "torch-gloo", "--profile", str(profile)]
        found["runs"], known = [], set[str]()
        for number, pins in enumerate(topology.pins):
            for one in placed(pins, asked, folder / str(number), others):
                key = digest(one.folder)
                if key in known:  # what another pin led to
                    break
                known.add(key)
                if key not in found["seconds"]:
                    took = steps_of(one.folder, made, topology.rates, steps + WARM, LIMIT_S)
                    found["seconds"][key] = took[WARM:]
                run = asdict(one) | {"seconds": found["seconds"][key], "folder": one.folder.name}
                print(told(run), flush=True)
                found["runs"].append(run)
                keep()


def digest(folder: Path) -> str:
    """A digest of the files that are started."""
    made = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        made.update(file.read_bytes())
    return made.hexdigest()[:16]


def told(run: Mapping[str, Any]) -> str:
    """A run in words."""
    order = " ".join(map(str, run["order"]))
    seconds = f"{median(run['seconds']) * 1e3:6.0f} ms measured, {run['step_s'] * 1e3:6.0f} predicted"
    return f"  {seconds}   {run['placement']} ({order})  {run['config']}"


def page(done: Mapping[str, Found]) -> str:
    """All that was found, as a page."""
    lines = ["# Unlike networks", "", ABOUT, ""]
    lines += ["| topology | runs | pairs | tau | regret | error | inside |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, found in done.items():
        of, _ = judged(found["runs"])
        figures = f"{of.pairs} | {of.tau:+.2f} | {of.regret:.0%} | {of.error:.0%} | {of.inside:.0%}"
        lines.append(f"| {name} | {len(found['runs'])} | {figures} |")
    lines += ["", "| topology | configuration | ranks, in the order of the plan | | predicted | measured | x |"]
    lines.append("|---|---|---|---|--:|--:|--:|")
    for name, found in done.items():
        ours: dict[str, float] = {}
        for run in found["runs"]:
            seconds = median(run["seconds"])
            times = seconds / ours.setdefault(run["pins"], seconds)
            order, predicted = " ".join(map(str, run["order"])), f"{run['step_s'] * 1e3:.0f} ms"
            figures = f"{run['placement']} | {predicted} | {seconds * 1e3:.0f} ms | {times:.2f}"
            lines.append(f"| {name} | {run['config']} | {order} | {figures} |")
    return "\n".join(lines) + "\n"


ABOUT = f"""\
Written by `python -m benchmarks.hetero --done FILE --table docs/hetero.md`: hosts are network namespaces of one
machine, their adapters and pairs shaped by `tc`, their ranks' products and attention slept at {FLOPS_PER_S / 1e9:g}
GFLOP/s (ranks of unlike speeds: two of them at half of that). `plan calibrate` ran there first. What `plan` answers
under several pins was started by its `launch.sh`, and so were its configurations with their ranks in the naive order
and in drawn ones, where these have other prices. *tau* is Kendall's, over pairs of runs whose measured difference is
beyond noise; *regret*: how much longer than the best measured run the one with the least prediction takes; *error*: of
predictions, in the mean; *inside*: measurements in the interval of their prediction; *x*: of the measurement, over that
of our order of the ranks. No run had a time-out of TCP.

Copies in one stage (dp=4) are reduced in buckets of 25 MB by `DistributedDataParallel`: of a model of 15 MB nearly all
when the backward pass has ended, behind nothing, which is priced so (`cost_models/overlap.py`)."""


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [one.name for one in TOPOLOGIES]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="TOPOLOGY", help=", ".join(names))
    parser.add_argument("--others", type=int, default=OTHERS, help="orders of ranks beside ours, at most")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--done", type=Path, help="write everything there, as JSON, and take it up from there")
    parser.add_argument("--table", type=Path, help="write the page there")
    args = parser.parse_args(argv)
    why = lacking()
    if why:
        print(f"skipped: {why}")
        return 0
    done: dict[str, Found] = json.loads(args.done.read_text()) if args.done and args.done.exists() else {}

    def keep() -> None:
        if args.done:
            args.done.write_text(json.dumps(done, indent=1))

    missed = 0
    for topology in (one for one in TOPOLOGIES if one.name in args.only):
        print(topology.name, flush=True)
        found = done.setdefault(topology.name, {"seconds": {}})
        measured(topology, found, keep, others=args.others, steps=args.steps)
        of, pairs = judged(found["runs"])
        print(f"  tau {of.tau:+.2f} over {of.pairs} pairs, regret {of.regret:.0%}, error {of.error:.0%}", flush=True)
        for fault in faults(of, pairs):
            missed += 1
            print(f"  not met: {fault}", flush=True)
    if args.table:
        args.table.write_text(page(done))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
