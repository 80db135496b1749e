"""``python -m benchmarks.kernels``: prices of single kernels, beside published measurements.

Each part of `PARTS` scores one file; any file with the same columns will do, seen before or not. Rows that cannot be
priced are counted under the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kernels_attention, kernels_gemm, kernels_nccl, kernels_throughput

DATA = Path(__file__).parent / "data"
PARTS: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "gemm": (kernels_gemm.score, "gemm_v100.csv"),
    "attention": (kernels_attention.score, "kernels.csv"),
    "throughput": (kernels_throughput.score, "kernels.csv"),
    "nccl": (kernels_nccl.score, "nccl_curves.csv"),
}
"""Name of the part and of its option, what scores it, and the file it reads unless another is given."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    for name, (_, default) in PARTS.items():
        parser.add_argument(f"--{name}", type=Path, default=DATA / default, metavar="CSV")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    missing = [path for name in PARTS if not (path := getattr(args, name)).is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(str(path) for path in missing)}")
    found = {name: score(getattr(args, name)) for name, (score, _) in PARTS.items()}
    print(json.dumps(found, indent=2) if args.json else _table(found))
    return 0


def _table(found: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'part':48} {'priced':>7} {'mape':>7} {'bias':>7} {'p50':>7} {'p90':>7}"]
    for name, part in found.items():
        lines.append(_line(name, part))
        lines += [_line(f"  {group}", scores) for group, scores in part["groups"].items()]
        lines += [f"  skipped {count}: {reason}" for reason, count in part["skipped"].items()]
        lines += [
            f"  corrupt: {one['curve']}, {one['size_kib']:g} KiB {one['reason']}" for one in part.get("corrupt", ())
        ]
    return "\n".join(lines)


def _line(name: str, scores: dict[str, Any]) -> str:
    figures = (scores[key] for key in ("mape", "bias", "p50", "p90"))
    shown = " ".join("      -" if figure is None else f"{figure:7.1%}" for figure in figures)
    return f"{name:48} {scores['priced']:7} {shown}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
