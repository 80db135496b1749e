"""Measurements of a run of an emitted script, compared with the prediction.

A script prints a line for each step as every backend writes it: a word and a number, and so on. Other
lines of the log are passed over. The first steps of a run, in which memory is allocated and code compiled, are left
out; of the others the median counts. Memory is what torch's allocator gave the rank that prints, at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

from meshwright.cost_models.memory.peak import allocated_bytes
from meshwright.ir.errors import LogUnreadable
from meshwright.ir.files.documents import SHOWN, spelled
from meshwright.ir.files.schema import STRICT, Amount, AnyNumber, Positive, Table, faults_of
from meshwright.planner.plan.file import FILE
from meshwright.planner.plan.types import Plan

STEP = re.compile(r"\bstep (?P<words>\d+ loss .*)")
NEEDED = ("loss", "step_time_s", "tokens_per_s")
OPTIONAL = ("flops_per_s", "mfu", "memory_bytes")
NEAR, ROUNDED_S = 0.01, 1e-4
"""How far the tokens of a step may be from the plan's, as a part of them; and to what the log rounds times."""


class StepTable(Table):
    """The words of one step's line. The loss may be anything; other words of a line are skipped."""

    model_config = STRICT | {"extra": "ignore"}

    loss: AnyNumber
    step_time_s: Positive
    tokens_per_s: Positive
    flops_per_s: Amount | None = None
    mfu: Amount | None = None
    memory_bytes: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements in a log, of the steps that count."""

    steps: int
    skipped: int
    first_loss: float
    last_loss: float
    step_time_s: float
    """The median, as of all that follow."""
    slowest_s: float
    tokens: float
    """Of one step, as the rounded figures give them."""
    mfu: float | None
    memory_bytes: float | None
    """The largest."""


def read_run(text: str, place: str, skip: int) -> Run:
    """The steps of a log."""
    found = [
        _step(match["words"], f"{place}:{number}")
        for number, line in enumerate(text.splitlines(), 1)
        if (match := STEP.search(line))
    ]
    if len(found) <= skip:
        raise LogUnreadable(
            place=place,
            cause=f"it has {len(found)} lines of steps, and the first {skip} are left out",
            fix="give the output of a script that `plan emit` wrote, of more steps, or --skip fewer",
        )
    used = found[skip:]
    return Run(
        steps=len(used),
        skipped=skip,
        first_loss=found[0]["loss"],
        last_loss=found[-1]["loss"],
        step_time_s=median(step["step_time_s"] for step in used),
        slowest_s=max(step["step_time_s"] for step in used),
        tokens=median(step["step_time_s"] * step["tokens_per_s"] for step in used),
        mfu=_of(used, "mfu"),
        memory_bytes=max((step["memory_bytes"] for step in used if "memory_bytes" in step), default=None),
    )


def _step(words: str, place: str) -> dict[str, float]:
    """Read one line, which must have all words that are needed."""
    _, *rest = words.split()
    given = dict(zip_longest(rest[::2], rest[1::2], fillvalue=""))
    table, refused = faults_of(StepTable, {name: _number(word) for name, word in given.items()})
    if refused:
        raise LogUnreadable(
            place=f"{place}: {spelled(refused[0].path)}",
            cause=f"no line of an emitted script ({refused[0].cause}): step {words:.{SHOWN}}",
            fix=f"keep the line as it is printed: step N {' '.join(f'{name} X' for name in NEEDED)} …",
        )
    return {name: number for name in (*NEEDED, *OPTIONAL) if (number := getattr(table, name)) is not None}


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word


def _of(steps: Sequence[dict[str, float]], name: str) -> float | None:
    found = [step[name] for step in steps if name in step]
    return median(found) if found else None


def check_tokens(measured: Run, plan: Plan, place: str) -> None:
    """Check that the steps of the log are as large as those of the plan."""
    rounded = ROUNDED_S / measured.step_time_s
    if abs(measured.tokens / plan.workload.tokens - 1) > NEAR + rounded:
        raise LogUnreadable(
            place=place,
            cause=f"its steps have {measured.tokens:,.0f} tokens, and the plan's {plan.workload.tokens:,}",
            fix="give the plan that this script was emitted from; that of a twin (--tiny) has no file",
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, measured and predicted."""

    name: str
    measured: float | None
    predicted: float

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return self.measured / self.predicted if self.measured is not None and self.predicted else None


def rows(plan: Plan, measured: Run) -> Iterable[Row]:
    """The figures that are compared."""
    predicted = plan.prediction
    yield Row("step_time_s", measured.step_time_s, predicted.step_time_s)
    yield Row(
        "tokens_per_s",
        plan.workload.tokens / measured.step_time_s,
        predicted.tokens_per_s_per_gpu * plan.machines.ranks,
    )
    yield Row("mfu", measured.mfu, predicted.mfu)
    yield Row("memory_bytes", measured.memory_bytes, allocated_bytes(predicted.stages[-1].memory))


def inside(plan: Plan, step_time_s: float) -> bool:
    """Whether a measured step time lies in the plan's interval."""
    return plan.prediction.step_time_low_s <= step_time_s <= plan.prediction.step_time_high_s


def to_json(plan: Plan, measured: Run) -> dict[str, Any]:
    """The comparison as docs/emit.md describes it."""
    return {
        "plan": {"file": FILE, "config": plan.config.to_json()},
        "steps": measured.steps,
        "skipped": measured.skipped,
        "loss": {"first": measured.first_loss, "last": measured.last_loss},
        "slowest_s": measured.slowest_s,
        "predicted_low_s": plan.prediction.step_time_low_s,
        "predicted_high_s": plan.prediction.step_time_high_s,
        "inside": inside(plan, measured.step_time_s),
        "figures": {
            row.name: {"measured": row.measured, "predicted": row.predicted, "ratio": row.ratio}
            for row in rows(plan, measured)
        },
    }
