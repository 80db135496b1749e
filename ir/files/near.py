"""Paths that were most likely meant: of a path that does not exist, one beside it that does."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from meshwright.ir.errors import closest

MOST_LISTED = 10_000
"""Names of a folder that are compared."""
LIKENESS = 0.75
"""Of a name to one that was meant, as difflib counts it: names of one folder often end alike."""
MOST_TRIED = 6
"""Names of which one may lead to the whole path."""


def near(path: str | Path) -> str | None:
    """The path that exists and differs in the first name that is missing; None if none is close, or it exists."""
    whole = Path(path)
    try:
        missing = next((one for one in (*reversed(whole.parents), whole) if not os.path.lexists(one)), None)
        if missing is None:
            return None
        with os.scandir(missing.parent) as entries:
            names = sorted(entry.name for entry in islice(entries, MOST_LISTED))
    except (OSError, ValueError):  # a folder that cannot be listed, a name that no file can have
        return None
    beyond = whole.parts[len(missing.parts) :]
    meant = [missing.with_name(name) for name in closest(missing.name, names, most=MOST_TRIED, cutoff=LIKENESS)]
    whole_ones = [one.joinpath(*beyond) for one in meant if one.joinpath(*beyond).exists()]
    return next(map(str, (*whole_ones, *meant)), None)


def did_you_mean(path: str | Path) -> str:
    """The question that a remedy begins with, where a path is probably a slip; else nothing."""
    meant = near(path)
    return "" if meant is None else f"did you mean {meant}? "
