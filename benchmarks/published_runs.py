"""How far our prices are from published training runs.

    python -m benchmarks.published_runs --runs CSV --models CSV --json

Every row of the table is read (`runs`), priced and scored (`scores`), or skipped with a reason. The scored quantity is
the step time. Rows whose recomputation is blank are priced under each of none, selective and full, scored at the
middle of the interval, and counted apart in `splits`; rows whose ZeRO stage is blank run at the lowest one that fits.

The JSON: `overall` and `by_source` ({rows, priced, skipped} and the fields of `scores.Statistics`), `splits` (dense,
moe, recompute_stated, recompute_blank, pretrain, tuned), `rows` (one for each row of the table) and `suspects`. All
errors are fractions. Progress goes to stderr.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.models import read_models
from benchmarks.runs import Run, Skipped, read_runs, readings, zero_stages
from benchmarks.scores import Priced, Scored, Statistics, statistics, suspects
from meshwright.ir.errors import MeshwrightError

DATA = Path(__file__).resolve().parent / "data"

Price = Callable[[Run], Priced]

PROGRESS_ROWS = 50


@dataclass(frozen=True, slots=True)
class Scores:
    """Every row of a table, scored or skipped."""

    scored: tuple[Scored, ...]
    skipped: tuple[Skipped, ...]

    def to_json(self) -> dict[str, Any]:
        sources = dict.fromkeys((*(row.run.source for row in self.scored), *(row.source for row in self.skipped)))
        return {
            "overall": _summary(self.scored, self.skipped),
            "by_source": {
                source: _summary(
                    [row for row in self.scored if row.run.source == source],
                    [row for row in self.skipped if row.source == source],
                )
                for source in sources
            },
            "splits": {name: asdict(figures) for name, figures in self.splits().items()},
            "rows": sorted((*map(_scored, self.scored), *map(_skipped, self.skipped)), key=lambda row: int(row["row"])),
            "suspects": [{"row": row.run.row, "why": why} for row, why in suspects(self.scored)],
        }

    def splits(self) -> Mapping[str, Statistics]:
        """The figures of parts of the rows."""
        parts: Mapping[str, Callable[[Run], bool]] = {
            "dense": lambda run: not run.model.routed,
            "moe": lambda run: run.model.routed,
            "recompute_stated": lambda run: not run.recompute_open,
            "recompute_blank": lambda run: run.recompute_open,
            "pretrain": lambda run: run.task == "pretrain",
            "tuned": lambda run: run.task != "pretrain",
        }
        return {name: statistics([row for row in self.scored if of(row.run)]) for name, of in parts.items()}


def _summary(scored: Sequence[Scored], skipped: Sequence[Skipped]) -> dict[str, Any]:
    """`timed` counts those of the priced that have a step time, `skipped_timed` those of the skipped."""
    counts = {"rows": len(scored) + len(skipped), "priced": len(scored), "skipped": len(skipped)}
    return {**counts, "skipped_timed": sum(row.timed for row in skipped), **asdict(statistics(scored))}


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


def score(
    runs_csv: Path, models_csv: Path, price: Price, *, progress: Callable[[int, int], None] = lambda done, of: None
) -> Scores:
    """Both tables, read and scored under a price. A run that the price refuses is skipped with the refusal."""
    rows = read_runs(runs_csv, read_models(models_csv))
    scored: list[Scored] = []
    skipped: list[Skipped] = []
    for done, row in enumerate(rows, 1):
        if isinstance(row, Skipped):
            skipped.append(row)
        else:
            try:
                scored.append(score_run(row, price))
            except MeshwrightError as refusal:
                reason, timed = str(refusal), row.step_time_s is not None
                skipped.append(
                    Skipped(row=row.row, source=row.source, model=row.model.name, reason=reason, timed=timed)
                )
        progress(done, len(rows))
    return Scores(tuple(scored), tuple(skipped))


def score_run(run: Run, price: Price) -> Scored:
    """One run under a price: the middle of what its readings cost."""
    prices = [_lowest_that_fits(reading, price) for reading in readings(run)]
    times, peaks = [each.step_time_s for each in prices], [each.peak_bytes for each in prices]
    return Scored(
        run=run,
        step_time_s=(min(times) + max(times)) / 2,
        low_s=min(times),
        high_s=max(times),
        peak_bytes=(min(peaks) + max(peaks)) / 2,
        fits=any(each.fits for each in prices),
    )


def _lowest_that_fits(run: Run, price: Price) -> Priced:
    for staged in zero_stages(run):
        priced = price(staged)
        if priced.fits:
            return priced
    return priced


def report(scores: Scores) -> str:
    """The figures as a table, one line for each source, and why rows were skipped."""
    found = scores.to_json()
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
    reasons = Counter(row.reason for row in scores.skipped)
    lines += [f"skipped {count:4}: {reason}" for reason, count in reasons.most_common()]
    lines += [f"suspect row {entry['row']}: {entry['why']}" for entry in found["suspects"]]
    return "\n".join(lines)


def _line(name: str, part: Mapping[str, Any]) -> str:
    figures = " ".join(f"{_percent(part[key]):>7}" for key in ("mape", "bias", "p50", "p90", "memory_mape"))
    return f"{name[:38]:38} {part['rows']:5} {part['priced']:6} {figures}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _told(done: int, of: int) -> None:
    if done % PROGRESS_ROWS == 0 or done == of:
        print(f"{done} of {of} rows", file=sys.stderr, flush=True)


def run_command(argv: Sequence[str], price: Price) -> int:
    """The command line, under a price."""
    parser = ArgumentParser(prog="python -m benchmarks.published_runs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=DATA / "training_runs.csv", help="table of runs")
    parser.add_argument("--models", type=Path, default=DATA / "models.csv", help="table of models")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args(argv)
    for path in (given.runs, given.models):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    scores = score(given.runs, given.models, price, progress=_told)
    print(json.dumps(scores.to_json(), indent=1) if given.json else report(scores))
    return 0
