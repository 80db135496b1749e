"""``python -m benchmarks.registry``: draw models, ask what is not on record, write what was found."""

from __future__ import annotations

import json
import platform
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.registry import vision
from benchmarks.registry.asking import LIMIT_S
from benchmarks.registry.cells import CELLS
from benchmarks.registry.entries import Entry, drawn, entries, left_out
from benchmarks.registry.page import bars, counted, kinds, open_, page, summary
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
    settled = {key for key, row in done.items() if not (args.again and open_(row))}
    asked = {model: [cell for cell in args.cells if (model, cell) not in settled] for model in models}
    asked = {model: cells for model, cells in asked.items() if cells}
    total = sum(map(len, asked.values()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends what was started, too
    with ExitStack() as stack:
        work = args.work or Path(stack.enter_context(TemporaryDirectory(prefix="registry-")))
        found = run_cells(asked, known, work, jobs=args.jobs, limit_s=args.limit, memory=args.memory * 2**30)
        for number, row in enumerate(found, start=1):
            row = replace(row, versions=versions, at=args.at, date=f"{datetime.now(UTC):%Y-%m-%d}")  # noqa: PLW2901
            done[row.key] = row
            print(f"[{number}/{total}] {_line(row)}", file=sys.stderr, flush=True)
            if args.done:
                with args.done.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row.to_json()) + "\n")
    rows = [done[key] for key in ((model, cell) for model in models for cell in args.cells) if key in done]
    if args.done:
        keep(args.done, done.values())
    if args.table:
        args.table.write_text(page([*done.values()], drawn_by(args)), encoding="utf-8")
    print(json.dumps(summary(rows), indent=1) if args.json else "\n".join(_text(rows)))
    return int(any(row.outcome in ("failed", "differs") for row in rows))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.registry", description=__doc__)
    add = parser.add_argument
    add("--draw", type=int, default=12, metavar="N", help="models (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="S", help="of the draw (default: %(default)s)")
    add("--of", default="", metavar="PREFIX", help="among models whose names begin so: hf:, tv:")
    add("--all", action="store_true", help="all models")
    add("--only", nargs="+", metavar="NAME", help="these models")
    add("--cells", nargs="+", choices=tuple(CELLS), default=tuple(CELLS), metavar="CELL", help=", ".join(CELLS))
    add("--jobs", type=int, default=2, metavar="N", help="models at a time (default: %(default)s)")
    add("--memory", type=float, default=3.0, metavar="GiB", help="of each process (default: %(default)s)")
    limit = "CPU seconds of a cell, and seconds of each script that is run (default: %(default)s)"
    add("--limit", type=float, default=LIMIT_S, metavar="S", help=limit)
    add(
        "--done", type=Path, metavar="FILE", help="rows on record as JSON lines: they are not asked again, and added to"
    )
    add("--again", action="store_true", help="ask again what is on record and is open, or took too long")
    add("--as", dest="at", default=WORKING_TREE, metavar="COMMIT", help="what was run (default: %(default)s)")
    add("--work", type=Path, metavar="DIR", help="keep what is written there")
    add("--table", type=Path, metavar="FILE", help="the page of all rows on record")
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
    among = [name for name in known if name.startswith(args.of)]
    return among if args.all else drawn(among, args.draw, args.seed)


def drawn_by(args: Namespace) -> str:
    """The words that say which models are asked."""
    if args.only:
        return f"--only {' '.join(args.only)}"
    among = f" --of {args.of}" if args.of else ""
    return f"--all{among}" if args.all else f"--draw {args.draw} --seed {args.seed}{among}"


def read(file: Path) -> Iterator[Row]:
    """Rows on record; a line that was cut short when a run was stopped is left out."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                yield Row(**json.loads(line))
            except json.JSONDecodeError:
                continue


def keep(file: Path, rows: Iterable[Row]) -> None:
    """Write the last row of every cell, in order."""
    order = {name: number for number, name in enumerate(CELLS)}
    lines = (json.dumps(row.to_json()) for row in sorted(rows, key=lambda row: (row.model, order[row.cell])))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


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
