"""How far our prices are from published training runs.

    python -m benchmarks.published_runs --runs CSV --models CSV --json

Every row of the table is read (`runs`), priced (`price`) and scored (`scoring`, `scores`), or skipped with a reason.
The scored quantity is the step time. Rows whose recomputation is blank are priced under each of none, selective and
full, scored at the middle of the interval, and counted apart in `splits`; rows whose ZeRO stage is blank run at the
lowest one that fits.

The JSON: `overall` and `by_source` ({rows, priced, skipped} and the fields of `scores.Statistics`), `splits` (dense,
moe, moe_believed, recompute_stated, recompute_blank, pretrain, tuned), `memory` (by source: what its figures count, and
the error), `false_fits` and `false_ooms`, `rows` (one for each row of the table), `contradictions`
(`benchmarks.contradictions`, for mixtures and dense models, and the groups of rows), `suspects`, and `doubts` (rows
that we believe wrong, and why: they are scored all the same). With `--leave-out KIND` (one or several) also
`left_out`, by kind: the constants of a step are fitted anew without each source, device, scale and so on, and its rows
are priced under them (`left_out`). All errors are fractions. Progress goes to stderr.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.contradictions import contradicted, summary
from benchmarks.doubts import believed, doubted
from benchmarks.fit_step import Fitter
from benchmarks.left_out import KINDS, LeftOut, folds_of, leave_out, told
from benchmarks.left_out import summary as summary_of
from benchmarks.price import Pricer
from benchmarks.runs import Run, Skipped
from benchmarks.scores import Scored, Statistics, statistics, suspects
from benchmarks.scoring import Fit, Price, read_and_score
from meshwright.cost_models.profile import published

DATA = Path(__file__).resolve().parent / "data"

PROCESSES = 2
"""More gain little: most of the time goes to the few models that most rows share."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Every row of a table, scored or skipped."""

    scored: tuple[Scored, ...]
    skipped: tuple[Skipped, ...]

    @staticmethod
    def of(rows: Sequence[Scored | Skipped]) -> Scores:
        scored = tuple(row for row in rows if isinstance(row, Scored))
        return Scores(scored, tuple(row for row in rows if isinstance(row, Skipped)))

    def to_json(self, left_out: Sequence[LeftOut] = ()) -> dict[str, Any]:
        sources = dict.fromkeys((*(row.run.source for row in self.scored), *(row.source for row in self.skipped)))
        found: dict[str, Any] = {
            "overall": _summary(self.scored, self.skipped),
            "by_source": {
                source: _summary(
                    [row for row in self.scored if row.run.source == source],
                    [row for row in self.skipped if row.source == source],
                )
                for source in sources
            },
            "splits": {name: asdict(figures) for name, figures in self.splits().items()},
            "memory": self.memory(),
            "false_fits": [row.run.row for row in self.scored if row.fits and not row.ran],
            "false_ooms": [_false_oom(row) for row in self.scored if row.ran and not row.fits],
            "rows": sorted((*map(_scored, self.scored), *map(_skipped, self.skipped)), key=lambda row: int(row["row"])),
            "contradictions": self.contradictions(),
            "suspects": [{"row": row.run.row, "why": why} for row, why in suspects(self.scored)],
            "doubts": [{"row": run.row, "why": why} for run, why in doubted(row.run for row in self.scored)],
        }
        return found | {"left_out": summary_of(left_out, _PARTS)} if left_out else found

    def memory(self) -> dict[str, Any]:
        """Of every source that publishes memory: what its figures count, and how far we are from them."""
        found: dict[str, list[tuple[str, float]]] = {}
        for row in self.scored:
            if (error := row.memory_error) is not None:
                found.setdefault(row.run.source, []).append((row.run.memory_meaning, error))
        return {
            source: {
                "rows": len(rows),
                "counts": sorted({meaning for meaning, _ in rows}),
                "mape": fmean(abs(error) for _, error in rows),
                "max": max(abs(error) for _, error in rows),
                "bias": fmean(error for _, error in rows),
            }
            for source, rows in found.items()
        }

    def contradictions(self) -> dict[str, Any]:
        """Of mixtures and of dense models: what rows that contradict each other come to."""
        parts = {name: [row for row in self.scored if _PARTS[name](row.run)] for name in ("moe", "dense")}
        groups = contradicted(row.run for row in self.scored)
        return {
            **{name: summary(rows) for name, rows in parts.items()},
            "groups": [
                [{"row": run.row, "table": run.table, "measured_s": run.step_time_s} for run in g] for g in groups
            ],
        }

    def splits(self) -> Mapping[str, Statistics]:
        """The figures of parts of the rows."""
        return splits(self.scored, _PARTS)


_PARTS: Mapping[str, Callable[[Run], bool]] = {
    "dense": lambda run: not run.model.routed,
    "dense_recompute_stated": lambda run: not run.model.routed and not run.recompute_open,
    "moe": lambda run: run.model.routed,
    "moe_believed": lambda run: run.model.routed and believed(run),
    "recompute_stated": lambda run: not run.recompute_open,
    "recompute_blank": lambda run: run.recompute_open,
    "pretrain": lambda run: run.task == "pretrain",
    "tuned": lambda run: run.task != "pretrain",
}


def splits(rows: Sequence[Scored], parts: Mapping[str, Callable[[Run], bool]]) -> dict[str, Statistics]:
    return {name: statistics([row for row in rows if of(row.run)]) for name, of in parts.items()}


def _summary(scored: Sequence[Scored], skipped: Sequence[Skipped]) -> dict[str, Any]:
    """`timed` counts those of the priced that have a step time, `skipped_timed` those of the skipped."""
    counts = {"rows": len(scored) + len(skipped), "priced": len(scored), "skipped": len(skipped)}
    return {**counts, "skipped_timed": sum(row.timed for row in skipped), **asdict(statistics(scored))}


def _false_oom(row: Scored) -> dict[str, Any]:
    """A run that ran, and does not fit by our count; what was read into it may be why."""
    run = row.run
    return {
        "row": run.row,
        "source": run.source,
        "model": run.model.name,
        "routed": run.model.routed,
        "peak_over_device": row.peak_bytes / (run.device.driver_memory or run.device.memory).value,
        "readings": list(run.readings),
    }


def _scored(row: Scored) -> dict[str, Any]:
    run = row.run
    return {
        "row": run.row,
        "source": run.source,
        "table": run.table,
        "model": run.model.name,
        "device": run.device.name,
        "devices": run.devices,
        "measured_s": run.step_time_s,
        "derived": run.derived,
        "predicted_s": row.step_time_s,
        "predicted_low_s": row.low_s,
        "predicted_high_s": row.high_s,
        "error": row.error,
        "measured_peak_bytes": run.peak_bytes,
        "memory_kind": run.memory_kind,
        "memory_counts": run.memory_meaning,
        "predicted_peak_bytes": row.peak_bytes,
        "memory_error": row.memory_error,
        "fits": row.fits,
        "outcome": run.outcome,
        "confidence": run.confidence,
        "readings": list(run.readings),
        "skipped": None,
    }


def _skipped(row: Skipped) -> dict[str, Any]:
    return {"row": row.row, "source": row.source, "model": row.model, "skipped": row.reason}


def report(scores: Scores, found: Mapping[str, Any]) -> str:
    """The figures as a table, one line for each source, and why rows were skipped."""
    head = f"{'':38} {'rows':>5} {'priced':>6} {'mape':>7} {'bias':>7} {'p50':>7} {'p90':>7} {'memory':>7}"
    lines = [head, *(_line(name, part) for name, part in found["by_source"].items()), _line("all", found["overall"])]
    whole = found["overall"]
    lines.append(
        f"mean of the sources {_percent(whole['macro_mape'])}; clear pairs in order {_percent(whole['ordered'])} "
        f"of {whole['pairs']}; regret of the pick {_percent(whole['top1_regret'])}; "
        f"replicates differ by {_percent(whole['replicate_mape'])}; "
        f"false fits {whole['false_fits']}, false OOMs {whole['false_ooms']}"
    )
    for name, part in found["splits"].items():
        lines.append(
            f"  {name:20} {part['timed']:5} timed, mape {_percent(part['mape'])}, bias {_percent(part['bias'])}"
        )
    for name in ("moe", "dense"):
        part = found["contradictions"][name]
        lines.append(
            f"  {name}: {len(part['contradicted'])} rows contradict each other, mape without them "
            f"{_percent(part['mape_without'])}; no function of the configuration is below "
            f"{_percent(part['floor_mape'])}, none of all that is stated below {_percent(part['stated_floor'])}"
        )
    lines += [
        f"  memory of {source}: {part['rows']} rows, {'/'.join(part['counts'])}; mean {_percent(part['mape'])}, "
        f"at most {_percent(part['max'])}, bias {_percent(part['bias'])}"
        for source, part in found["memory"].items()
    ]
    lines += told(found["left_out"]) if "left_out" in found else []
    reasons = Counter(row.reason for row in scores.skipped)
    lines += [f"skipped {count:4}: {reason}" for reason, count in reasons.most_common()]
    lines += [
        f"false OOM row {one['row']}: {one['model']}, {one['peak_over_device']:.2f} of the device"
        for one in found["false_ooms"]
    ]
    lines += [
        "contradicting rows " + ", ".join(f"{one['row']} ({one['measured_s']:.4g} s)" for one in group)
        for group in found["contradictions"]["groups"]
    ]
    lines += [f"{word} row {one['row']}: {one['why']}" for word in ("suspect", "doubt") for one in found[f"{word}s"]]
    return "\n".join(lines)


def _line(name: str, part: Mapping[str, Any]) -> str:
    figures = " ".join(f"{_percent(part[key]):>7}" for key in ("mape", "bias", "p50", "p90", "memory_mape"))
    return f"{name[:38]:38} {part['rows']:5} {part['priced']:6} {figures}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _told(what: str) -> Callable[[int, int], None]:
    return lambda done, of: print(f"{done} of {of} {what}", file=sys.stderr, flush=True)


FitFor = Callable[[Sequence[Run], int], Fit]
"""A fitter that has seen these runs, in so many processes."""


def fitted(runs: Sequence[Run], processes: int) -> Fit:
    """The fitter of the step's constants."""
    return Fitter.of(runs, published(), processes)


def run_command(argv: Sequence[str], price: Price, fit: FitFor = fitted) -> int:
    """The command line, under a price."""
    parser = ArgumentParser(prog="python -m benchmarks.published_runs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=DATA / "training_runs.csv", help="table of runs")
    parser.add_argument("--models", type=Path, default=DATA / "models.csv", help="table of models")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--leave-out",
        nargs="+",
        choices=KINDS,
        default=(),
        metavar="KIND",
        help=f"fit anew without each of a kind, and price it so: {', '.join(KINDS)}",
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"processes that price ({PROCESSES})")
    given = parser.parse_args(argv)
    for path in (given.runs, given.models):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    # Programs that the parent builds are there in the processes that leave rows out.
    processes = 1 if given.leave_out else given.processes
    scores = Scores.of(read_and_score(given.runs, given.models, price, processes=processes, progress=_told("rows")))
    left_out: list[LeftOut] = []
    if given.leave_out:
        runs = [row.run for row in scores.scored]
        folds, fitter = folds_of(given.leave_out, runs), fit(runs, given.processes)
        left_out = leave_out(
            folds, fitter, published(), Pricer, processes=given.processes, progress=_told("folds left out")
        )
    found = scores.to_json(left_out)
    print(json.dumps(found, indent=1) if given.json else report(scores, found))
    return 0


def main(argv: Sequence[str]) -> int:
    return run_command(argv, Pricer())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
