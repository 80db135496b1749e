"""`plan cache show|clear`: what earlier runs kept on this machine, so that a second question needs less."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright.ir.files.store import VARIABLE, usual
from meshwright.planner.plan.units import nbytes


def run(args: Namespace) -> int:
    """The verb."""
    store = usual()
    removed = store.clear() if store is not None and args.action == "clear" else 0
    entries, size = (len(store.entries()), store.nbytes) if store is not None else (0, 0)
    folder = str(store.folder) if store is not None else None
    if args.json:
        told = {"folder": folder, "results": entries, "bytes": size, "removed": removed}
        sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
    elif store is None:
        sys.stdout.write(f"nothing is kept: {VARIABLE} is off\n")
    else:
        sys.stdout.write(
            f"{folder}\n{entries:,} results of earlier runs, {nbytes(size)} of {nbytes(store.most_bytes)}\n"
        )
        if args.action == "clear":
            sys.stdout.write(f"removed: {removed:,}\n")
    return 0
