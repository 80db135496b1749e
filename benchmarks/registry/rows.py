"""What became of a cell: an exit code and what was said, as one row of results.

exact      it answered; a twin's run was compared, and nothing differs
refused    an error with a code, at a `step`: load, plan, emit, …
failed     an internal error, a crash of what was emitted, or a process that died
differs    the run of what was emitted is not the model
no time    the limit ended it
no memory  it needs more memory than a process is given
none       the model does not exist: its package cannot build it from its defaults
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from meshwright.ir.errors import MeshwrightError
from meshwright.planner.cli.exits import GAP_TOO_WIDE, INTERNAL, INTERRUPTED, MISMATCH, NOTHING_FITS

OUTCOMES = ("exact", "refused", "failed", "differs", "no time", "no memory", "none")
OK = 0
TOLD = re.compile(r"error (MW\d{4}) at (.*)")
CRASHED = ("MW9002", "MW9004")
"""An internal error, and ranks that ended early."""
LATE = "still running after"
"""What ranks are said to be whose time was up."""
NO_MEMORY = re.compile(
    "can't allocate memory|Cannot allocate memory|MemoryError|bad_alloc|allocation failed|rank \\d+ ended with -9;"
)
"""What is said where the limit of memory refuses some, or the machine takes it back (SIGKILL)."""
LAST = 12
"""Lines that a failure keeps."""
LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell of one model.

    - Must have an outcome of `OUTCOMES`; a refusal has a `code`.
    """

    model: str
    cell: str
    outcome: str
    family: str = ""
    step: str = ""
    code: str = ""
    said: str = ""
    """The first line."""
    detail: str = ""
    cpu_s: float = 0.0
    versions: str = ""
    at: str = ""
    """The commit, or that it was a working tree."""
    date: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"{self.outcome!r} is no outcome")
        if self.outcome == "refused" and not self.code:
            raise ValueError(f"{self.model}, {self.cell}: refused, and no code says by what")

    @property
    def key(self) -> tuple[str, str]:
        """The question: the last row that answers it counts, whatever was run."""
        return self.model, self.cell

    def to_json(self) -> dict[str, Any]:
        """What it says, without what it does not."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


def of_exit(model: str, cell: str, step: str, code: int, said: str) -> Row:
    """The row of a command that ended by itself."""
    told = TOLD.search(said)
    common: dict[str, Any] = {"model": model, "cell": cell, "step": step}
    if code in (OK, GAP_TOO_WIDE):
        return Row(**common, outcome="exact")
    if code == MISMATCH:
        return Row(**common, outcome="differs", said=first(said), detail=last(said))
    if code == INTERRUPTED:
        return Row(**common, outcome="no time")
    if told is None:
        if code == NOTHING_FITS:
            return Row(**common, outcome="refused", code="exit 3", said="nothing fits", detail=last(said))
        return Row(**common, outcome="failed", code=f"exit {code}", said=raised(said), detail=last(said))
    outcome = "failed" if code == INTERNAL or told[1] in CRASHED else "refused"
    line = raised(said) if outcome == "failed" else told[2]
    if told[1] == CRASHED[1] and LATE in said:
        outcome, line = "no time", told[2]
    elif outcome == "failed" and NO_MEMORY.search(said):
        outcome = "no memory"
    return Row(**common, outcome=outcome, code=told[1], said=line[:LONGEST], detail=last(said))


def untold(in_fp64: str) -> str:
    """The outcome of a run whose values are off, by why it could not be run in fp64, which alone tells rounding from
    faults."""
    return "no time" if LATE in in_fp64 else "no memory" if NO_MEMORY.search(in_fp64) else "differs"


def of_error(model: str, cell: str, step: str, error: Exception, said: str) -> Row:
    """The row of an exception that reached us."""
    if isinstance(error, MeshwrightError):
        return of_exit(model, cell, step, error.exit_code, str(error))
    line = f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST]
    outcome = "no memory" if NO_MEMORY.search(f"{line} {error}") else "failed"
    return Row(
        model=model, cell=cell, step=step, outcome=outcome, code=type(error).__name__, said=line, detail=last(said)
    )


def first(said: str) -> str:
    return next((line.strip()[:LONGEST] for line in said.splitlines() if line.strip()), "")


RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*")


def raised(said: str) -> str:
    """The last exception that was printed, or the first line; with the line below it, if the message begins there."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = [at for at, line in enumerate(lines) if RAISED.match(line)]
    if not found:
        return first(said)
    told = lines[found[-1]]
    below = lines[found[-1] + 1 : found[-1] + 2] if told.endswith(":") else []
    return " ".join([told, *below])[:LONGEST]


def last(said: str) -> str:
    return "\n".join(line[:LONGEST] for line in said.strip().splitlines()[-LAST:])
