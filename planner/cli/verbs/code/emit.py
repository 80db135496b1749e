"""`plan emit PLAN --out DIR`: a saved plan as a training script in stock PyTorch or JAX, with what starts it.

The plan is taken up again where it was left (`reload`); what is written follows from its decisions and its program
alone (`Backend.emit`). What no code is written for is refused, and nothing is written then. With `--to` the plan
becomes settings of another framework instead (`planner.answer.exchanged`).
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from meshwright.backends.subject import Subject
from meshwright.ir.errors import PinsContradict
from meshwright.ir.quoting import word
from meshwright.planner.answer.exchanged.said import exchanged, exchanged_to_json
from meshwright.planner.cli.output import check_files, folder_of, made, remember, unwritable, write_file
from meshwright.planner.cli.progress import Progress
from meshwright.planner.exchange.files import target_named
from meshwright.planner.plan.emitted import backend_of, seats, subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import Reloaded, on_target, reload
from meshwright.planner.plan.twin import Planned, twinned
from meshwright.planner.plan.units import seconds


def run(args: Namespace) -> int:
    """The verb."""
    _of_one_kind(args)
    again = reload(load_plan(args.plan), args.model)
    for said in again.changed:
        print(f"warning: {said}; the decisions are emitted as they stand", file=sys.stderr)  # noqa: T201
    folder = folder_of(args.out)
    if args.to is not None:
        return settings(again, folder, args)
    if args.target is not None:
        planned, again = again, on_target(again, args.target)
        print(  # noqa: T201
            f"for {args.target}: {seconds(again.prediction.step_time_s)} a step, "
            f"{seconds(planned.prediction.step_time_s)} for {planned.plan.decisions.target}",
            file=sys.stderr,
        )
    subject = replace(tiny(again, folder, args.progress) if args.tiny else subject_of(again), init=args.init or "")
    written_by = backend_of(subject)
    args.progress.phase("writing the code")
    files = written_by.emit(subject, folder)
    args.progress.clear()
    for said in files.told:
        print(f"note: {said}", file=sys.stderr)  # noqa: T201
    places = seats(again.ask.cluster)
    if not args.tiny and written_by.on_hosts(subject.decisions.target, places):
        files = written_by.with_hosts(files, subject.decisions.target, places)
    texts = dict(files.texts)
    check_files(folder, texts, force=args.force)
    try:
        files.write(folder)
        remember(folder, texts)
    except OSError as error:
        raise unwritable(folder, error) from None
    written = [str(folder / name) for name, _ in files.texts]
    if args.json:
        sys.stdout.write(f"{json.dumps({'written': written}, indent=2)}\n")
        return 0
    sys.stdout.write("".join(f"written: {path}\n" for path in written))
    sys.stdout.write(f"start it {written_by.how_to_start(files)}: {word(str(folder / files.start))} --steps 10\n")
    return 0


def _of_one_kind(args: Namespace) -> None:
    """Check that nothing is asked of a script where settings are."""
    for option in ("tiny", "init", "target") if args.to is not None else ():
        if getattr(args, option):
            raise PinsContradict(
                place=f"--to {args.to}", cause=f"--{option} is of scripts of our own", fix="leave one of the two out"
            )


def settings(again: Reloaded, folder: Path, args: Namespace) -> int:
    """The verb with --to: the plan in the settings of another framework."""
    target = target_named(args.to, f"--to {args.to}")
    found = exchanged(target, again.plan, again.ask, again.setting, again.prediction)
    texts = {target.file: found.text}
    check_files(folder, texts, force=args.force)
    made(folder)
    for name, text in texts.items():
        write_file(folder / name, text)
    remember(folder, texts)
    args.progress.clear()
    written = [str(folder / name) for name in texts]
    if args.json:
        sys.stdout.write(f"{json.dumps(exchanged_to_json(found, written), indent=2, ensure_ascii=False)}\n")
        return 0
    from meshwright.planner.cli.views.plans.exchange import show_exchanged

    show_exchanged(found, written)
    return 0


def tiny(again: Reloaded, folder: Path, progress: Progress) -> Subject:
    """The twin of a plan, as the emitter takes it; its differences are printed."""
    progress.phase("making the small twin")
    twin = twinned(Planned.of(again), folder)
    for said in twin.told:
        print(f"the twin: {said}", file=sys.stderr)  # noqa: T201
    return twin.subject
