"""The schema of a question's file (docs/cli.md): its tables, and what each key may be."""

from __future__ import annotations

from typing import Annotated

from meshwright.ir.errors import (
    QuestionKeyMissing,
    QuestionKeyUnknown,
    QuestionNotToml,
    QuestionUnreadable,
    QuestionValueBad,
)
from meshwright.ir.files.schema import Count, FileForm, Flag, Name, OneOf, Parsed, Table, Tuple
from meshwright.planner.question.changed.tables import SoftwareKeys, WorkloadKeys, at_least
from meshwright.planner.question.constraints import asked
from meshwright.planner.question.module_pins import apart
from meshwright.planner.question.objective import OBJECTIVES
from meshwright.planner.question.pins import parse


def constraint(option: str) -> Parsed:
    """A text that the option of this name takes, by itself."""

    def check(text: str) -> str:
        plain, _ = apart({option: (text,)})
        words: dict[str, list[str]] = {"fix": [], "allow": [], "forbid": []} | plain
        asked(parse(words["fix"]), words["allow"], words["forbid"])
        return text

    return Parsed(check)


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
