"""A sample of the registry for `make test`: twins that are on record, so that they need not be found again.

    python -m benchmarks.registry.sample WORK DONE …    record the twins of runs with `--work WORK --done DONE`

A twin is recorded as the text of its file, with what became of it under two copies. Models whose file was written for
the run are left out: their twins need it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.registry.asking import Asked, Made, compared
from benchmarks.registry.cells import INSPECT, inspected_small
from benchmarks.registry.command import read
from benchmarks.registry.entries import MODELS, WRITTEN, Entry, drawn, entries
from benchmarks.registry.rows import Row
from meshwright.ir.quoting import literal

RECORD = Path(__file__).resolve().parent.parent / "data" / "registry_twins.json"
CONFIG, FILE, FACTORY = "config.json", "twin.py", "twin"
CELL = "dp"
HOME = re.compile(r"(?<=parent / )(['\"]).*?\1")
"""Where a twin's file names the folder of its model."""
PLACE = "MODELS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A twin on record."""

    file: str
    text: str
    outcome: str
    """Of two copies: the outcome, and the code of a refusal."""

    def written(self, folder: Path) -> str:
        """Write it into a folder, and return its reference."""
        folder.mkdir(parents=True)
        home = literal(Path(os.path.relpath(MODELS, folder.resolve())).as_posix())
        (folder / self.file).write_text(self.text.replace(PLACE, home))
        return str(folder) if self.file == CONFIG else f"{folder / self.file}:{FACTORY}"


@cache
def recorded() -> Mapping[str, Twin]:
    """All twins on record, by model."""
    return {name: Twin(**one) for name, one in json.loads(RECORD.read_text(encoding="utf-8")).items()}


def sample(number: int, seed: int) -> dict[str, list[Row]]:
    """So many models of the record, drawn by seed: inspected, and run on two copies, all in one launch."""
    known, made, rows = entries(), list[Made](), dict[str, list[Row]]()
    with tempfile.TemporaryDirectory() as name:
        for model in drawn(list(recorded()), number, seed):
            asked = Asked(known[model], Path(name) / known[model].slug)
            small = recorded()[model].written(asked.folder / "twin")
            rows[model] = [asked.timed(INSPECT, "load", inspected_small(small))]
            found = asked.emitted(small, CELL)
            if isinstance(found, Row):
                rows[model].append(found)
            else:
                made.append(found)
        for row in compared(made):
            rows[row.model].append(row)
    return rows


def outcome_of(row: Row) -> str:
    """A row as it is on record."""
    return f"{row.outcome} {row.code}".strip()


def record(work: Path, rows: Sequence[Row], known: Mapping[str, Entry]) -> dict[str, dict[str, str]]:
    """The twins of a run, as they are on record."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.cell != CELL or row.outcome in ("none", "no time"):
            continue
        folder = work / known[row.model].slug / "twin"
        file = folder / (FILE if row.model in WRITTEN else CONFIG)
        if file.exists():
            text = file.read_text(encoding="utf-8")
            text = HOME.sub(PLACE, text) if file.name == FILE else text
            found[row.model] = {"file": file.name, "text": text, "outcome": outcome_of(row)}
    return found


def main(argv: Sequence[str]) -> int:
    """Add the twins of runs to the record."""
    told = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for work, done in zip(argv[::2], argv[1::2], strict=True):
        told |= record(Path(work), list(read(Path(done))), entries())
    RECORD.write_text(json.dumps(dict(sorted(told.items())), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
