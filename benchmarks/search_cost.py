"""What a cold search costs, beside a script that only imports the same frameworks and exports two blocks.

    8b          Llama-3.1-8B on 64 H100
    405b        Llama-3.1-405B on 16,384 H100, 8k tokens, global batch 2,048
    deepseek    DeepSeek-V3 on 2,048 H800
    shallow, deep, wide    Llama-3.1-8B and -70B on 64, Llama-3.1-8B on 256 H100: layers must cost little, devices at
                most as n log n

Each runs in fresh processes, taking turns with the bare script; medians are compared. Time is CPU time of all threads,
memory the peak resident size, both from the kernel's account. The gap and the counts are the search's own.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.inspect_cost import BARE, CONFIGS, run

SEARCH = """
import json, sys
from dataclasses import asdict
from benchmarks.searches import Case, opened, searched

asked = json.loads(sys.argv[1])
search = searched(opened(Case(**asked)))
best = search.best
with open(sys.argv[2], "w", encoding="utf-8") as file:
    said = {"best": str(best.config) if best else "", "step_s": best.step_s if best else 0.0, "gap": search.gap}
    json.dump(said | {"counts": asdict(search.counts)}, file)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A search, and what it may cost; 0: anything."""

    model: str
    cluster: str
    batch: int
    seq: int
    stack: str
    limit_s: float = 0.0
    limit_bytes: float = 0.0
    limit_gap: float = 1.0


SEARCHES: Mapping[str, Asked] = {
    "8b": Asked(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192, stack="torch", limit_s=3),
    "405b": Asked(
        model="llama-3.1-405b", cluster="2048x8xH100", batch=2048, seq=8192, stack="megatron",
        limit_s=8, limit_bytes=1.5e9, limit_gap=0.02,
    ),
    "deepseek": Asked(
        model="deepseek-v3", cluster="256x8xH800", batch=15360, seq=4096, stack="megatron", limit_s=15, limit_gap=0.05
    ),
    "shallow": Asked(model="llama-3.1-8b", cluster="8x8xH100", batch=256, seq=8192, stack="megatron"),
    "deep": Asked(model="llama-3.1-70b", cluster="8x8xH100", batch=256, seq=8192, stack="megatron"),
    "wide": Asked(model="llama-3.1-8b", cluster="32x8xH100", batch=1024, seq=8192, stack="megatron"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds beyond the bare script, and what the search says of itself."""

    name: str
    cpu_s: float
    peak_bytes: int
    said: Mapping[str, object]

    @property
    def gap(self) -> float:
        return float(str(self.said["gap"]))

    @property
    def holds(self) -> bool:
        asked = SEARCHES[self.name]
        in_time = not asked.limit_s or self.cpu_s <= asked.limit_s
        return (
            in_time and (not asked.limit_bytes or self.peak_bytes <= asked.limit_bytes) and self.gap <= asked.limit_gap
        )

    def __str__(self) -> str:
        asked = SEARCHES[self.name]
        limit = f" (limit {asked.limit_s:g} s, gap {asked.limit_gap:.0%})" if asked.limit_s else ""
        return (
            f"{self.name:9} {self.cpu_s:6.2f} CPU-s beyond the script, {self.peak_bytes / 1e9:.2f} GB, "
            f"gap {self.gap:.2%}{limit}\n          {self.said['best']}, {self.said['step_s']} s; {self.said['counts']}"
        )


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.search_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command (default: %(default)s)")
    parser.add_argument("--only", choices=SEARCHES, action="append", help="only these")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    costs = [measured(name, args.rounds) for name in args.only or SEARCHES]
    if args.json:
        print(json.dumps([asdict(cost) | {"holds": cost.holds} for cost in costs]))
    else:
        print(*costs, sep="\n")
    return 0 if all(cost.holds for cost in costs) else 1


def measured(name: str, rounds: int) -> Cost:
    """One search, `rounds` times, each beside the bare script."""
    asked = SEARCHES[name]
    question = {key: value for key, value in asdict(asked).items() if not key.startswith("limit")}
    bare, own, peak = [], [], 0
    with TemporaryDirectory() as folder:
        told = str(Path(folder) / "said")
        for _ in range(rounds):
            bare.append(run(("-c", BARE, str(CONFIGS / asked.model))).cpu_s)
            one = run(("-c", SEARCH, json.dumps(question), told))
            own.append(one.cpu_s)
            peak = max(peak, one.peak_bytes)
        said = json.loads(Path(told).read_text(encoding="utf-8"))
    return Cost(name=name, cpu_s=median(own) - median(bare), peak_bytes=peak, said=said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
