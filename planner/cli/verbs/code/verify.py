"""`plan verify PLAN`: the code of a plan, run on this machine and held against the model on one device.

What it will run and take is told before it starts (`verify_needs`). The plan is emitted into a folder of its own, and
exactly these files are run, one process per rank, under a time limit (`Backend.verify`). The exit code
is 7 if anything differs, 8 if a process ended early, took too long, or would take more memory than it may.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from meshwright.backends.door import LOCAL
from meshwright.backends.subject import Subject
from meshwright.ir.errors import VerificationTooLarge
from meshwright.planner.cli.exits import MISMATCH
from meshwright.planner.cli.output import folder_of, made
from meshwright.planner.cli.verbs.code.emit import tiny
from meshwright.planner.cli.views.code import alone as of_alone
from meshwright.planner.cli.views.code.verify import say, shown, to_json
from meshwright.planner.plan.emitted import backend_of, subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.needs import available_bytes, needs_of, planned_memory
from meshwright.planner.plan.reload import reload
from meshwright.planner.question.pricing import target_of

MOST_RANKS = 8

TWIN = "verify its small twin with --tiny"
INSTEAD = {"xla": TWIN}
"""What can be run instead where no rank runs alone, by the style of a target: one program is for all devices."""


def run(args: Namespace) -> int:
    """The verb."""
    plan = load_plan(args.plan)
    ranks = plan.machines.ranks
    if args.alone:
        with tempfile.TemporaryDirectory() as own:
            folder = made(folder_of(args.out)) if args.out is not None else Path(own)
            again = reload(plan, args.model)
            subject = tiny(again, folder, args.progress) if args.tiny else subject_of(again)
            return 0 if verify_alone(subject, folder, args) else MISMATCH
    if not args.tiny and (plan.decisions.target not in LOCAL or ranks > MOST_RANKS):
        raise VerificationTooLarge(
            place=f"a plan of {ranks} ranks for {plan.decisions.target}",
            cause=f"plans of at most {MOST_RANKS} ranks for {' or '.join(LOCAL)} can be run here",
            fix=INSTEAD.get(
                target_of(plan.decisions.target).styles[0].name, f"{TWIN}, or one rank of each stage with --alone"
            ),
        )
    again = reload(plan, args.model)
    with tempfile.TemporaryDirectory() as own:
        folder = made(folder_of(args.out)) if args.out is not None else Path(own)
        subject = tiny(again, folder, args.progress) if args.tiny else subject_of(again)
        run = backend_of(subject)
        run.check_installed()
        planned = planned_memory(subject.program)
        limit = available_bytes() if args.memory_limit is None else args.memory_limit * 2**30
        needs_of(subject, planned, args.steps).check(limit, args.time_limit)
        args.progress.phase("writing the code")
        run.emit(subject, folder).write(folder)
        args.progress.phase(f"running {subject.ranks} ranks, and one device")
        found = run.verify(subject, folder, steps=args.steps, limit_s=args.time_limit)
    args.progress.clear()
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found, planned), indent=2)}\n")
    else:
        say(shown(found, planned))
    return 0 if found.exact else MISMATCH


def verify_alone(subject: Subject, folder: Path, args: Namespace) -> bool:
    """Run ranks alone and print the results; whether nothing differs."""
    found = []
    args.progress.phase("running ranks, each alone")
    for one in backend_of(subject).each_alone(subject, folder, limit_s=args.time_limit):
        found.append(one)
        print(of_alone.line(one), file=sys.stderr if args.json else sys.stdout, flush=True)
    args.progress.clear()
    if args.json:
        sys.stdout.write(f"{json.dumps(of_alone.to_json(found, subject.ranks), indent=2)}\n")
    else:
        say(of_alone.shown(found, subject.ranks))
    return not any(one.differences for one in found)
