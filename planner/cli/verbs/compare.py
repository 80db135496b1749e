"""`plan compare PLAN LOG`: what a run of an emitted script measured, beside what was predicted of it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from meshwright.ir.errors import LogUnreadable
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import LINES_BYTES
from meshwright.planner.answer.compare import check_tokens, read_run, to_json
from meshwright.planner.plan.file import load_plan


def run(args: Namespace) -> int:
    """The verb."""
    plan, log = load_plan(args.plan), Path(args.log)
    try:
        text = read_text(log, LINES_BYTES, errors="replace")
    except Unreadable as error:
        raise LogUnreadable(
            place=str(log), cause=error.cause, fix="name the file that the run's output was written to"
        ) from None
    measured = read_run(text, str(log), args.skip)
    check_tokens(measured, plan, str(log))
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(plan, measured), indent=2)}\n")
        return 0
    from meshwright.planner.cli.views.compare import show

    show(plan, measured)
    return 0
