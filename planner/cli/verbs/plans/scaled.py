"""`plan MODEL --scale SIZES`: a plan for each of several numbers of devices, and how well they scale."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from meshwright.ir.errors import ScaleImpossible
from meshwright.planner.answer.changed.scale import Scaling, Size, read_sized, scaled
from meshwright.planner.answer.solve import Stop
from meshwright.planner.cli.exits import GAP_TOO_WIDE, INTERRUPTED, NOTHING_FITS
from meshwright.planner.cli.output import check_plan, folder_of, made
from meshwright.planner.plan.file import FILE, save_plan
from meshwright.planner.question.changed.sizes import OPTION, read_sizes

ALONE = {"what_if": "--what-if", "beat": "--beat", "dump_after": "--dump-after"}
"""Options that are for one size."""


def show_scaled(args: Namespace) -> int:
    """Plan for every size, print and write what was found; returns the exit code."""
    for name, option in ALONE.items():
        if getattr(args, name):
            raise ScaleImpossible(
                place=f"{OPTION} {args.scale} {option}", cause=f"{option} is for one size", fix="leave one of them out"
            )
    sizes = read_sized(args, read_sizes(args.scale), args.scaling)
    folders = None if args.out is None else {one.ranks: folder_of(args.out) / str(one.ranks) for one in sizes}
    for folder in (folders or {}).values():
        check_plan(made(folder) / FILE, args.model, force=args.force)
    stop, found, written = Stop(), list[Size](), list[Path]()
    for one in scaled(args, sizes, stop, args.progress.told):
        found.append(one)
        if folders and one.plan:
            written.append(save_plan(one.plan, folders[one.ranks]))
    args.progress.clear()
    scaling = Scaling(scaling=args.scaling, sizes=tuple(found))
    if args.json:
        sys.stdout.write(f"{json.dumps(scaling.to_json(), indent=2, ensure_ascii=False)}\n")
    else:
        from meshwright.planner.cli.views.plans.scaled import show

        show(scaling, written, brief=args.detail == "brief")
    return _exit_code(args, scaling, stop)


def _exit_code(args: Namespace, scaling: Scaling, stop: Stop) -> int:
    plans = [one.plan for one in scaling.sizes if one.plan]
    if stop.interrupted:
        return INTERRUPTED
    if not plans:
        return NOTHING_FITS
    too_wide = args.max_gap is not None and any(plan.bounds.gap > args.max_gap for plan in plans)
    return GAP_TOO_WIDE if too_wide else 0
