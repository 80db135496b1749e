"""A case, how it ended, and what is wrong with that."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.ir.errors import catalogue
from meshwright.planner.cli.exits import INTERNAL, INTERRUPTED, MISMATCH, READER_GONE

LIMIT_S = 10.0
"""CPU seconds of a case."""
WALL = 4.0
"""Wall time for CPU time, on a machine that does other work too."""

VERDICTS = (0, 3, 4, MISMATCH, INTERRUPTED, READER_GONE)
"""What a command ends with without a refusal."""
PROMISED = frozenset((*VERDICTS, *(kind.exit_code for kind in catalogue()))) - {INTERNAL}

CODE = re.compile(r"\bMW\d{4}\b")
REFUSED = re.compile(r"(?:^|: )error MW\d{4} at [^\n]*: [^\n]*\n(.*\n)*?  fix: \S", re.MULTILINE)
"""Code, place, cause, fix."""
USAGE = re.compile(r"^plan [a-z ]*: error: \S", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input of the command line.

    - `files` are written into the folder that the command runs in; `made` are what is no regular file there.
    - `nonsense` says why the command must not take it; empty: it may.
    - `lines`: what is wrong is told by code among lines that are answered.
    """

    argv: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    """(pipe | folder | loop, name)."""
    nonsense: str = ""
    lines: bool = False
    signal: int = 0
    after_s: float = 0.0
    """Seconds from the first import to the signal."""

    @property
    def command(self) -> str:
        """As a shell takes it."""
        words = " ".join(shlex.quote(word.encode(errors="backslashreplace").decode()) for word in self.argv)
        return f"plan {words}" + (f"  # signal {self.signal} after {self.after_s:.2f} s" if self.signal else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a case ended: `code` is None where it ran out of time or a signal `stopped` it."""

    code: int | None
    stopped: int | None
    out_of_time: bool
    cpu_s: float
    out: str
    err: str


def faults(case: Case, ran: Ran) -> Iterator[str]:
    """What is wrong with how a case ended."""
    if ran.out_of_time:
        yield "hang"
    elif ran.code is None:
        yield f"stopped by signal {ran.stopped}"
    elif ran.code == INTERNAL:
        yield "exit 1"
    elif ran.code not in PROMISED and not (case.signal and ran.code == 128 + case.signal):
        yield f"exit {ran.code}"
    if "Traceback (most recent call last)" in ran.err:
        yield "traceback"
    refused = ran.code in PROMISED and ran.code not in VERDICTS
    if refused and not REFUSED.search(ran.err) and not USAGE.search(ran.err):
        yield "no reason"
    if refused and REFUSED.search(ran.err) and "--json" in case.argv and not _told_as_json(ran.out):
        yield "no JSON"
    if case.nonsense and ran.code in (0, 3, 4) and not (case.lines and CODE.search(ran.out + ran.err)):
        yield "accepted"


def _told_as_json(out: str) -> bool:
    try:
        told = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return False
    return isinstance(told, dict) and "error" in told
