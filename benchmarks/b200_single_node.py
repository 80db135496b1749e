"""Step time and allocated memory of layer-truncated models on one host of eight B200, beside what we price.

    python -m benchmarks.b200_single_node --runs CSV --models CSV --json

Every row states all there is: Megatron-Core in bf16, sequence parallelism with tensor parallelism, the distributed
optimizer (ZeRO-1), a fused cross entropy, no recomputation, 1F1B. Nothing is open, so that these rows test the price
and not the reading of a table. `alloc_gib` is torch.cuda.max_memory_allocated of the fullest rank, hence compared with
`memory.allocated_bytes`; step times are the evaluator's under the published profile.

The JSON: `overall` ({rows, priced, skipped, step_mape, step_max, memory_mape, memory_max}: fractions, None where
nothing is priced) and `rows`.
"""

from __future__ import annotations

import csv
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.models import Model, fold_of, read_models, shape_of
from benchmarks.reading import read_configuration
from benchmarks.runs import Run
from meshwright.cost_models.evaluate import evaluate
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import Pool
from meshwright.cost_models.memory.peak import allocated_bytes
from meshwright.cost_models.profile import published
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.program.program import Program
from meshwright.ir.target.workload import STACKS, Workload

DATA = Path(__file__).resolve().parent / "data"

STACK_OF_FRAMEWORK = {"megatron_core": "megatron"}
"""Our name for the software of a row."""

GIB = 2.0**30
GPUS_PER_HOST = 8
FIRST_ROW = 100_000
"""The number of the first row, as a published run: beyond all rows of the table of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What is said of a row; None where nothing is."""

    allocated_bytes: float
    step_time_s: float | None = None


Price = Callable[[Program, Cluster], Priced]


def priced(program: Program, cluster: Cluster) -> Priced:
    """The price of a row."""
    found = evaluate(program, cluster, published())
    return Priced(
        allocated_bytes=max(allocated_bytes(stage.memory) for stage in found.stages), step_time_s=found.step_time_s
    )


def program_of(row: Mapping[str, str], models: Mapping[str, Model]) -> Program:
    """The program that a row ran."""
    seq, micro, count = int(row["seq_len"]), int(row["mbs"]), int(row["n_microbatches"])
    degrees = Degrees(
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        cp=int(row["cp"]),
        ep=int(row["ep"]),
        dp=int(row["dp"]),
        sequence_parallel=int(row["tp"]) > 1,
        zero=int(row["dist_optimizer"]),
        schedule="1f1b",
        microbatches=count,
    )
    shape = replace(shape_of(models[row["model"]], seq=seq), layers=int(row["n_layers"]))
    fold = fold_of(shape, seq=seq, batch=micro * degrees.dp).fold
    workload = Workload(
        global_batch=micro * degrees.dp * count,
        seq=seq,
        precision=row["precision"],
        stack=STACKS[STACK_OF_FRAMEWORK[row["framework"]]],
    )
    stack = workload.stack
    lowering = Lowering(attention=stack.attention, fused_loss=stack.fused_loss, regathers=stack.regathers)
    decisions = replace(template(fold, degrees), style=stack.style)
    return lower(fold, decisions, lowering, workload)


def runs_of(runs: Path, models: Path) -> tuple[Run, ...]:
    """The rows as published runs are read: what constants of a step are fitted on, beside those."""
    known = read_models(models)
    with runs.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for index, row in enumerate(rows, FIRST_ROW):
        model = known[row["model"]]
        sizes = {**model.sizes, "layers": int(row["n_layers"])}
        name = f"{row['model']}, {row['n_layers']} layers"
        cut = replace(model, name=name, sizes=sizes, parameters=None)
        seconds = float(row["step_time_ms"]) / 1e3
        batch = int(row["mbs"]) * int(row["dp"]) * int(row["n_microbatches"])
        said = {"model": name, "gbs": f"{batch}", "step_time_best_s": f"{seconds}", "gpus_per_node": f"{GPUS_PER_HOST}"}
        told = {**row, **said, "recompute": "none", "dist_opt": row["dist_optimizer"]}
        read = read_configuration(index, told, {name: cut})
        if isinstance(read, Run):
            found.append(read)
    return tuple(found)


def cluster_of(row: Mapping[str, str]) -> Cluster:
    """The host that a row ran on."""
    gpus = int(row["n_gpus"])
    each = min(gpus, GPUS_PER_HOST)
    return Cluster(pools=(Pool(name=row["gpu"], hosts=gpus // each, device=device(row["gpu"]), gpus_per_host=each),))


def score(runs: Path, models: Path, price: Price = priced) -> dict[str, Any]:
    """Every row of a table beside its price."""
    known = read_models(models)
    with runs.open(newline="", encoding="utf-8") as file:
        rows = [_scored(row, known, price) for row in csv.DictReader(file)]
    done = [row for row in rows if row["skipped"] is None]
    errors = {kind: [abs(row[f"{kind}_error"]) for row in done if row[f"{kind}_error"] is not None] for kind in _KINDS}
    overall: dict[str, Any] = {"rows": len(rows), "priced": len(done), "skipped": len(rows) - len(done)}
    for kind, found in errors.items():
        overall[f"{kind}_mape"] = fmean(found) if found else None
        overall[f"{kind}_max"] = max(found, default=None)
    return {"overall": overall, "rows": rows}


_KINDS = ("step", "memory")


def _scored(row: Mapping[str, str], models: Mapping[str, Model], price: Price) -> dict[str, Any]:
    try:
        one = price(program_of(row, models), cluster_of(row))
    except (MeshwrightError, KeyError, ValueError) as refusal:
        return {"case": row.get("case"), "skipped": str(refusal)}
    step_s, memory = _number(row, "step_time_ms", 1e-3), _number(row, "alloc_gib", GIB)
    return {
        "case": row["case"],
        "skipped": None,
        "measured_s": step_s,
        "predicted_s": one.step_time_s,
        "step_error": _error(one.step_time_s, step_s),
        "measured_bytes": memory,
        "predicted_bytes": one.allocated_bytes,
        "memory_error": _error(one.allocated_bytes, memory),
    }


def _number(row: Mapping[str, str], key: str, unit: float) -> float | None:
    return float(row[key]) * unit if row.get(key) else None


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None


def report(found: Mapping[str, Any]) -> str:
    """One line for each row, and the means."""
    lines = []
    for row in found["rows"]:
        if row["skipped"] is not None:
            lines.append(f"{row['case']}: skipped, {row['skipped']}")
            continue
        gib, took = row["predicted_bytes"] / GIB, row["predicted_s"]
        step = "" if took is None else f"; {1e3 * took:.0f} ms a step, {_percent(row['step_error'])} off"
        lines.append(f"{row['case']}: {gib:.2f} GiB allocated, {_percent(row['memory_error'])} off{step}")
    whole = found["overall"]
    lines.append(f"memory: mean {_percent(whole['memory_mape'])}, at most {_percent(whole['memory_max'])}")
    lines.append(f"step time: mean {_percent(whole['step_mape'])}, at most {_percent(whole['step_max'])}")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = ArgumentParser(
        prog="python -m benchmarks.b200_single_node", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--runs", type=Path, default=DATA / "b200_single_node.csv", help="table of runs")
    parser.add_argument("--models", type=Path, default=DATA / "models.csv", help="table of models")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args(argv)
    for path in (given.runs, given.models):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    found = score(given.runs, given.models)
    print(json.dumps(found, indent=1) if given.json else report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
