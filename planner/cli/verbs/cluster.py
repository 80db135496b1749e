"""`plan cluster show`: what a cluster description means, before anything is priced with it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright.planner.question.clusters import look, to_json


def run(args: Namespace) -> int:
    """Show the cluster; the exit code is 0."""
    shown = look(args.cluster)
    if args.json:
        for warning in shown.warnings:
            print(f"warning: {warning}", file=sys.stderr)  # noqa: T201
        print(json.dumps(to_json(shown), indent=2))  # noqa: T201
    else:
        from meshwright.planner.cli.views.cluster import show

        show(shown)
    return 0
