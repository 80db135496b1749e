"""What a score is: predicted beside measured seconds, summed up.

Errors are relative, (predicted - measured) / measured: `mape` is the mean of their sizes, `bias` of themselves, `p50`
and `p90` quantiles of their sizes. A row that cannot be priced is skipped, and counted under its reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from meshwright.ir.errors import MeshwrightError


class Skip(Exception):
    """A row that is not priced; the message says why."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One row: what it is, to be grouped by; seconds."""

    group: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


Read = TypeVar("Read")


def read_each(path: Path, read: Callable[[dict[str, str]], Read]) -> tuple[list[Read], Counter[str]]:
    """What every row of a file is read as, and why how many others are not: they lack something, or we refuse them."""
    found: list[Read] = []
    skipped: Counter[str] = Counter()
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                found.append(read(row))
            except Skip as reason:
                skipped[str(reason)] += 1
            except MeshwrightError as refused:
                skipped[f"{refused.place}: {refused.cause}"] += 1
    return found, skipped


def number(row: Mapping[str, str], name: str) -> float:
    """A positive number of a row."""
    text = row.get(name) or ""
    try:
        value = float(text)
    except ValueError:
        raise Skip(f"{name} is {text!r}") from None
    if not 0 < value < float("inf"):
        raise Skip(f"{name} is {text!r}")
    return value


def summary(rows: Sequence[Scored]) -> dict[str, float | int | None]:
    """Of the rows that were priced; None where there is none."""
    if not rows:
        return {"priced": 0, "mape": None, "bias": None, "p50": None, "p90": None}
    errors = np.array([row.error for row in rows])
    sizes = np.abs(errors)
    p50, p90 = np.quantile(sizes, (0.5, 0.9))
    return {
        "priced": len(rows),
        "mape": float(sizes.mean()),
        "bias": float(errors.mean()),
        "p50": float(p50),
        "p90": float(p90),
    }


def report(rows: Sequence[Scored], skipped: Counter[str]) -> dict[str, Any]:
    """Overall, by group, and what was skipped why."""
    groups = sorted({row.group for row in rows})
    return {
        "rows": len(rows) + skipped.total(),
        **summary(rows),
        "skipped": dict(sorted(skipped.items())),
        "groups": {group: summary([row for row in rows if row.group == group]) for group in groups},
    }
