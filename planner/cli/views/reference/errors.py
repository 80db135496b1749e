"""Errors as a person reads them: what they are about, a line of each, or the page of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from meshwright.ir.errors import ClusterFaults, MeshwrightError
from meshwright.ir.errors import Page as Error
from meshwright.planner.cli.views.tables import INDENT, Page, Table, folded, number, text, width_of

FIX = f"{INDENT}fix: "

FAMILY_COLUMNS = (text("codes", 2), number("errors"), text("what they are about", 1, least=30))


def show_families(found: Sequence[Error]) -> None:
    """Print a line of each family of errors."""
    page, table = Page(), Table("", FAMILY_COLUMNS)
    for family in dict.fromkeys(one.family for one in found):
        told = [one for one in found if one.family == family]
        table.add(f"{family}xxx", str(len(told)), told[0].about.partition("\n")[0])
    page.table(table)
    page.blank()
    page.say(
        "`plan errors CODE` says what one means, with an example and its fix; `plan errors MW6` lists a family, "
        "and -v all.",
        indent="",
    )
    page.print()


def show_all(found: Sequence[Error]) -> None:
    """Print a line of each error, under what they are about."""
    page, family = Page(), ""
    wide = max(len(one.kind) for one in found)
    for one in found:
        if one.family != family:
            family = one.family
            page.blank()
            page.say(f"{family}xxx: {one.about}")
        page.say(f"{INDENT}{one.code}  {one.kind:<{wide}}  exit code {one.exit_code}", indent=2 * INDENT)
    page.blank()
    page.say("`plan errors CODE` says what one means, with an example and its fix.")
    page.print()


def show_one(found: Error) -> None:
    """Print the page of one error."""
    page, example = Page(), found.example
    page.say(f"{found.code} {found.kind}: {found.about} Exit code {found.exit_code}.", "bold")
    page.blank()
    page.say(" ".join(found.meaning.split()), indent="")
    if example is not None:
        page.blank()
        page.say("for example")
        page.whole(f"{INDENT}$ {example.command}")
        for label, told in (("at", example.place), ("cause", example.cause), ("fix", example.fix)):
            first, *more = told.split("\n")
            page.say(first, label=f"{INDENT}{label}: ")
            for line in more:
                page.whole(f"{2 * INDENT}{line}")
    if found.hook:
        page.blank()
        page.say("Put this into the model file, and adapt it:")
        page.blank()
        for line in found.hook.rstrip().split("\n"):
            page.whole(line)
    if example is None and not found.hook:
        page.blank()
        page.say("The place, the cause and the fix stand in the message.")
    page.print()


def broken(error: MeshwrightError, terminal: TextIO) -> str:
    """A refusal in lines that fit a terminal; what is no terminal is given whole lines, to be searched.

    Further lines of a fix are code, which is pasted: they stay as they are.
    """
    width = width_of(terminal)
    if isinstance(error, ClusterFaults):
        heading = folded(f"{error}".partition("\n")[0], width, 2 * INDENT)
        return "\n".join((*heading, *(broken(fault, terminal) for fault in error.faults)))
    first, *code = error.fix.split("\n")
    prose = (*f"{error}".removesuffix(f"\n{FIX}{error.fix}").split("\n"), f"{FIX}{first}")
    return "\n".join((*(line for one in prose for line in folded(one, width, 2 * INDENT)), *code))
