"""The page on accuracy: predictions beside measurements, from what benchmarks printed on a day.

    python -m pages.accuracy        run them (two minutes), keep what they print in benchmarks/data/accuracy.json, and
                                    write the page

The page is made of that file alone. Prices that have moved since are noticed by a test, which holds the file against
the prices on record (`tests/benchmarks/prices.json`).
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pages.cells import cell, page, table

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "data" / "accuracy.json"
PAGE = ROOT / "docs" / "accuracy.md"
FIGURES = ("mape", "bias", "p50", "p90")
KERNELS: Mapping[str, str] = {
    "gemm": "matrix products on V100",
    "attention": "attention",
    "throughput": "products, copies and their like on other devices",
    "nccl": "collectives of NCCL, from 256 KiB on",
}
ABOUT = """Predicted beside measured, on everything public that we found. An error is (predicted - measured) / measured;
*error* is the mean of its size, *bias* the mean with its sign, *p90* what nine of ten stay below."""
UNSEEN = """No row is unseen: constants of a step were fitted on these runs, and kernel tables, stacks and formulas
were made by people who had seen them. What constants make of rows that they were not fitted on is in
[Benchmarks](benchmarks.md#published-runs), by source, device, precision, framework, family and scale, with the one fit
that met rows which came later: 25 % off. The interval that `plan` prints is fitted on held-out rows
([Prices](prices.md#what-a-price-is-worth))."""
OTHERS = """- [What is emitted, and exact](emitted.md), and the same [in JAX](emitted_jax.md): scripts that were
  run on processors and compared with one device
- [Models that nobody here chose](registry.md)
- [Plans run in turns](closed_loop.md), against shipped and calibrated prices, on one machine
- [Unlike networks](hetero.md), made of network namespaces
- Nothing was run on GPUs or TPUs by us; whatever is said of them rests on published measurements."""


def accuracy() -> str:
    """The page."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    runs = kept["published_runs"]
    whole = runs["overall"]
    skipped = f"{whole['rows']:,} rows are in the table; {whole['skipped']:,} state too little to be priced"
    return page(
        "Accuracy",
        f"{ABOUT} All figures are of {kept['made']}.",
        "## Training steps that others published",
        f"`python -m benchmarks.published_runs`. {skipped}. {UNSEEN}",
        table(("runs", "timed", "error", "bias", "p50", "p90"), _runs(runs)),
        f"Of two runs of equal work whose times differ, the prices order {_percent(whole['ordered'])} of "
        f"{whole['pairs']} pairs as they were measured. The run that they would pick takes "
        f"{_percent(whole['top1_regret'])} longer than the best, in the mean. Rows of the same settings differ by "
        f"{_percent(whole['replicate_mape'])} among themselves.",
        "### By source",
        table(("source", "timed", "error", "bias", "p90"), _sources(runs)),
        "## Memory",
        f"Peak memory of the fullest device. {whole['false_fits']} runs ran out of memory and fit by our count; "
        f"{whole['false_ooms']} ran and do not fit by our count.",
        table(("source", "rows", "what its figures count", "error", "at most", "bias"), _memory(runs)),
        "## Runs that state everything",
        "`python -m benchmarks.b200_single_node`: "
        f"{kept['b200_single_node']['priced']} runs of layer-truncated models on eight B200. Step time: error "
        f"{_percent(kept['b200_single_node']['step_mape'])}, at most {_percent(kept['b200_single_node']['step_max'])}; "
        f"memory: {_percent(kept['b200_single_node']['memory_mape'])}, at most "
        f"{_percent(kept['b200_single_node']['memory_max'])}.",
        "## Kernels and collectives",
        "`python -m benchmarks.kernels`. No row is priced from itself: a table or a curve is built without it. "
        "Products on other devices are among those that the law of products was fitted on.",
        table(("what", "rows", "priced", "error", "bias", "p50", "p90"), _kernels(kept["kernels"])),
        "## Elsewhere",
        OTHERS,
    )


def _runs(runs: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    named = {
        "all": runs["overall"],
        "dense models": runs["splits"]["dense"],
        "mixtures of experts": runs["splits"]["moe"],
    }
    for name, one in named.items():
        yield name, f"{one['timed']:,}", *(_percent(one[figure]) for figure in FIGURES)


def _sources(runs: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for source, one in sorted(runs["by_source"].items()):
        if one["timed"]:
            yield cell(source), f"{one['timed']:,}", *(_percent(one[figure]) for figure in ("mape", "bias", "p90"))


def _memory(runs: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for source, one in sorted(runs["memory"].items()):
        figures = (_percent(one[figure]) for figure in ("mape", "max", "bias"))
        yield cell(source), f"{one['rows']:,}", ", ".join(one["counts"]), *figures


def _kernels(kernels: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, said in KERNELS.items():
        one = kernels[name]
        yield said, f"{one['rows']:,}", f"{one['priced']:,}", *(_percent(one[figure]) for figure in FIGURES)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def measured(made: str) -> dict[str, Any]:
    """What the benchmarks print, as far as the page needs it."""
    runs, kernels = _printed("published_runs"), _printed("kernels")
    return {
        "made": made,
        "published_runs": {
            **{key: runs[key] for key in ("overall", "by_source", "memory")},
            "splits": {key: runs["splits"][key] for key in ("dense", "moe")},
            "rows": {str(row["row"]): row["predicted_s"] for row in runs["rows"] if row["skipped"] is None},
        },
        "b200_single_node": _printed("b200_single_node")["overall"],
        "kernels": {name: {key: kernels[name][key] for key in ("rows", "priced", *FIGURES)} for name in KERNELS},
    }


def _printed(name: str) -> Any:
    """The JSON of a benchmark."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = import_module(f"benchmarks.{name}").main(["--json"])
    if code:
        raise SystemExit(f"benchmarks.{name} ends with {code}")
    return json.loads(out.getvalue(), parse_float=lambda text: float(f"{float(text):.6g}"))


def main() -> int:
    """Run the benchmarks, keep what they say, and write the page."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    KEPT.write_text(f"{json.dumps(measured(today), indent=1)}\n", encoding="utf-8")
    PAGE.write_text(accuracy(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
