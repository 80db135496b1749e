"""Inputs of the command line, drawn by seed: no traceback, no internal error, no hang, no nonsense accepted.

A case is drawn from a seed and its number alone (`benchmarks/fuzzing`): a verb and its words, and the files that it
reads. It runs through the entry of the console script, in a folder of its own. `--case N` runs one case of a draw
again, leaves its files in place, and prints what it said.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp

from benchmarks.fuzzing import files, words
from benchmarks.fuzzing.case import Case, Ran, faults
from benchmarks.fuzzing.running import HERE, run, warmed

KINDS: Mapping[str, tuple[int, Callable[[Random, bytes], Case]]] = {
    "paths": (14, files.paths),
    "models": (8, files.models),
    "shapes": (10, files.shapes),
    "configurations": (10, files.configurations),
    "clusters": (12, files.clusters),
    "matrices": (4, files.matrices),
    "lines": (4, files.lines),
    "pins": (6, files.pins),
    "plans": (14, files.plans),
    "names": (4, files.names),
    "logs": (2, files.logs),
    "words": (11, words.words),
    "signals": (1, words.interrupted),
}
"""How many of a hundred cases, and how one is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case."""

    number: int
    kind: str
    case: Case
    ran: Ran
    faults: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Draw, run, print; 1 if anything is wrong."""
    parser = ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--draw", type=int, default=3000, metavar="N", help="cases (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="of the draw (default: %(default)s)")
    parser.add_argument("--only", choices=tuple(KINDS), help="cases of one kind")
    parser.add_argument("--case", type=int, metavar="N", help="run this case of the draw, and show it whole")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    warmed()
    if args.case is not None:
        folder = Path(mkdtemp(prefix="fuzz-"))
        (one,) = fuzzed([args.case], args.seed, args.only, folder, at_once=1)
        print(f"cd {folder / str(args.case) / HERE}\n{_line(one)}\n-- stdout\n{one.ran.out}\n-- stderr\n{one.ran.err}")
        return int(bool(one.faults))
    with TemporaryDirectory(prefix="fuzz-") as made:
        found = list(fuzzed(range(args.draw), args.seed, args.only, Path(made), args.jobs))
    found.sort(key=lambda one: one.number)
    print(json.dumps(_summary(found), indent=1) if args.json else _text(found, args.seed))
    return int(any(one.faults for one in found))


def fuzzed(numbers: Iterable[int], seed: str, only: str | None, folder: Path, at_once: int) -> Iterator[Result]:
    """What comes of the cases of a draw, as they end."""
    plan = _plan(folder)
    kinds = dict[int, str]()

    def cases() -> Iterator[tuple[int, Case]]:
        for number in numbers:
            kinds[number], case = drawn(seed, number, only, plan)
            yield number, case

    for done, (number, case, ran) in enumerate(run(cases(), folder, at_once), start=1):
        result = Result(number=number, kind=kinds[number], case=case, ran=ran, faults=tuple(faults(case, ran)))
        if result.faults:
            print(_line(result), file=sys.stderr, flush=True)
        if done % 100 == 0:
            print(f"[{done}]", file=sys.stderr, flush=True)
        yield result


def drawn(seed: str, number: int, only: str | None, plan: bytes) -> tuple[str, Case]:
    """A case, from nothing but the seed and its number."""
    rng = Random(f"{seed} {number}")
    (kind,) = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])
    kind = only or kind
    return kind, KINDS[kind][1](rng, plan)


def _plan(folder: Path) -> bytes:
    """The plan.json that cases change."""
    case = Case(argv=(words.TINY, *words.ON_FOUR, *words.PINNED, "--out", "."))
    ((_, _, ran),) = run([(-1, case)], folder, at_once=1)
    if ran.code != 0:
        raise SystemExit(f"there is no plan to change: {ran.err}")
    return (folder / "-1" / HERE / words.PLAN).read_bytes()


def _summary(found: Sequence[Result]) -> dict[str, object]:
    return {
        "cases": len(found),
        "nonsense": sum(bool(one.case.nonsense) for one in found),
        "kinds": Counter(one.kind for one in found),
        "exit_codes": {str(code): count for code, count in sorted(_codes(found).items(), key=str)},
        "faults": Counter(fault for one in found for fault in one.faults),
        "cpu_s": {"sum": sum(one.ran.cpu_s for one in found), "most": max(one.ran.cpu_s for one in found)},
        "failed": [_line(one) for one in found if one.faults],
    }


def _codes(found: Sequence[Result]) -> Counter[int | None]:
    return Counter(one.ran.code for one in found)


def _text(found: Sequence[Result], seed: str) -> str:
    """The summary."""
    wrong = Counter(fault for one in found for fault in one.faults)
    slowest = max(found, key=lambda one: one.ran.cpu_s)
    rows = [f"{len(found)} cases of seed {seed}, {sum(bool(one.case.nonsense) for one in found)} of them nonsense"]
    for kind in KINDS:
        own = [one for one in found if one.kind == kind]
        codes = ", ".join(f"{count} x {code}" for code, count in sorted(_codes(own).items(), key=str))
        rows.append(f"  {kind:15} {len(own):5}  exit codes {codes}" if own else f"  {kind:15}     0")
    rows += map(_line, (one for one in found if one.faults))
    rows.append(f"slowest: {slowest.ran.cpu_s:.1f} CPU-s, {_line(slowest)}")
    told = {fault: wrong.pop(fault, 0) for fault in ("traceback", "exit 1", "hang", "accepted")}
    rows.append(", ".join(f"{fault}: {count}" for fault, count in (*told.items(), ("other", wrong.total()))))
    return "\n".join(rows)


def _line(one: Result) -> str:
    """A case in one line."""
    what = f"{', '.join(one.faults) or 'as it should be'}; exit {one.ran.code}"
    nonsense = f"; nonsense: {one.case.nonsense}" if one.case.nonsense else ""
    return f"{one.kind} {one.number}: {what}{nonsense:.200}\n    {one.case.command:.300}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
