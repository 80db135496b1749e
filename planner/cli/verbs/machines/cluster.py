"""`plan cluster`: what a cluster description means, before anything is priced with it; and one written of machines."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright.planner.cli.output import free_file, write_file
from meshwright.planner.question.clusters import look, to_json


def run(args: Namespace) -> int:
    """Show a cluster, or write one; the exit code is 0."""
    return _show(args) if args.action == "show" else _write(args)


def _show(args: Namespace) -> int:
    shown = look(args.cluster)
    if args.json:
        for warning in shown.warnings:
            print(f"warning: {warning}", file=sys.stderr)  # noqa: T201
        print(json.dumps(to_json(shown), indent=2))  # noqa: T201
    else:
        from meshwright.planner.cli.views.machines.cluster import show, show_whole

        (show_whole if args.verbose else show)(shown)
    return 0


def _write(args: Namespace) -> int:
    from meshwright.calibrate.detect.machine import This, here, saved
    from meshwright.calibrate.detect.pools import found
    from meshwright.calibrate.detect.written import to_json as found_to_json
    from meshwright.calibrate.detect.written import warnings, write
    from meshwright.cost_models.hardware.text import read_file

    out = None if args.out is None else free_file(args.out, force=args.force)
    gathered = saved(tuple(args.files)) if args.action == "import" else here(This(), args.hostfile)
    cluster = found(gathered, args.like)
    text = write(cluster)
    if out is not None:
        write_file(out, text)
    if out is not None or args.json:
        for warning in warnings(cluster):
            print(f"warning: {warning}", file=sys.stderr)  # noqa: T201
    if args.json:
        print(json.dumps(found_to_json(cluster, text, args.out), indent=2))  # noqa: T201
    elif out is None:
        print(text, end="")  # noqa: T201
    else:
        written = read_file(out)
        hosts = "1 host" if written.hosts == 1 else f"{written.hosts:,} hosts"
        print(f"{out}: {written.ranks:,} ranks on {hosts}")  # noqa: T201
    return 0
