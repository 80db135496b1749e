"""Faults planted in the five rooms, one at a time, and whether the tests nearest to them notice.

A draw takes places by seed from all that ``benchmarks/mutation/sites.py`` finds: comparisons, signs, least and
greatest, off by one, dropped terms and calls, conditions. Each fault is served to a forked process by an import hook;
no file is changed. The tests are those that enter its block, cheapest first, within a budget of CPU time. One run of
all tests finds which those are, remembered in ``.mutants_cache/``; so is what came of a fault, until its module
or the tests change. Faults that change nothing are named, with the reason, in
``benchmarks/data/equivalent_mutants.toml``, and do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import sys
import tomllib
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.mutation.forking import forked, preload
from benchmarks.mutation.nearest import nearest
from benchmarks.mutation.reach import REPO, ROOMS, digest, product, reached
from benchmarks.mutation.sites import sites
from benchmarks.mutation.trial import Mutant, Outcome, job, mutant, said

CACHE = REPO / ".mutants_cache"
EQUIVALENT = REPO / "benchmarks" / "data" / "equivalent_mutants.toml"
LEAST_SCORE = 0.85
BUDGET_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one fault."""

    room: str
    module: str
    function: str
    line: int
    kind: str
    before: str
    after: str
    outcome: Outcome
    by: str
    tests: int
    cpu_s: float
    equivalent: str
    """Why nothing can notice it, from the reviewed list."""

    @property
    def noticed(self) -> bool:
        return self.outcome in ("noticed", "out of time")


def main(argv: Sequence[str]) -> int:
    """Draw, try, print; 1 if too many survive."""
    parser = ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--draw", type=int, default=25, metavar="N", help="faults (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="of the draw (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help="CPU seconds of tests for a fault")
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="of the modules to draw from, as in cost_models.step"
    )
    parser.add_argument("--control", action="store_true", help="plant nothing: every test must pass")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    preload()
    drawn = draw(args.draw, args.seed, args.only)
    results = list(tried(drawn, jobs=args.jobs, budget_s=args.budget, planted=not args.control))
    print(json.dumps(_summary(results), indent=1) if args.json else _text(results))
    if args.control:
        return int(any(result.noticed for result in results))
    return int(score(results) < LEAST_SCORE)


def draw(count: int, seed: str, only: str = "") -> list[Mutant]:
    """So many different faults of all that there are, each as likely as any other."""
    places = [
        (module, path, index)
        for module, path in product().items()
        if module.startswith(f"meshwright.{only}")
        for index in range(len(sites(ast.parse(path.read_text(encoding="utf-8")))))
    ]
    return [mutant(*place) for place in random.Random(seed).sample(places, min(count, len(places)))]


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """The reviewed list: why each of these faults changes nothing."""
    named = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {(one["module"], one["function"], one["before"], one["after"]): one["reason"] for one in named}


def tried(drawn: Iterable[Mutant], *, jobs: int, budget_s: float, planted: bool = True) -> Iterator[Result]:
    """What the nearest tests say of every fault, in the order of the draw."""
    drawn = list(drawn)
    reasons, results = equivalents(), dict[int, Result]()
    book = _Book(CACHE / "tried.jsonl", budget_s) if planted else None
    for at, one in enumerate(drawn):
        if one.key in reasons:
            results[at] = _result(one, "survived", reason=reasons[one.key])
        elif book is not None and (found := book.known(one)) is not None:
            results[at] = found
    left = [at for at in range(len(drawn)) if at not in results]
    if left:
        known = list(reached(sorted((REPO / "tests").rglob("test_*.py")), CACHE / "reach", jobs, _say))
        for at, result in _trials({at: drawn[at] for at in left}, known, jobs, budget_s, planted):
            results[at] = result
            if book is not None:
                book.note(drawn[at], result)
            counts = Counter(result.outcome for result in results.values())
            _say(f"[{len(results)}/{len(drawn)}] {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}")
    yield from (results[at] for at in range(len(drawn)))


def _trials(
    drawn: dict[int, Mutant], known: list[Any], jobs: int, budget_s: float, planted: bool
) -> Iterator[tuple[int, Result]]:
    near = {at: nearest(one.block, digest(one.path), known, budget_s) for at, one in drawn.items()}
    with TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        waiting = (job(one, near[at], folder / str(at), planted=planted) for at, one in drawn.items() if near[at].tests)
        for at, one in drawn.items():
            if not near[at].tests:
                yield at, _result(one, "not reached")
        for done, ended in forked(waiting, jobs):
            at = int(done.log.parent.name)
            outcome, by = said(ended, done.log.parent)
            if outcome == "broken":
                _say(done.log.read_text(encoding="utf-8", errors="replace")[-2000:])
            tests = sum(map(len, near[at].tests.values()))
            yield at, _result(drawn[at], outcome, by=by, tests=tests, cpu_s=round(ended.cpu_s, 1))


def _result(
    one: Mutant, outcome: Outcome, *, by: str = "", tests: int = 0, cpu_s: float = 0.0, reason: str = ""
) -> Result:
    return Result(
        room=one.module.split(".")[1],
        module=one.module,
        function=one.function,
        line=one.line,
        kind=one.kind,
        before=one.before,
        after=one.after,
        outcome=outcome,
        by=by,
        tests=tests,
        cpu_s=cpu_s,
        equivalent=reason,
    )


class _Book:
    """What came of faults tried before, on disk: it holds while the module and the tests that spoke are the same."""

    def __init__(self, path: Path, budget_s: float) -> None:
        self.path, self.budget_s = path, budget_s
        self.entries: dict[str, dict[str, Any]] = {}
        self.all_tests = _digest_of(sorted((REPO / "tests").rglob("*.py")))
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.entries[entry["fault"]] = entry

    def known(self, one: Mutant) -> Result | None:
        entry = self.entries.get(self._fault(one))
        if entry is None or entry["tests"] != self._tests(entry["result"]):
            return None
        return Result(**entry["result"] | {"line": one.line})

    def note(self, one: Mutant, result: Result) -> None:
        """Append, so that an interrupted draw is taken up again."""
        if result.outcome == "broken":
            return
        told = asdict(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"fault": self._fault(one), "tests": self._tests(told), "result": told}) + "\n")

    def _fault(self, one: Mutant) -> str:
        return f"{one.module}:{digest(one.path)}:{one.index}"

    def _tests(self, told: dict[str, Any]) -> str:
        """Digest of the file that noticed, or of all tests and the budget if none did."""
        file = REPO / told["by"].partition("::")[0]
        return digest(file) if told["by"] and file.is_file() else f"{self.all_tests}:{self.budget_s:g}"


def _digest_of(paths: Iterable[Path]) -> str:
    return hashlib.sha256("".join(f"{path.relative_to(REPO)}={digest(path)};" for path in paths).encode()).hexdigest()[
        :16
    ]


def score(results: Iterable[Result]) -> float:
    """Share of the faults noticed, of those that can be."""
    counted = [result.noticed for result in results if not result.equivalent]
    return sum(counted) / len(counted) if counted else 1.0


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "score": score(results),
        "drawn": len(results),
        "equivalent": sum(bool(result.equivalent) for result in results),
        "cpu_s": round(sum(result.cpu_s for result in results)),
        "rooms": {room: score([result for result in results if result.room == room]) for room in ROOMS},
        "outcomes": dict(sorted(Counter(result.outcome for result in results if not result.equivalent).items())),
        "results": [asdict(result) for result in results],
    }


def _text(results: Sequence[Result]) -> str:
    summary = _summary(results)
    lines = []
    for result in sorted(results, key=lambda result: (result.module, result.line)):
        if result.noticed:
            continue
        why = f"equivalent: {result.equivalent}" if result.equivalent else f"{result.outcome}, {result.tests} tests"
        lines += [f"{result.module.replace('.', '/')}.py:{result.line} {result.function} ({result.kind}; {why})"]
        lines += [f"  - {line}" for line in result.before.splitlines()]
        lines += [f"  + {line}" for line in result.after.splitlines()]
    for room in ROOMS:
        of_room = [result for result in results if result.room == room and not result.equivalent]
        if of_room:
            lines.append(f"{room:12s} {sum(r.noticed for r in of_room):4d} of {len(of_room):4d} noticed")
    outcomes = ", ".join(f"{count} {what}" for what, count in summary["outcomes"].items())
    lines.append(
        f"score {summary['score']:.3f} of {len(results)} drawn, {summary['equivalent']} equivalent ({outcomes})"
    )
    lines.append(f"{summary['cpu_s']} CPU seconds of tests")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
