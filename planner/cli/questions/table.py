"""The schema of a question's file (docs/cli.md): its tables, and what each key may be."""

from __future__ import annotations

from decimal import Decimal
from sys import float_info
from typing import Annotated, Any

from meshwright.backends.door import TARGETS
from meshwright.ir.errors import (
    QuestionKeyMissing,
    QuestionKeyUnknown,
    QuestionNotToml,
    QuestionUnreadable,
    QuestionValueBad,
)
from meshwright.ir.files.documents import shown
from meshwright.ir.files.schema import Count, FileForm, Flag, Most, Name, OneOf, Parsed, Read, Table, Tuple, value_error
from meshwright.ir.limits import GLOBAL_BATCH, SEQ
from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS, STYLES
from meshwright.planner.question.constraints import asked
from meshwright.planner.question.module_pins import apart
from meshwright.planner.question.objective import OBJECTIVES
from meshwright.planner.question.pins import parse


def at_least(least: int) -> Read:
    """A finite number with a minimum."""

    def read(value: Any) -> float:
        if type(value) not in (int, float, Decimal) or not least <= value <= float_info.max:
            raise value_error(f"it is {shown(value)}", f"give a number of at least {least}")
        return float(value)

    return Read(read, {"type": "number", "minimum": least})


def constraint(option: str) -> Parsed:
    """A text that the option of this name takes, by itself."""

    def check(text: str) -> str:
        plain, _ = apart({option: (text,)})
        words: dict[str, list[str]] = {"fix": [], "allow": [], "forbid": []} | plain
        asked(parse(words["fix"]), words["allow"], words["forbid"])
        return text

    return Parsed(check)


class WorkloadKeys(Table):
    """The workload."""

    global_batch: Annotated[Count, Most(GLOBAL_BATCH)] | None = None
    micro_batch: Annotated[Count, Most(GLOBAL_BATCH)] | None = None
    seq: Annotated[Count, Most(SEQ)] | None = None
    dtype: Annotated[str, OneOf(PRECISIONS)] | None = None
    optimizer: Annotated[str, OneOf(tuple(OPTIMIZERS))] | None = None
    imbalance: Annotated[float, at_least(1)] | None = None


class SoftwareKeys(Table):
    """The software that runs it."""

    target: Annotated[str, OneOf(tuple(TARGETS))] | None = None
    stack: Annotated[str, OneOf(tuple(STACKS))] | None = None
    style: Annotated[str, OneOf(STYLES)] | None = None
    recipe: Annotated[str, OneOf(tuple(RECIPES))] | None = None


class ConstraintKeys(Table):
    """What the plan may be: texts as the options take them."""

    fix: Tuple[Annotated[str, constraint("fix")]] | None = None
    allow: Tuple[Annotated[str, constraint("allow")]] | None = None
    forbid: Tuple[Annotated[str, constraint("forbid")]] | None = None


class SearchKeys(Table):
    """The search."""

    time_limit: Annotated[float, at_least(0)] | None = None
    operators: Flag | None = None
    max_gap: Annotated[float, at_least(0)] | None = None
    top: Count | None = None


class QuestionTable(Table):
    """A question to `plan`: the model, the cluster, the workload, and what is asked of the plan."""

    model: Name | None = None
    cluster: Name | None = None
    profile: Name | None = None
    objective: Annotated[str, OneOf(OBJECTIVES)] | None = None
    seed: int | None = None
    workload: WorkloadKeys = WorkloadKeys()
    software: SoftwareKeys = SoftwareKeys()
    constraints: ConstraintKeys = ConstraintKeys()
    search: SearchKeys = SearchKeys()


FORM: FileForm[QuestionTable] = FileForm(
    table=QuestionTable,
    unreadable=QuestionUnreadable,
    broken=QuestionNotToml,
    missing=QuestionKeyMissing,
    unknown=QuestionKeyUnknown,
    value=QuestionValueBad,
    give="give the path of a file that `plan init` wrote",
)
