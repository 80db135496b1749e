"""`plan calibrate`: this machine measured, alone or under torchrun, and a profile of it written."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import TracebackType
from typing import TextIO

from meshwright.backends.measuring import Case
from meshwright.calibrate.cases import Asked, cases, expected_s
from meshwright.calibrate.kept import path_of, this_machine
from meshwright.calibrate.machine import hosts_started, leading
from meshwright.calibrate.run import Calibration
from meshwright.cost_models.measured.file import measured_to_json
from meshwright.planner.answer.measured.kernels import kernels_of
from meshwright.planner.answer.measured.residuals import with_residuals
from meshwright.planner.cli.output import unwritable

CLEAR = "\r\x1b[K"


def run(args: Namespace) -> int:
    """The verb."""
    dtypes = tuple(dict.fromkeys(args.dtype or ("fp32",)))
    of_model = args.model is not None and leading()
    asked = Asked(
        ranks=args.ranks,
        hosts=hosts_started(),
        threads=args.threads,
        dtypes=dtypes,
        quick=args.quick,
        kernels=tuple(one for dtype in dtypes for one in kernels_of(args, dtype)) if of_model else (),
    )
    out = Path(args.out) if args.out else path_of(this_machine(args.target, args.threads))
    calibration = Calibration(asked=asked, target=args.target, out=out, name=args.name or out.stem, force=args.force)
    listed = cases(asked)
    if args.plan_only:
        _list(listed, asked, as_json=args.json)
        return 0
    with Progress(sys.stderr, len(listed)) as progress:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            found = calibration.run(progress)
            if found is not None and calibration.alone:
                progress.stage("whole steps of reference models")
                samples = calibration.found()
                whole = with_residuals(found, calibration.measured_by, samples, calibration.keep)
                found = calibration.write(whole)
        except OSError as error:
            raise unwritable(out, error, "a file") from None
    if found is None:
        return 0
    if args.json:
        sys.stdout.write(f"{json.dumps(measured_to_json(found), indent=2)}\n")
        return 0
    from meshwright.planner.cli.views.machines.profile import show

    show(found, str(out))
    return 0


def _list(listed: tuple[Case, ...], asked: Asked, *, as_json: bool) -> None:
    expected = expected_s(listed, asked)
    if as_json:
        sys.stdout.write(f"{json.dumps({'cases': [str(case) for case in listed], 'seconds': expected}, indent=2)}\n")
        return
    sys.stdout.write("".join(f"{case}\n" for case in listed))
    sys.stdout.write(f"{len(listed)} cases, about {expected:.0f} s\n")


class Progress:
    """The line of a calibration on a terminal, written over; elsewhere one line for every tenth."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self.stream, self.total, self.done, self.began_s = stream, total, 0, time.monotonic()
        self.over = stream.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.over and self.done:
            self.stream.write(CLEAR)
            self.stream.flush()

    def stage(self, what: str) -> None:
        """Tell what is being done now."""
        self.stream.write(f"{CLEAR if self.over else ''}{what}{'' if self.over else chr(10)}")
        self.stream.flush()

    def __call__(self, case: Case) -> None:
        """Tell that a case is measured."""
        self.done += 1
        words = f"{self.done} of {self.total} cases, {time.monotonic() - self.began_s:.0f} s: {case}"
        if self.over:
            self.stream.write(f"{CLEAR}{words}")
        elif self.done % max(1, self.total // 10) == 0:
            self.stream.write(f"{words}\n")
        self.stream.flush()
