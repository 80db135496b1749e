"""`plan profile`: what `plan calibrate` found, of one file or of all in a folder."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from meshwright.cost_models.measured.file import load_measured, measured_to_json
from meshwright.cost_models.measured.measured import Measured
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.cli.views.profile import row, show


def run(args: Namespace) -> int:
    """The verb."""
    if args.action == "list":
        found = _listed(Path(args.path))
        told = [{"file": file, "name": one.name, "made": one.made, "of": str(one.identity)} for file, one in found]
        text = json.dumps(told, indent=2) if args.json else "\n".join(row(file, one) for file, one in found)
        sys.stdout.write(f"{text}\n" if text else "")
        return 0
    one = load_measured(args.path)
    if args.json:
        sys.stdout.write(f"{json.dumps(measured_to_json(one), indent=2)}\n")
    else:
        show(one, args.path)
    return 0


def _listed(folder: Path) -> list[tuple[str, Measured]]:
    """The profiles of a folder; other files are passed over."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            found.append((str(file), load_measured(file)))
        except MeshwrightError:
            continue
    return found
