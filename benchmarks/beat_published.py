"""Configurations that people tuned and published, beside what the search finds for the same question.

    python -m benchmarks.beat_published --processes 1 --done answers.jsonl

A question is a model, a cluster, a global batch, a precision and a stack; each row of the table of runs answers one,
whether its time is published or not. The row's own configuration is priced by the evaluator, and so is what the search
finds, on the same devices with all of their memory (the runs used it): on GPUs as any target may have it, on TPUs as
code is written for it in JAX. The search does not know the row. Rows that ask the same are searched for once.

A row is *won* or *lost* if the search is more than `TIE` faster or slower, else *tied*. A row that does not fit by
our count is lost too: it ran. What a row leaves blank is read as `benchmarks.runs` says; of several readings that fit
the fastest is what must be beaten. A schedule of the authors' own is priced as the one with a name that is closest to
it, and fits if any order of its work does. Left out are rows that say nothing of their degrees or batch, that divide
the batch unevenly, or that ran out of memory themselves.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.models import adapted, fold_of, read_models
from benchmarks.price import Pricer, degrees_of, program_of, workload_of
from benchmarks.reading import read_configurations
from benchmarks.runs import Run, Skipped, readings, zero_stages
from benchmarks.searches import Opened
from meshwright.backends.jax_.capabilities import JAX_TPU
from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.step import Step
from meshwright.ir.errors import DegreeImpossible, MeshwrightError
from meshwright.ir.frontends.torch_.sources.shape_toml import build
from meshwright.ir.graph.fold import Fold
from meshwright.ir.schedules import WorkLists, with_work
from meshwright.ir.target.capabilities import ANY, Capabilities
from meshwright.ir.target.workload import traced_in
from meshwright.planner.answer.solve import space_of
from meshwright.planner.answer.workers import shared_out
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pricing import LEAST_BATCH, Folds, Setting
from meshwright.planner.refine.order import widened
from meshwright.planner.refine.partial_recompute import OFFLOADED, RECOMPUTED
from meshwright.planner.refine.schedule import job_of
from meshwright.planner.scheduling import Budget, schedule
from meshwright.planner.search.search import Search
from meshwright.planner.space.baselines import baselines

DATA = Path(__file__).resolve().parent / "data"
RUNS, MODELS = DATA / "training_runs.csv", DATA / "models.csv"
TIE = 0.01
OUTCOMES = ("won", "tied", "lost")
LIMIT_S = 120.0
"""Of a search, by what it computes: that does not depend on what else the machine does."""
SILENT_S = 3600.0
PROCESSES = 2


class Adapted(Folds):
    """Folds of a model that adapters train."""

    __slots__ = ()

    def at(self, batch: int) -> Fold:
        return adapted(Folds.at(self, batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A row and what was found. Times of 0: nothing that fits, of the row or of the search."""

    row: int
    source: str
    model: str
    devices: str
    published: str
    published_s: float
    found: str
    found_s: float
    lower_s: float
    taken_s: float
    priced: int

    @property
    def outcome(self) -> str:
        if not self.published_s or not self.found_s:
            return "lost"
        faster = 1 - self.found_s / self.published_s
        return "won" if faster > TIE else "lost" if faster < -TIE else "tied"

    def __str__(self) -> str:
        gain = f"{self.published_s / self.found_s - 1:+.1%}" if self.found_s and self.published_s else "does not fit"
        return (
            f"{self.outcome:4} {gain:>12}  row {self.row:3} {self.model} on {self.devices}\n"
            f"       published {self.published_s:9.4f} s  {self.published}\n"
            f"       found     {self.found_s:9.4f} s  {self.found}  (at least {self.lower_s:.4f}; {self.taken_s:.1f} s)"
        )


Question = tuple[object, ...]


def runs_in(runs: Path = RUNS, models: Path = MODELS) -> list[Run]:
    """The rows that can be beaten."""
    rows = read_configurations(runs, read_models(models))
    return [run for run in rows if isinstance(run, Run) and not why_left_out(run)]


def why_left_out(row: Run | Skipped) -> str:
    """Why there is nothing to beat; empty, if there is."""
    if isinstance(row, Skipped):
        return row.reason if row.reason.startswith("no ") else "cannot be read"
    if row.degrees_open or not row.ran:
        return "no degrees" if row.degrees_open else "ran out of memory"
    try:
        degrees_of(row)
    except DegreeImpossible:
        return "degrees or recomputation without a name"
    return ""


def question(run: Run) -> Question:
    """What rows with the same answer share."""
    return repr((run.shape, run.stack.dropout, run.seq, run.task == "lora", run.cluster)), workload_of(run)


def by_question(runs: Sequence[Run]) -> list[list[Run]]:
    asked: dict[Question, list[Run]] = {}
    for run in runs:
        asked.setdefault(question(run), []).append(run)
    return list(asked.values())


def effort(runs: Sequence[Run]) -> tuple[object, ...]:
    """What questions are sorted by: the quick ones first, and those that share a trace side by side."""
    run = runs[0]
    return run.model.routed, run.devices, run.model.name, run.seq


def fastest(run: Run, pricer: Pricer) -> Run:
    """The reading of a row that fits and is fastest; the row as it is, if none fits."""
    fit: list[tuple[float, Run]] = []
    for reading in readings(run):
        for staged in zero_stages(reading):
            prediction = fitting(staged, pricer)
            if prediction:
                fit.append((prediction.step_time_s, staged))
                break
    return min(fit, key=lambda pair: pair[0], default=(0.0, run))[1]


def fitting(run: Run, pricer: Pricer) -> Prediction | None:
    """Its price, if it fits."""
    try:
        prediction = pricer.predicted(run)
    except MeshwrightError:
        return None
    return prediction if prediction.fits or (run.own_schedule and some_order_fits(run, pricer)) else None


def some_order_fits(run: Run, pricer: Pricer) -> bool:
    """Whether the work of a run fits in any order that list scheduling finds."""
    program, evaluator = program_of(run), pricer.evaluator(run)
    job = job_of(Step(evaluator.prices, program, workload_of(run)))
    answer = schedule(job, budget=Budget(0))
    return answer is not None and evaluator(with_work(program, WorkLists(job.shape, answer.best.lists))).fits


def _words(run: Run) -> str:
    one = degrees_of(run)
    return (
        f"tp={run.tp},pp={run.pp},dp={run.dp},cp={run.cp},ep={run.ep},etp={run.etp},vp={run.vp},mbs={run.micro_batch},"
        f"zero={one.zero},shard={one.shard},recompute={one.recompute},schedule={one.schedule},offload={one.offload}"
    )


def target_of_run(run: Run) -> Capabilities:
    """Whatever the evaluator can price; on TPUs what JAX code is written for."""
    return JAX_TPU if run.device.name.startswith("TPU") else ANY


def asked(run: Run, pricer: Pricer) -> Opened:
    """The question of a row, ready to be searched."""
    shape = replace(run.shape, dropout=run.stack.dropout)
    dtype = traced_in(run.precision)
    captured = fold_of(shape, seq=run.seq, batch=LEAST_BATCH, dtype=dtype)
    kind = Adapted if run.task == "lora" else Folds
    folds = kind(build(shape, run.model.name, dtype), run.seq, captured=captured, captured_at=LEAST_BATCH)
    evaluator = Evaluator(run.cluster, pricer.profile)
    setting = Setting(folds, run.devices, workload_of(run), target_of_run(run), evaluator)
    return Opened(setting, evaluator, space_of(setting, run.cluster, Constraints()))


def found(own: Opened, late: Callable[[], bool]) -> Search:
    """The search of a question, run until it ends or is late."""
    search = own.search()
    for _ in search.run(baselines(own.space)):
        if late():
            break
    if search.expanded:
        search.settle()
    if not late():
        widened(search, late, (RECOMPUTED, OFFLOADED))
    return search


def answered(runs: Sequence[Run], limit_s: float) -> list[Answer]:
    """The rows of one question."""
    pricer, started_s = Pricer(), time.process_time()

    def late() -> bool:
        return time.process_time() - started_s > limit_s

    search: Search | None
    try:
        search = found(asked(runs[0], pricer), late)
        best = search.best
    except MeshwrightError as refusal:
        print(f"row {runs[0].row}: {refusal}", file=sys.stderr)
        search = best = None
    taken_s = time.process_time() - started_s
    answers = []
    for run in runs:
        theirs = fitting(run, pricer)
        answers.append(
            Answer(
                row=run.row,
                source=run.source,
                model=run.model.name,
                devices=f"{run.hosts}x{run.gpus_per_host}x{run.device.name}, {run.global_batch} x {run.seq}",
                published=_words(run),
                published_s=theirs.step_time_s if theirs else 0.0,
                found=str(best.config) if best else "nothing",
                found_s=best.step_s if best else 0.0,
                lower_s=search.lower_s if search else 0.0,
                taken_s=taken_s,
                priced=search.counts.priced if search else 0,
            )
        )
    return answers


def all_answers(
    questions: Sequence[Sequence[Run]], limit_s: float, processes: int, told: Callable[[Answer], None]
) -> Iterator[Answer]:
    """Of every question, as they come."""

    def work(number: int) -> list[Answer]:
        return answered(questions[number], limit_s)

    def lost(number: int, why: str) -> list[Answer]:
        print(f"row {questions[number][0].row}: {why}", file=sys.stderr)
        return []

    batches = [[number] for number in range(len(questions))]
    for _, answers in shared_out([batches], work, lost, jobs=processes, limit_s=SILENT_S):
        for answer in answers:
            told(answer)
            yield answer


def main(argv: Sequence[str]) -> int:
    """Ask and print; 1 if any row is lost."""
    parser = ArgumentParser(prog="python -m benchmarks.beat_published", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="table of runs")
    parser.add_argument("--models", type=Path, default=MODELS, help="table of models")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="CPU seconds for a search (default: %(default)s)"
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many-th row")
    parser.add_argument("--model", help="only questions about models whose name holds this")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="(default: %(default)s)")
    parser.add_argument("--done", type=Path, help="a file of answers, one JSON to a line: read, and added to")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    answers = _known(args.done)
    known = {answer.row for answer in answers}
    rows = read_configurations(args.runs, read_models(args.models))
    left_out = Counter(why for row in rows if (why := why_left_out(row)))
    runs = [run for run in runs_in(args.runs, args.models) if (args.model or "") in run.model.name][:: args.every]
    pricer = Pricer()
    left = by_question([fastest(run, pricer) for run in runs if run.row not in known])
    questions = sorted(left, key=effort)

    def told(answer: Answer) -> None:
        print(answer, file=sys.stderr if args.json else sys.stdout, flush=True)
        if args.done:
            with args.done.open("a", encoding="utf-8") as file:
                print(json.dumps(asdict(answer)), file=file)

    answers += all_answers(questions, args.limit_s, args.processes, told)
    counts = counted(answers)
    unanswered = sorted({run.row for run in runs} - {answer.row for answer in answers})
    if args.json:
        sources = {source: counted(several) for source, several in by_source(answers).items()}
        told_rows = [asdict(one) | {"outcome": one.outcome} for one in answers]
        found = {"counts": counts, "left_out": left_out, "unanswered": unanswered, "by_source": sources}
        print(json.dumps(found | {"rows": told_rows}))
    else:
        for source, several in by_source(answers).items():
            print(f"{source:36} {_line(several)}")
        print(f"{'all':36} {_line(answers)}")
        print("left out:", ", ".join(f"{count} {why}" for why, count in left_out.items()))
        print(*(f"row {row}: no answer" for row in unanswered), sep="\n", end="")
    return 1 if counts["lost"] or unanswered else 0


def counted(answers: Sequence[Answer]) -> dict[str, float]:
    """Outcomes, and how much longer published configurations take than what is found: the least, and in the middle."""
    gains = [one.published_s / one.found_s - 1 for one in answers if one.published_s and one.found_s]
    outcomes: dict[str, float] = {kind: sum(one.outcome == kind for one in answers) for kind in OUTCOMES}
    return outcomes | ({"least_gain": min(gains), "median_gain": median(gains)} if gains else {})


def by_source(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.source, []).append(answer)
    return dict(sorted(found.items()))


def _line(answers: Sequence[Answer]) -> str:
    counts = counted(answers)
    gains = [
        f"{name.partition('_')[0]} {counts[name]:+.1%}" for name in ("least_gain", "median_gain") if name in counts
    ]
    return ", ".join((*(f"{counts[kind]:3} {kind}" for kind in OUTCOMES), *gains))


def _known(done: Path | None) -> list[Answer]:
    if not done or not done.is_file():
        return []
    return [Answer(**json.loads(line)) for line in done.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
