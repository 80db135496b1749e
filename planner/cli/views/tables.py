"""Parts that the tables of several verbs share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from meshwright.cost_models.hardware.quantity import Kind
from meshwright.cost_models.prediction import Prediction
from meshwright.planner.plan.units import percent, seconds

WIDTH = 1000
"""Columns that a table may take, whatever the terminal has: tables take what they need, and a line that wraps is better
than a number that is cut off."""

BAR = 30
"""Characters of the longest bar."""


def new_console() -> Console:
    """A console for standard output."""
    return Console(highlight=False, soft_wrap=True, markup=False, width=WIDTH)


def new_table(title: str, *columns: str) -> Table:
    """A table without lines: the first column to the left, the others to the right."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return shown


def rows_alike(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Rows by number; equal neighbours become one, such as 1-6."""
    found: list[tuple[int, int, tuple[str, ...]]] = []
    for number, row in enumerate(rows):
        if found and found[-1][2] == row:
            found[-1] = (found[-1][0], number, row)
        else:
            found.append((number, number, row))
    return [(str(first) if first == last else f"{first}-{last}", row) for first, last, row in found]


def share_table(prediction: Prediction) -> Table:
    """A table of where a step's time goes."""
    step_s = prediction.step_time_s
    shares = [(name, share_s) for name, share_s in prediction.shares if share_s > 0]
    most = max((share_s for _, share_s in shares), default=1.0)
    shown = new_table("where the step goes, on the busiest ranks", "", "time", "share", "")
    shown.columns[3].justify = "left"
    for name, share_s in shares:
        shown.add_row(name, seconds(share_s), percent(share_s / step_s), "#" * max(1, round(BAR * share_s / most)))
    return shown


def worth(kind: Kind) -> str:
    """The reliability of numbers that rest on this provenance."""
    return kind if kind == "measured" else f"no better than {kind} (uncalibrated: not measured on this cluster)"
