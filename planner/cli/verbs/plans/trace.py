"""`plan trace PLAN -o FILE`: the predicted step of a saved plan as a trace, for Perfetto and chrome://tracing; with
--measured beside a step of a run, as profilers traced it."""

from __future__ import annotations

import sys
from argparse import Namespace

from meshwright.planner.answer.traced.file import read_trace
from meshwright.planner.answer.traced.step import measured_step
from meshwright.planner.cli.output import own_file, write_and_say
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.report.facts.report import timeline
from meshwright.planner.report.trace import GENERATOR, trace_text


def run(args: Namespace) -> int:
    """The verb."""
    file = own_file(args.out, GENERATOR, force=args.force)
    traces = [read_trace(path) for path in args.measured]
    measured = measured_step(traces, args.skip) if traces else None
    again = reload(load_plan(args.plan), args.model)
    for said in again.changed:
        print(f"warning: {said}; prices are made again", file=sys.stderr)  # noqa: T201
    text = trace_text(timeline(again), again.plan.model.ref, measured)
    args.progress.clear()
    write_and_say(file, text, as_json=args.json)
    return 0
