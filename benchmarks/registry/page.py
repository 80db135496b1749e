"""Rows as a page of the documentation: counts per cell and per code, what is dear, what failed, and which bars hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.registry.cells import CELLS, INSPECT, PLAN, TWIN, TWINS
from benchmarks.registry.lawful import LAWFUL
from benchmarks.registry.rows import Row

GOOD = 0.95
"""The least share of cells of twins that must be exact, or refused lawfully."""
DEAREST, KINDS = 10, 30
"""Rows that are listed."""

ABOUT = """\
Written by `python -m benchmarks.registry {words} --done benchmarks/registry/answers.jsonl --table docs/registry.md`.
Models are given to the command line as users give them; cells of twins are planned, emitted, run on 2 or 4 local
processes in fp32 and compared as by `plan verify`. *Lawful* refusals are the closed list below; every other refusal
counts as a gap. The last answer of every cell counts, of the commit that stands beside it in the file; what is open is
asked again with `--again`."""

OPEN = ("refused", "failed", "differs", "no time", "no memory")
COLUMNS = ("exact", "lawful", *OPEN)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, and what was measured."""

    says: str
    measured: str
    holds: bool


def kind_of(row: Row) -> str:
    """Its column: a refusal is lawful or is not. A twin is small: that nothing fits is for the model of published size
    to say."""
    lawful = row.code in LAWFUL and (row.code != "exit 3" or row.cell == "plan")
    return "lawful" if row.outcome == "refused" and lawful else row.outcome


def open_(row: Row) -> bool:
    """Whether it is neither exact nor lawful, or took longer than it may; a model that does not exist is not."""
    most = CELLS[row.cell].cpu_s
    return kind_of(row) in OPEN or (most is not None and row.cpu_s > most)


def counted(rows: Sequence[Row]) -> dict[str, Counter[str]]:
    """How many rows of each cell are of each column; models that do not exist are not counted."""
    found: dict[str, Counter[str]] = {name: Counter() for name in CELLS}
    for row in rows:
        if row.outcome != "none":
            found[row.cell][kind_of(row)] += 1
    return {name: counts for name, counts in found.items() if counts}


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Which bars hold for these rows."""
    counts = counted(rows)
    run = [row for row in rows if row.cell in TWINS and row.outcome != "none"]
    good = sum(kind_of(row) in ("exact", "lawful") for row in run)
    yield _share("exact or lawfully refused", good, len(run), GOOD)
    for name, cell in CELLS.items():
        if cell.bar is not None and name in counts:
            applies = counts[name].total() - counts[name]["lawful"]
            yield _share(f"{name} exact, where no law forbids it", counts[name]["exact"], applies, cell.bar)
    for says, bad in (
        ("crashes", sum(row.outcome == "failed" for row in rows)),
        ("runs that differ", sum(row.outcome == "differs" for row in rows)),
        ("plans that emission refuses", sum(row.step == "emit" and row.outcome == "refused" for row in rows)),
    ):
        yield Bar(says=f"no {says}", measured=str(bad), holds=not bad)
    for name, cell in CELLS.items():
        spent = [row.cpu_s for row in rows if row.cell == name and row.outcome != "none"]
        if cell.cpu_s is not None and spent:
            within = sum(one <= cell.cpu_s for one in spent)
            said = f"{within} of {len(spent)}, at most {max(spent):.1f}"
            yield Bar(f"{name} in {cell.cpu_s:g} CPU-s", said, within == len(spent))


def _share(says: str, good: int, of: int, least: float) -> Bar:
    share = good / of if of else 1.0
    return Bar(f"{says} ≥ {least:.0%}", f"{good} of {of} ({share:.0%})", share >= least)


def kinds(rows: Sequence[Row]) -> list[tuple[int, str, str, str, str, str]]:
    """What is neither exact nor lawful, by kind: how many, outcome, step, code, what was said, and some models."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if kind_of(row) in OPEN:
            groups.setdefault((row.outcome, row.step, row.code, _alike(row.said)), []).append(row)
    listed = sorted(groups.items(), key=lambda one: (-len(one[1]), one[0]))
    return [(len(found), *key, ", ".join(dict.fromkeys(f"{r.model} {r.cell}" for r in found))) for key, found in listed]


def _alike(said: str) -> str:
    """A message as a kind: without what stands in quotes, numbers and names of values."""
    words = ("…" if any(letter.isdigit() for letter in word) or word.startswith("%") else word for word in said.split())
    return " ".join(words)[:90]


def page(rows: Sequence[Row], words: str) -> str:
    """The whole page; `words` are those of the command that say which models were asked last."""
    return "\n".join(_lines(rows, words)) + "\n"


def _lines(rows: Sequence[Row], words: str) -> Iterator[str]:
    models = {row.model for row in rows if row.outcome != "none"}
    absent = {row.model: row.said for row in rows if row.outcome == "none"}
    yield "# The registry: models that nobody here chose"
    yield ""
    yield from ABOUT.format(words=words).splitlines()
    yield ""
    yield f"{len(models)} models."
    if absent:
        yield f"{len(absent)} more cannot be built by their package from its defaults."
    yield from _asked(rows)
    yield ""
    yield f"| cell | asks for | {' | '.join(COLUMNS)} |"
    yield f"|---|---|{'---|' * len(COLUMNS)}"
    for name, counts in counted(rows).items():
        yield f"| {name} | {CELLS[name].says} | {' | '.join(str(counts[one]) for one in COLUMNS)} |"
    yield ""
    yield "| bar | measured | holds |"
    yield "|---|---|---|"
    for bar in bars(rows):
        yield f"| {bar.says} | {bar.measured} | {'yes' if bar.holds else 'no'} |"
    yield from _codes(rows)
    yield from _dear(rows)
    yield ""
    yield "| how many | outcome | step | code | said | where |"
    yield "|---|---|---|---|---|---|"
    for number, outcome, step, code, said, where in kinds(rows)[:KINDS]:
        shown = where if len(where) <= 100 else f"{where[:100]}…"
        yield f"| {number} | {outcome} | {step} | {code} | {said.replace('|', '/')} | {shown} |"


def _asked(rows: Sequence[Row]) -> Iterator[str]:
    """In which environments, at which commits, and when."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.versions, row.at), []).append(row)
    yield ""
    yield "| environment | commit | models | asked |"
    yield "|---|---|---|---|"
    for (versions, at), found in sorted(groups.items()):
        dates = sorted({row.date for row in found if row.date}) or ["-"]
        models = {row.model for row in found if row.outcome != "none"}
        yield f"| {versions} | {at} | {len(models)} | {' to '.join(dict.fromkeys((dates[0], dates[-1])))} |"


def _codes(rows: Sequence[Row]) -> Iterator[str]:
    found = Counter(row.code for row in rows if row.outcome == "refused")
    yield ""
    yield "| refusal | cells | lawful |"
    yield "|---|---|---|"
    for code, number in sorted(found.items(), key=lambda one: (-one[1], one[0])):
        yield f"| {code} | {number} | {LAWFUL.get(code, 'no')} |"


def _dear(rows: Sequence[Row]) -> Iterator[str]:
    for name in (INSPECT, PLAN, TWIN):
        spent = sorted(((row.cpu_s, row.model) for row in rows if row.cell == name and row.cpu_s), reverse=True)
        if spent:
            yield ""
            told = ", ".join(f"{model} {cpu_s:.1f}" for cpu_s, model in spent[:DEAREST])
            middle = spent[len(spent) // 2][0]
            yield f"CPU-s of {name}: {middle:.1f} in the middle; the dearest are {told}."


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The page as JSON."""
    return {
        "models": len({row.model for row in rows if row.outcome != "none"}),
        "absent": sorted({row.model for row in rows if row.outcome == "none"}),
        "cells": {name: dict(counts) for name, counts in counted(rows).items()},
        "bars": [{"bar": one.says, "measured": one.measured, "holds": one.holds} for one in bars(rows)],
        "kinds": [
            dict(zip(("count", "outcome", "step", "code", "said", "where"), one, strict=True)) for one in kinds(rows)
        ],
        "rows": [row.to_json() for row in rows],
    }
