"""`plan report PLAN -o FILE`: a saved plan as one HTML page to look at, which needs nothing beside itself."""

from __future__ import annotations

import sys
from argparse import Namespace

from meshwright.planner.cli.output import own_file, write_and_say
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.report.facts.report import report_of
from meshwright.planner.report.page.document import GENERATOR, document


def run(args: Namespace) -> int:
    """The verb."""
    file = own_file(args.out, GENERATOR, force=args.force)
    again = reload(load_plan(args.plan), args.model)
    for said in again.changed:
        print(f"warning: {said}; prices are made again", file=sys.stderr)  # noqa: T201
    args.progress.phase("drawing the page")
    page = document(report_of(again))
    args.progress.clear()
    write_and_say(file, page, as_json=args.json)
    return 0
