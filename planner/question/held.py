"""Constraints held against plans: what was asked of names, read back from what was decided.

A search goes through configurations that are as was asked for, and what refining makes of them is decided beyond what
names can say. So every plan, whoever made it, is read back (`ir.names.held`) before it is priced: a constraint is kept,
or the plan is refused, and where all are, so is the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.decisions.sharding import ZERO
from meshwright.ir.errors import PinUnmet
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.held import Subject, has_use, holds, uses
from meshwright.ir.names.pinned import NOTHING_PINNED, Pinned
from meshwright.ir.schedules import CUSTOM
from meshwright.ir.target.capabilities import Capabilities
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import KNOBS, Value, word

SHARDED = frozenset(("zero", "regather"))
"""Names that a target may have a way of its own with (`Capabilities.ran`)."""


def check_constraints(
    decisions: Decisions, fold: Fold, constraints: Constraints, target: Capabilities, pins: Pinned = NOTHING_PINNED
) -> None:
    """Check that a plan has an allowed value of every constrained name, as read back from its decisions. Raises
    `PinUnmet`."""
    subject, count = Subject(decisions, fold, pins), decisions.schedule.microbatches
    for name, values in constraints.meant.only.items():
        if name == "schedule" and CUSTOM in values:
            continue  # an order is made for a plan that is there already
        if not any(holds(subject, name, _as_run(name, value, target, count)) for value in values):
            raise _unmet(name, values)
    sharded = _sharded_as_granted(subject, constraints, target)
    for name, values in constraints.never.items():
        if not sharded if name in SHARDED else any(uses(subject, name, value) for value in values):
            raise PinUnmet(
                place=_said("--forbid", name, values),
                cause=f"this plan would have it: {name} is {KNOBS[name].meaning}",
                fix=f"take what was asked of {name} back",
            )


def _sharded_as_granted(subject: Subject, constraints: Constraints, target: Capabilities) -> bool:
    """Whether some allowed combination of storage values describes the plan; a target may run several of them alike."""
    if SHARDED.isdisjoint(constraints.never) or not has_use(subject, "zero"):
        return True
    for zero, regather in product(ZERO, (True, False)):
        run = {"zero": zero, "regather": regather, **target.ran(zero, subject.decisions.schedule.microbatches)}
        said = {"zero": zero, **({"regather": regather} if ZERO[zero].params else {})}
        same = all(holds(subject, name, value) for name, value in run.items() if has_use(subject, name))
        if same and all(constraints.grants(name, value) for name, value in said.items()):
            return True
    return False


def _as_run(name: str, value: Value, target: Capabilities, count: int) -> Value:
    """A value as the target runs it."""
    if name != "zero":
        return value
    assert isinstance(value, int)
    ran: Value = target.ran(value, count).get(name, value)
    return ran


def _unmet(name: str, values: Sequence[Value]) -> PinUnmet:
    needs = KNOBS[name].needs
    return PinUnmet(
        place=_said("--fix", name, values),
        cause=f"there is no such plan of this model with what else is asked for: {name} is {KNOBS[name].meaning}",
        fix=f"take it back, or pin {needs} so that there is a use for it"
        if needs
        else "take it back, or pin less beside it",
    )


def _said(option: str, name: str, values: Sequence[Value]) -> str:
    return f"{option} {name}={'|'.join(map(word, values))}"
