"""`plan compare PLAN LOG`: what a run measured, beside what was predicted of it; and with `--learn` what the run
teaches the profile of its machine. LOG is what an emitted script printed, or profilers' traces of its ranks, which are
told apart by how they begin."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from meshwright.calibrate.kept import kept_for
from meshwright.calibrate.samples import replaced
from meshwright.cost_models.measured.file import load_measured, measured_text
from meshwright.ir.errors import ArgumentsMissing, LogUnreadable
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import Unreadable, read_start, read_text
from meshwright.ir.limits import LINES_BYTES
from meshwright.ir.target.capabilities import PROCESSOR
from meshwright.planner.answer.compare import Run, check_tokens, read_run, to_json
from meshwright.planner.answer.measured.learned import Lesson, taught
from meshwright.planner.answer.traced.beside import to_json as to_json_of_trace
from meshwright.planner.answer.traced.file import looks_like_a_trace, read_trace
from meshwright.planner.answer.traced.step import Measured as Traced
from meshwright.planner.answer.traced.step import measured_step
from meshwright.planner.cli.output import unwritable
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.plan.types import Plan


def run(args: Namespace) -> int:
    """The verb."""
    plan = load_plan(args.plan)
    if any(map(_is_trace, args.log)):
        return _traced(plan, args)
    if len(args.log) > 1:
        raise ArgumentsMissing(
            place=f"plan compare {args.log[1]}",
            cause="a run has one log, that of the rank which prints",
            fix="name one; several files are traces of the ranks",
        )
    log = Path(args.log[0])
    try:
        text = read_text(log, LINES_BYTES, errors="replace")
    except Unreadable as error:
        raise LogUnreadable(
            place=str(log),
            cause=error.cause,
            fix=f"{did_you_mean(log)}name the file that the run's output was written to",
        ) from None
    measured = read_run(text, str(log), args.skip)
    check_tokens(measured, plan, str(log))
    lesson = None if args.learn is None else _taught(args.learn, plan, measured)
    if args.json:
        told = to_json(plan, measured) | ({"learned": asdict(lesson)} if lesson else {})
        sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
        return 0
    from meshwright.planner.cli.views.plans.compare import show, show_lesson

    show(plan, measured)
    if lesson:
        show_lesson(lesson)
    return 0


def _is_trace(path: str) -> bool:
    """Whether a file is a trace rather than a log, by how it begins."""
    try:
        return looks_like_a_trace(read_start(path))
    except Unreadable:
        return False


def _traced(plan: Plan, args: Namespace) -> int:
    """Hold traces against the plan. A profile learns from those of devices, which time themselves."""
    measured = measured_step([read_trace(path) for path in args.log], args.skip)
    if args.learn is not None and not measured.on_device:
        raise ArgumentsMissing(
            place="plan compare --learn",
            cause="a processor writes the trace in the time of what it traces: its steps are longer by that",
            fix="run it without the profiler, and name the log that it prints",
        )
    lesson = None if args.learn is None else _taught(args.learn, plan, measured)
    if args.json:
        told = to_json_of_trace(plan, measured) | ({"learned": asdict(lesson)} if lesson else {})
        sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
        return 0
    from meshwright.planner.cli.views.plans.compare import show_lesson, show_traced

    show_traced(plan, measured)
    if lesson:
        show_lesson(lesson)
    return 0


def _taught(named: str, plan: Plan, measured: Run | Traced) -> Lesson:
    """Teach the profile that is named, or this machine's, by the run."""
    kept = None if named else kept_for((PROCESSOR,))
    if not named and kept is None:
        raise ArgumentsMissing(
            place="plan compare --learn",
            cause="this machine has no profile that could learn",
            fix="run `plan calibrate` first, or name a profile: --learn FILE",
        )
    path = Path(named or str(kept))
    again = reload(plan)
    after, lesson = taught(load_measured(path), again, measured, str(path))
    try:
        replaced(path, measured_text(after).splitlines())
    except OSError as error:
        raise unwritable(path, error, "a file") from None
    return lesson
