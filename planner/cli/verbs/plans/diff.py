"""`plan diff A B`: what two plans decide otherwise, and what that costs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright.planner.answer.diff import diff, to_json


def run(args: Namespace) -> int:
    """The verb."""
    found = diff(args.a, args.b)
    args.progress.clear()
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found), indent=2, ensure_ascii=False)}\n")
    else:
        from meshwright.planner.cli.views.plans.diff import show_diff

        show_diff(found)
    return 0
