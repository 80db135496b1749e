"""What `plan inspect` costs, beside a script that only imports the same frameworks and exports two blocks.

    bare     import torch and transformers, build two blocks of Llama-3.1-405B on meta, torch.export them
    large    plan inspect of Llama-3.1-405B (126 blocks) from its config.json
    small    plan inspect of Llama-3.1-8B (32 blocks)

Each runs in fresh processes, taking turns so that a busy machine disturbs all alike; medians are compared. Time is CPU
time (user and system, all threads) and memory the peak resident size, both from the kernel's account of the child.

    beyond   large - bare      what our analyses cost on top of the frameworks
    depth    large / small     depth must cost nothing
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

CONFIGS = Path(__file__).resolve().parents[1] / "examples" / "configs"
LARGE, SMALL = CONFIGS / "llama-3.1-405b", CONFIGS / "llama-3.1-8b"

BEYOND_LIMIT_S = 2.0
DEPTH_LIMIT = 1.15
PEAK_LIMIT_BYTES = 1_000_000_000
TIME_LIMIT_S = 120.0

BARE = """
import sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained(sys.argv[1])
config.num_hidden_layers, config.use_cache = 2, False
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokens = torch.zeros(1, 1024, dtype=torch.long)
torch.export.export(model, (tokens,), strict=False)
"""

INSPECT = ("-m", "meshwright", "inspect", "--json")

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "bare": ("-c", BARE, str(LARGE)),
    "large": (*INSPECT, str(LARGE)),
    "small": (*INSPECT, str(SMALL)),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One child process."""

    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Medians over the rounds."""

    rounds: int
    bare_cpu_s: float
    large_cpu_s: float
    small_cpu_s: float
    peak_bytes: int

    @property
    def beyond_s(self) -> float:
        return self.large_cpu_s - self.bare_cpu_s

    @property
    def depth(self) -> float:
        return self.large_cpu_s / self.small_cpu_s

    @property
    def holds(self) -> bool:
        return self.beyond_s <= BEYOND_LIMIT_S and self.depth <= DEPTH_LIMIT and self.peak_bytes <= PEAK_LIMIT_BYTES


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.inspect_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    cost = measure(args.rounds)
    if args.json:
        print(json.dumps(asdict(cost) | {"beyond_s": cost.beyond_s, "depth": cost.depth, "holds": cost.holds}))
    else:
        print(
            f"bare script         {cost.bare_cpu_s:5.2f} CPU-s\n"
            f"inspect 405B        {cost.large_cpu_s:5.2f} CPU-s, {cost.peak_bytes / 1e9:.2f} GB"
            f" (limit {PEAK_LIMIT_BYTES / 1e9:.1f})\n"
            f"inspect 8B          {cost.small_cpu_s:5.2f} CPU-s\n"
            f"beyond the script   {cost.beyond_s:5.2f} CPU-s (limit {BEYOND_LIMIT_S})\n"
            f"405B / 8B           {cost.depth:5.2f}       (limit {DEPTH_LIMIT})"
        )
    return 0 if cost.holds else 1


def measure(rounds: int) -> Cost:
    """Run every command in turn, `rounds` times."""
    runs: dict[str, list[Run]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            runs[name].append(run(command))
    cpu = {name: median(one.cpu_s for one in found) for name, found in runs.items()}
    return Cost(
        rounds=rounds,
        bare_cpu_s=cpu["bare"],
        large_cpu_s=cpu["large"],
        small_cpu_s=cpu["small"],
        peak_bytes=max(one.peak_bytes for one in runs["large"]),
    )


def run(command: Sequence[str]) -> Run:
    """A fresh Python with a time limit, and what the kernel says of it once it has ended."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        start_new_session=True,
    )
    alarm = threading.Timer(TIME_LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    alarm.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        alarm.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} from {' '.join(command[:3])}")
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)  # Linux counts in KiB


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
