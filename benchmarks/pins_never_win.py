"""Pinned plans beside free ones: no pin may find a faster plan than the search that nothing is asked of.

    python -m benchmarks.pins_never_win --draw 300 --seed 1 --done FILE --jobs 2

Questions are about models that names do not fit well, and about usual ones (`benchmarks.unusual`). Each is asked with
nothing pinned, and again with pins drawn by the seed. A pinned plan that is faster than the free one by more than the
gap that was printed with that, against all plans of operators, contradicts it; by more than `CLEAR` it is told. With
`--done` answers are kept, and not asked for again.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.mutation.forking import Job, forked, preload
from benchmarks.unusual.questions import MODELS, Question, free, pinned
from meshwright.planner.cli.main import main as command

CLEAR = 0.01
"""Of the free plan's step."""
CPU_S = 240.0
"""Of one question."""
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """One command: its exit code, the step time, and the gap against all plans of operators; what the plan is."""

    key: str
    pins: str
    code: int
    step_s: float = 0.0
    gap: float = 1.0
    config: str = ""
    cpu_s: float = 0.0


def ask(question: Question, target: str) -> Answer:
    """Run one command in this process."""
    out, begun = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = command(["plan", *question.argv(target), "--json"])
    taken_s = time.process_time() - begun
    if code != 0:
        return Answer(question.key, question.pins, code, cpu_s=taken_s)
    said: dict[str, Any] = json.loads(out.getvalue())
    bounds = said["bounds"]
    return Answer(
        question.key,
        question.pins,
        code,
        said["predicted"]["step_time_s"],
        bounds["operators"]["gap"],
        said["config"] if isinstance(said.get("config"), str) else json.dumps(said.get("config")),
        taken_s,
    )


def asked(draw: int, seed: int, only: Sequence[str]) -> list[Question]:
    """Every question free, and so many with pins."""
    plain = [one for one in free() if not only or one.name in only]
    random, found = Random(seed), list(plain)
    known = {(one.key, one.pins) for one in plain}
    while len(found) < len(plain) + draw:
        one = random.choice(plain)
        own = replace(one, pins=pinned(one, random))
        if (own.key, own.pins) not in known:
            known.add((own.key, own.pins))
            found.append(own)
    return found


def record(questions: Sequence[Question], target: str, jobs: int, done: Path) -> None:
    """Ask what has no answer in a file yet, and write the answers there."""
    known = {(one.key, one.pins) for one in read(done)}
    waiting = [one for one in questions if (one.key, one.pins) not in known]
    preload()
    with TemporaryDirectory() as folder:
        made = [
            Job(
                name=f"{one.key} {one.pins}",
                work=partial(_answer, one, target, done),
                log=Path(folder) / f"{number}.log",
                cpu_s=CPU_S,
                wall_s=5 * CPU_S,
            )
            for number, one in enumerate(waiting)
        ]
        for job, ended in forked(made, jobs):
            if ended.code:
                key, _, pins = job.name.rpartition(" ")
                _write(done, Answer(key, pins, ended.code, cpu_s=ended.cpu_s))
            print(f"{ended.cpu_s:6.1f} CPU-s  {job.name}", file=sys.stderr, flush=True)


def _answer(question: Question, target: str, done: Path) -> int:
    _write(done, ask(question, target))
    return 0


def _write(done: Path, answer: Answer) -> None:
    with done.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(asdict(answer))}\n")


def read(done: Path) -> list[Answer]:
    """Answers on record."""
    lines = done.read_text(encoding="utf-8").splitlines() if done.exists() else []
    return [Answer(**json.loads(line)) for line in lines]


@dataclass(frozen=True, slots=True)
class Beaten:
    """A pinned plan that is faster than the free one: by how much, as shares of that, and how much was printed as
    possible."""

    pinned: Answer
    free: Answer

    @property
    def by(self) -> float:
        return 1 - self.pinned.step_s / self.free.step_s

    @property
    def contradicts(self) -> bool:
        return self.by > self.free.gap + ROUNDING

    def __str__(self) -> str:
        word = "CONTRADICTS" if self.contradicts else "within the gap"
        return (
            f"{word}: {self.free.key} --fix {self.pinned.pins} is {self.by:.1%} faster "
            f"({self.pinned.step_s * 1e3:.2f} ms, {self.free.step_s * 1e3:.2f} ms free, gap {self.free.gap:.1%})"
        )


def beaten(found: Sequence[Answer]) -> list[Beaten]:
    """Free plans that a pinned one beats, the worst first."""
    plain = {one.key: one for one in found if not one.pins and one.step_s}
    every = [Beaten(one, plain[one.key]) for one in found if one.pins and one.step_s and one.key in plain]
    return sorted((one for one in every if one.by > ROUNDING), key=lambda one: -one.by)


def main(argv: Sequence[str] | None = None) -> int:
    """Ask and print; 1 if a pinned plan contradicts a printed gap, or more than one in a hundred is clearly faster."""
    parser = ArgumentParser(prog="python -m benchmarks.pins_never_win", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draw", type=int, default=300, metavar="N", help="questions with pins (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], choices=list(MODELS), help="only this model")
    parser.add_argument("--target", default="torch-cuda", help="of all questions (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="questions at a time (default: %(default)s)")
    parser.add_argument("--done", type=Path, metavar="FILE", help="answers on record, and where new ones go")
    args = parser.parse_args(argv)
    questions = asked(args.draw, args.seed, args.only)
    with TemporaryDirectory() as folder:
        done = args.done or Path(folder) / "answers.jsonl"
        record(questions, args.target, args.jobs, done)
        wanted = {(one.key, one.pins) for one in questions}
        found = [one for one in read(done) if (one.key, one.pins) in wanted]
    worse = beaten(found)
    for one in worse:
        print(one)
    fits = [one for one in found if one.pins and one.step_s]
    clear = [one for one in worse if one.by > CLEAR]
    wrong = [one for one in worse if one.contradicts]
    print(
        f"{len(fits)} of {len(found) - len(questions) + args.draw} pinned questions have a plan (seed {args.seed}): "
        f"{len(wrong)} contradict a gap, {len(clear)} are more than {CLEAR:.0%} faster than the free plan"
    )
    return int(bool(wrong) or len(clear) > CLEAR * len(fits))


if __name__ == "__main__":
    sys.exit(main())
