"""Plans of one of the reference models that calibrations run, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.backends.door import measurer
from meshwright.planner.answer.measured import residuals
from meshwright.planner.answer.measured.residuals import Plan


class Narrow:
    """One of the reference models."""

    REFERENCE = measurer("torch-gloo").REFERENCE
    REFERENCES = (("narrow", 8, 16),)


def narrow_plans(folder: Path) -> list[Plan]:
    """A plan of every kind, written as a script there."""
    by: Any = Narrow
    return list(residuals._plans(by, 2, 1, folder))
