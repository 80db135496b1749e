"""What a cold `plan` costs, beside a script that only imports the same frameworks and exports two blocks.

    8b          Llama-3.1-8B on 64 H100
    405b        Llama-3.1-405B on 16,384 H100, 8k tokens, global batch 2,048
    deepseek    DeepSeek-V3 on 2,048 H800

and how that grows: with layers (a decoder like Llama-3.1-8B with more of them, on the same GPUs) and with devices (the
same decoder and batch per GPU). More layers must cost little, more devices at most as n log n does.

Each runs in fresh processes, the first three in turn with the bare script; medians are compared. Time is CPU time of
all threads and children, memory the peak resident size, both from the kernel's account. The gap is `plan.json`'s own.
What mesh axes cost the block solver is `benchmarks.block_cost`.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log2
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.inspect_cost import BARE, CONFIGS, run
from meshwright.planner.plan.file import FILE

DECODER = """
name = "decoder of {layers} layers"
layers = {layers}
hidden = 4096
ffn_hidden = 14336
vocab = 128256
heads = 32
kv_heads = 8
"""
LAYERS, DEVICES = (16, 32, 64, 128), (8, 64, 512, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command, and what it may cost; 0: anything."""

    model: str
    cluster: str
    batch: int
    seq: int
    stack: str = "megatron"
    limit_s: float = 0.0
    limit_bytes: float = 0.0
    limit_gap: float = 1.0

    def command(self, model: Path, out: str) -> tuple[str, ...]:
        asked = ("--cluster", self.cluster, "--global-batch", str(self.batch), "--seq", str(self.seq))
        return ("-m", "meshwright", "plan", str(model), *asked, "--stack", self.stack, "--out", out)


PLANS: Mapping[str, Asked] = {
    "8b": Asked(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192, stack="torch", limit_s=3),
    "405b": Asked(
        model="llama-3.1-405b",
        cluster="2048x8xH100",
        batch=2048,
        seq=8192,
        limit_s=8,
        limit_bytes=1.5e9,
        limit_gap=0.02,
    ),
    "deepseek": Asked(model="deepseek-v3", cluster="256x8xH800", batch=15360, seq=4096, limit_s=15, limit_gap=0.05),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds of the command and of the bare script, and what the plan says of itself."""

    name: str
    cpu_s: float
    bare_s: float
    peak_bytes: int
    step_s: float
    gap: float

    @property
    def beyond_s(self) -> float:
        return self.cpu_s - self.bare_s

    @property
    def holds(self) -> bool:
        asked = PLANS[self.name]
        in_time = not asked.limit_s or self.beyond_s <= asked.limit_s
        return in_time and self.gap <= asked.limit_gap and self.peak_bytes <= (asked.limit_bytes or self.peak_bytes)

    def __str__(self) -> str:
        asked = PLANS[self.name]
        return (
            f"{self.name:9} {self.cpu_s:6.2f} CPU-s, {self.beyond_s:.2f} beyond the script (limit {asked.limit_s:g}), "
            f"{self.peak_bytes / 1e9:.2f} GB; a step takes {self.step_s:.4g} s, gap {self.gap:.2%} "
            f"(limit {asked.limit_gap:.0%})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """One size of a curve; `allowed` is how much more than the first it may cost, by the law it is held against."""

    what: str
    size: int
    cpu_s: float
    allowed: float


def main(argv: Sequence[str]) -> int:
    """Measure and print, each as it is known; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.search_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command (default: %(default)s)")
    parser.add_argument("--only", choices=(*PLANS, "layers", "devices"), action="append", help="only these")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    only, told = args.only or (*PLANS, "layers", "devices"), sys.stderr if args.json else sys.stdout
    costs = []
    for name in [name for name in PLANS if name in only]:
        costs.append(measured(name, args.rounds))
        print(costs[-1], file=told, flush=True)
    grown = []
    for one in growth(only):
        grown.append(one)
        first = next(other for other in grown if other.what == one.what)
        ratio, law = one.cpu_s / first.cpu_s, f"may be {one.allowed:.1f}" if one.allowed else "should be near 1"
        print(
            f"{one.size:5} {one.what:8} {one.cpu_s:6.2f} CPU-s, {ratio:.2f} of the first ({law})", file=told, flush=True
        )
    if args.json:
        print(
            json.dumps(
                {"plans": [asdict(one) | {"holds": one.holds} for one in costs], "growth": list(map(asdict, grown))}
            )
        )
    return 0 if all(cost.holds for cost in costs) else 1


def measured(name: str, rounds: int) -> Cost:
    """One command, `rounds` times, each beside the bare script."""
    asked, bare, own, peak = PLANS[name], [], [], 0
    model = CONFIGS / asked.model
    with TemporaryDirectory() as out:
        for _ in range(rounds):
            bare.append(run(("-c", BARE, str(model))).cpu_s)
            one = run(asked.command(model, out))
            own.append(one.cpu_s)
            peak = max(peak, one.peak_bytes)
        said = json.loads((Path(out) / FILE).read_text(encoding="utf-8"))
    return Cost(
        name=name,
        cpu_s=median(own),
        bare_s=median(bare),
        peak_bytes=peak,
        step_s=said["bounds"]["upper_s"],
        gap=said["bounds"]["gap"],
    )


def growth(only: Sequence[str]) -> Iterator[Grown]:
    """Both curves, a run each: of a shape in numbers, so that nothing but the size differs."""
    with TemporaryDirectory() as folder:

        def cpu_s(layers: int, devices: int) -> float:
            model = Path(folder) / f"decoder{layers}.toml"
            model.write_text(DECODER.format(layers=layers), encoding="utf-8")
            asked = Asked(model="", cluster=f"{devices // 8}x8xH100", batch=4 * devices, seq=8192)
            return run(asked.command(model, folder)).cpu_s

        if "layers" in only:
            for layers in LAYERS:
                yield Grown(what="layers", size=layers, cpu_s=cpu_s(layers, 64), allowed=0.0)
        if "devices" in only:
            for devices in DEVICES:
                law = devices * log2(devices) / (DEVICES[0] * log2(DEVICES[0]))
                yield Grown(what="devices", size=devices, cpu_s=cpu_s(32, devices), allowed=law)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
