"""`plan inspect`: what the planner sees in a model."""

from __future__ import annotations

import gc
import json
import sys
from argparse import Namespace
from collections.abc import Callable

from meshwright.ir.errors import UnknownStep, instead
from meshwright.ir.frontends.door import load_model
from meshwright.ir.graph.fold import Fold
from meshwright.planner.question.inspection import STEPS, Workload, report, to_json, verified
from meshwright.planner.search.phases import TRACING


def run(args: Namespace) -> int:
    """The verb."""
    workload = Workload(args.batch, args.seq, args.dtype, args.style, args.device)
    dump = _dump_step(args.dump_after)
    source = load_model(args.model, dtype=args.dtype)
    args.progress.told(TRACING)
    gc.freeze()  # frameworks stay: a collection that walks them takes longer than what a trace leaves
    captured = verified(source, workload, seed=args.seed)
    args.progress.clear()
    if dump is not None:
        sys.stdout.write(f"{dump(captured.fold)}\n")
        return 0
    found = report(args.model, source, captured, workload)
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found), indent=2)}\n")
    else:
        from meshwright.planner.cli.views.code.inspect import show

        show(found)
    return 0


def _dump_step(name: str | None) -> Callable[[Fold], str] | None:
    if name is None:
        return None
    if name not in STEPS:
        raise UnknownStep(place=f"--dump-after {name}", cause="no such step", fix=instead(name, STEPS))
    return STEPS[name]
