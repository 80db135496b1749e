"""The pages that are generated, and what makes each. Tests hold them against that; `python -m pages` writes them.

Pages with tables that take a run of hours are written by their benchmarks, and not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from meshwright.ir import limits
from meshwright.ir.errors.page import render as errors
from pages.accuracy import accuracy
from pages.cli import command_line
from pages.devices import devices
from pages.files import files
from pages.python import python

ROOT = Path(__file__).resolve().parents[1]

GENERATED: Mapping[str, Callable[[], str]] = {
    "docs/reference/cli.md": command_line,
    "docs/reference/python.md": python,
    "docs/reference/files.md": files,
    "docs/reference/devices.md": devices,
    "docs/errors.md": errors,
    "docs/limits.md": limits.render,
    "docs/accuracy.md": accuracy,
}
"""By the page's path."""
