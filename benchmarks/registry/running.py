"""Models in processes of their own, under limits; what ended before its last cell is taken up again after it.

A process is a fork of this one, which has imported the frameworks (`benchmarks.mutation.forking`): its session is
killed with all that it started. It notes what it begins and what it finds in a file, so that the cell in which it was
ended is known. Cells of the published size have a process each; those of the twin share one, and scripts share a
launch, unless that process died while they ran.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.mutation.forking import Ended, Job, forked, preload
from benchmarks.registry.asking import Asked, without_places
from benchmarks.registry.cells import INSPECT, PLAN
from benchmarks.registry.entries import Entry
from benchmarks.registry.rows import Row, last

NOTES, LOG = "notes.jsonl", "log"
WALL = 5.0
"""Wall time for CPU time, on a machine that does other work too."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Cells of a model that share a process."""

    entry: Entry
    cells: tuple[str, ...]
    folder: Path
    together: bool = True

    @property
    def name(self) -> str:
        return f"{self.entry.name}: {', '.join(self.cells)}"


def run(asked: Mapping[str, Sequence[str]], known: Mapping[str, Entry], work: Path, **how: float) -> Iterator[Row]:
    """The rows of models and cells, as they are found. `how` has `jobs`, `limit_s`, CPU seconds of each cell and wall
    time of each script that is run, and `memory`, bytes of each process."""
    preload()
    os.environ["MESHWRIGHT_DEBUG"] = "1"
    pieces = [piece for model, cells in asked.items() for piece in _pieces(known[model], cells, work)]
    while pieces:
        again: list[Piece] = []
        by_name = {piece.name: piece for piece in pieces}
        jobs = (_job(piece, how["limit_s"], int(how["memory"])) for piece in pieces)
        for job, ended in forked(jobs, int(how["jobs"])):
            piece = by_name[job.name]
            found, left = found_by(piece, ended)
            yield from (replace(row, said=without_places(row.said), detail=without_places(row.detail)) for row in found)
            if left is not None:
                again.append(left)
        pieces = again


def _pieces(entry: Entry, cells: Sequence[str], work: Path) -> Iterator[Piece]:
    folder = work / entry.slug
    for name in (INSPECT, PLAN):
        if name in cells:
            yield Piece(entry, (name,), folder / f"of {name}")
    if rest := tuple(name for name in cells if name not in (INSPECT, PLAN)):
        yield Piece(entry, rest, folder)


def _job(piece: Piece, limit_s: float, memory: int) -> Job:
    piece.folder.mkdir(parents=True, exist_ok=True)
    (piece.folder / NOTES).unlink(missing_ok=True)
    cpu_s = limit_s * (len(piece.cells) + 1 if len(piece.cells) > 1 else 1)
    log = piece.folder / LOG
    return Job(name=piece.name, work=_work(piece, limit_s), log=log, cpu_s=cpu_s, wall_s=WALL * cpu_s, memory=memory)


def _work(piece: Piece, limit_s: float) -> Callable[[], int]:
    def work() -> int:
        with (piece.folder / NOTES).open("a", encoding="utf-8") as notes:

            def note(what: object) -> None:
                notes.write(json.dumps(what) + "\n")
                notes.flush()

            def told(step: str, cells: Sequence[str]) -> None:
                note({"step": step, "cells": list(cells)})

            asked = Asked(piece.entry, piece.folder, told, limit_s)
            for row in asked.rows(piece.cells, together=piece.together):
                note({"row": row.to_json()})
        return 0

    return work


def found_by(piece: Piece, ended: Ended) -> tuple[list[Row], Piece | None]:
    """The rows of a process that ended, and what has to be asked again."""
    notes = piece.folder / NOTES
    lines = [json.loads(line) for line in notes.read_text("utf-8").splitlines()] if notes.exists() else []
    rows = [Row(**line["row"]) for line in lines if "row" in line]
    left = [name for name in piece.cells if name not in {row.cell for row in rows}]
    if not left:
        return rows, None
    step, begun = next(
        ((line["step"], line["cells"]) for line in reversed(lines) if "step" in line), ("write", list(piece.cells))
    )
    guilty = [name for name in begun if name in left]
    if step == "run" and len(guilty) > 1:
        return rows, replace(piece, cells=tuple(left), together=False)
    whole = step in ("write", "twin")
    over = left if whole else guilty[:1]
    rows += [_ended(piece, name, step, ended) for name in over]
    rest = tuple(name for name in left if name not in over)
    return rows, replace(piece, cells=rest) if rest else None


def _ended(piece: Piece, cell: str, step: str, ended: Ended) -> Row:
    """The row of a cell whose process ended in the middle."""
    log = piece.folder / LOG
    said = log.read_text("utf-8", errors="replace") if log.exists() else ""
    how = f"stopped by signal {ended.stopped}" if ended.stopped else f"ended with {ended.code}"
    return Row(
        model=piece.entry.name,
        family=piece.entry.family,
        cell=cell,
        outcome="no time" if ended.out_of_time else "failed",
        step=step,
        code="" if ended.out_of_time else how,
        said="" if ended.out_of_time else how,
        detail=last(said),
        cpu_s=round(ended.cpu_s, 2),
    )
