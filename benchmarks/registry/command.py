"""``python -m benchmarks.registry``: draw models, ask what is not on record, write what was found."""

from __future__ import annotations

import json
import platform
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.registry import vision
from benchmarks.registry.cells import CELLS
from benchmarks.registry.entries import Entry, drawn, entries, left_out
from benchmarks.registry.page import bars, counted, kinds, page, summary
from benchmarks.registry.rows import Row
from benchmarks.registry.running import run as run_cells

WORKING_TREE = "working tree"
PACKAGES = ("torch", "transformers", vision.PACKAGE)


def run(argv: Sequence[str]) -> int:
    """Draw, ask, print; 1 if anything failed or differs."""
    args = _parser().parse_args(argv)
    known = entries()
    for why in left_out():
        print(why, file=sys.stderr)
    models = chosen(args, known)
    if args.list:
        print("\n".join(f"{known[name].family:30} {name}" for name in models))
        return 0
    versions = environment()
    done = {row.key: row for row in read(args.done)} if args.done else {}
    asked = {model: [cell for cell in args.cells if (model, cell, versions, args.at) not in done] for model in models}
    asked = {model: cells for model, cells in asked.items() if cells}
    total = sum(map(len, asked.values()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends what was started, too
    with ExitStack() as stack:
        work = args.work or Path(stack.enter_context(TemporaryDirectory(prefix="registry-")))
        found = run_cells(asked, known, work, jobs=args.jobs, limit_s=args.limit)
        for number, row in enumerate(found, start=1):
            row = replace(row, versions=versions, at=args.at, date=f"{datetime.now(UTC):%Y-%m-%d}")  # noqa: PLW2901
            done[row.key] = row
            print(f"[{number}/{total}] {_line(row)}", file=sys.stderr, flush=True)
            if args.done:
                with args.done.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row.to_json()) + "\n")
    rows = [done[key] for key in ((m, c, versions, args.at) for m in models for c in args.cells) if key in done]
    if args.table:
        shown, absent = (beside(rows, args.beside), []) if args.beside else (rows, list(left_out()))
        args.table.write_text(page(shown, absent, drawn_by(args)), encoding="utf-8")
    print(json.dumps(summary(rows), indent=1) if args.json else "\n".join(_text(rows)))
    return int(any(row.outcome in ("failed", "differs") for row in rows))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.registry", description=__doc__)
    add = parser.add_argument
    add("--draw", type=int, default=12, metavar="N", help="models (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="S", help="of the draw (default: %(default)s)")
    add("--all", action="store_true", help="all models")
    add("--only", nargs="+", metavar="NAME", help="these models")
    add("--cells", nargs="+", choices=tuple(CELLS), default=tuple(CELLS), metavar="CELL", help=", ".join(CELLS))
    add("--jobs", type=int, default=2, metavar="N", help="models at a time (default: %(default)s)")
    add("--limit", type=float, default=120.0, metavar="S", help="CPU seconds of a cell (default: %(default)s)")
    add("--done", type=Path, metavar="FILE", help="results as JSON lines, which are added to and not asked again")
    add("--as", dest="at", default=WORKING_TREE, metavar="COMMIT", help="what was run (default: %(default)s)")
    add("--work", type=Path, metavar="DIR", help="keep what is written there")
    add("--table", type=Path, metavar="FILE", help="the page that is written")
    add("--beside", type=Path, metavar="FILE", help="results of another environment, which the page shows too")
    add("--list", action="store_true", help="list the models, and ask nothing")
    add("--json", action="store_true", help="print JSON")
    return parser


def chosen(args: Namespace, known: dict[str, Entry]) -> list[str]:
    """The names that are asked for."""
    if args.only:
        missing = [name for name in args.only if name not in known]
        if missing:
            raise SystemExit(f"no such model: {', '.join(missing)}; --all --list lists them")
        return list(args.only)
    return list(known) if args.all else drawn(list(known), args.draw, args.seed)


def drawn_by(args: Namespace) -> str:
    """The words that say which models are asked."""
    if args.only:
        return f"--only {' '.join(args.only)}"
    return "--all" if args.all else f"--draw {args.draw} --seed {args.seed}"


def read(file: Path) -> Iterator[Row]:
    """Rows on record; a line that was cut short when a run was stopped is left out."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                yield Row(**json.loads(line))
            except json.JSONDecodeError:
                continue


def beside(rows: Sequence[Row], file: Path) -> list[Row]:
    """Rows, and the last of every other cell that a file of another environment has."""
    last = {(row.model, row.cell): row for row in (*read(file), *rows)}
    return list(last.values())


def environment() -> str:
    """The versions that an answer may depend on."""
    found = [f"{one} {version(one)}" for one in PACKAGES if find_spec(one)]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _line(row: Row) -> str:
    what = f"{row.outcome} {row.code}".strip()
    return f"{row.model:32} {row.cell:8} {what:18} {row.cpu_s:6.1f} CPU-s  {row.said[:110]}"


def _text(rows: Sequence[Row]) -> Iterator[str]:
    for name, counts in counted(rows).items():
        yield f"{name:8} {', '.join(f'{number} {kind}' for kind, number in counts.most_common())}"
    for number, outcome, step, code, said, where in kinds(rows):
        yield f"{number:4} {outcome:8} {step:6} {code:8} {said}\n         {where[:150]}"
    for bar in bars(rows):
        yield f"{'holds' if bar.holds else 'FAILS':6} {bar.says}: {bar.measured}"
