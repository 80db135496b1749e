"""What `plan estimate` costs, beside a process that only loads and captures the same model.

    one       one configuration of Llama-3.1-8B on 64 GPUs
    deep      the same plan of Llama-3.1-405B (126 blocks instead of 32): depth must cost little
    wide      Llama-3.1-8B on 1024 GPUs, with as many more copies: devices must cost little
    many      --configs with random legal configurations on 64 GPUs, seeded, most of them with a pipeline: tp, pp, cp,
              dp, micro-batch, ZeRO, recomputation, schedule and virtual stages each drawn by themselves
    few       the same with all configurations on a few meshes, as a search around good ones meets them

Each runs in fresh processes, taking turns; medians are compared. Time is CPU time, user and system, of the process and
its children, less that of the bare process: on a machine with nothing else to do, two workers make twice as many
configurations a second as one CPU second does.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.inspect_cost import LARGE, SMALL, run

ONE_LIMIT_S = 0.5
"""CPU seconds for one configuration."""

WANTED_PER_S = 300.0
"""Configurations a second on `CORES` cores."""

CORES = 2
GLOBAL_BATCH, SEQ = 512, 8192
RANKS = 64
MESHES = 8
"""Of `few`."""

BARE = """
import sys
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.door import load_model

capture(load_model(sys.argv[1], dtype="bf16"), batch=int(sys.argv[2]), seq=int(sys.argv[3]), seed=0)
"""

FIXED = "tp=8,pp=4,zero=1,schedule=1f1b"
COPIES = {"one": 2, "deep": 2, "wide": 32}

Mesh = tuple[int, int, int]
"""tp, cp, pp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds beyond the bare process: medians for one configuration, and per configuration of many."""

    one_s: float
    deep_s: float
    wide_s: float
    many_each_s: float
    few_each_s: float
    configurations: int

    @property
    def many_per_s(self) -> float:
        return CORES / self.many_each_s

    @property
    def few_per_s(self) -> float:
        return CORES / self.few_each_s

    @property
    def holds(self) -> bool:
        return self.one_s <= ONE_LIMIT_S and min(self.many_per_s, self.few_per_s) >= WANTED_PER_S


def configurations(seed: int, meshes: int = 0) -> Iterator[dict[str, int | str]]:
    """Random legal ones for Llama-3.1-8B on `RANKS` GPUs without end; on so many meshes, if not 0."""
    random = Random(seed)
    known = [_mesh(random) for _ in range(meshes)]
    while True:
        tp, cp, pp = random.choice(known) if known else _mesh(random)
        dp, mbs = RANKS // (tp * cp * pp), random.choice((1, 1, 2, 4))
        found: dict[str, int | str] = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "mbs": mbs}
        found["zero"] = random.choice((0, 1, 1, 2, 3)) if dp * cp > 1 else 0
        found["recompute"] = random.choice(("none", "full", "selective", "selective_op"))
        if pp > 1:
            schedule = random.choice(("1f1b", "1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zbv"))
            found["schedule"] = schedule
            if schedule == "interleaved":
                if GLOBAL_BATCH // (dp * mbs) % pp:
                    continue
                found["vp"] = random.choice([virtual for virtual in (2, 4, 8) if pp * virtual <= BLOCKS])
        yield found


BLOCKS = 32
"""Of Llama-3.1-8B."""


def _mesh(random: Random) -> Mesh:
    while True:
        tp, cp, pp = (random.choice(sizes) for sizes in ((1, 2, 4, 8), (1, 1, 1, 2, 4), (1, 1, 2, 2, 4, 4, 8, 16)))
        if RANKS % (tp * cp * pp) == 0:
            return tp, cp, pp


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a limit does not hold."""
    parser = ArgumentParser(prog="python -m benchmarks.estimate_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command (default: %(default)s)")
    parser.add_argument("--configurations", type=int, default=1500, help="in a file (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    cost = measure(args.rounds, args.configurations)
    if args.json:
        extra = {"many_per_s": cost.many_per_s, "few_per_s": cost.few_per_s, "holds": cost.holds}
        print(json.dumps(asdict(cost) | extra))
    else:
        print(
            f"one configuration    {cost.one_s:6.2f} CPU-s beyond tracing (limit {ONE_LIMIT_S})\n"
            f"  of 126 blocks      {cost.deep_s:6.2f}\n"
            f"  on 1024 GPUs       {cost.wide_s:6.2f}\n"
            f"{cost.configurations} on many meshes  {1e3 * cost.many_each_s:6.2f} CPU-ms each:"
            f" {cost.many_per_s:4.0f} a second on {CORES} cores (wanted {WANTED_PER_S:.0f})\n"
            f"{cost.configurations} on {MESHES} meshes     {1e3 * cost.few_each_s:6.2f} CPU-ms each:"
            f" {cost.few_per_s:4.0f} a second on {CORES} cores"
        )
    return 0 if cost.holds else 1


def measure(rounds: int, count: int) -> Cost:
    """Run every command in turn, `rounds` times."""
    with TemporaryDirectory() as folder:
        lines = {"many": configurations(1), "few": configurations(2, MESHES)}
        for name, found in lines.items():
            text = "".join(f"{json.dumps(one)}\n" for one in islice(found, count))
            (Path(folder) / name).write_text(text, encoding="utf-8")
        commands = {**_commands(), **{name: _estimate(SMALL, 8, "--configs", f"{folder}/{name}") for name in lines}}
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(run(command).cpu_s)
    cpu = {name: median(found) for name, found in taken.items()}
    return Cost(
        one_s=cpu["one"] - cpu["bare one"],
        deep_s=cpu["deep"] - cpu["bare deep"],
        wide_s=cpu["wide"] - cpu["bare wide"],
        many_each_s=(cpu["many"] - cpu["bare one"]) / count,
        few_each_s=(cpu["few"] - cpu["bare one"]) / count,
        configurations=count,
    )


def _commands() -> Mapping[str, tuple[str, ...]]:
    models = {"one": (SMALL, 8), "deep": (LARGE, 8), "wide": (SMALL, 128)}
    found: dict[str, tuple[str, ...]] = {}
    for name, (model, hosts) in models.items():
        found[f"bare {name}"] = ("-c", BARE, str(model), str(COPIES[name]), str(SEQ))
        found[name] = _estimate(model, hosts, "--fix", FIXED if name != "deep" else f"{FIXED},split=ends")
    return found


def _estimate(model: Path, hosts: int, *more: str) -> tuple[str, ...]:
    asked = ("--cluster", f"{hosts}x8xH100", "--global-batch", str(GLOBAL_BATCH), "--seq", str(SEQ))
    return ("-m", "meshwright", "estimate", str(model), *asked, "--json", *more)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
