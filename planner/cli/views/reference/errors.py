"""Errors as a person reads them: a line of each by what they are about, or the page of one."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.errors import Page as Error
from meshwright.planner.cli.views.tables import INDENT, Page


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
