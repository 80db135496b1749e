"""Parts that the tables of several verbs share."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

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
