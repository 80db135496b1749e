"""Errors as a person reads them: a line of each by what they are about, or the page of one."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill, indent

from meshwright.ir.errors import Page

WIDTH = 100


def listed(pages: Sequence[Page]) -> str:
    """A line of each error, under what they are about."""
    wide = max(len(page.kind) for page in pages)
    lines: list[str] = []
    family = ""
    for page in pages:
        if page.family != family:
            family = page.family
            lines += [*([""] if lines else []), f"{family}xxx: {page.about}"]
        lines.append(f"  {page.code}  {page.kind:<{wide}}  exit code {page.exit_code}")
    return "\n".join([*lines, "", "`plan errors CODE` says what one means, with an example and its fix."]) + "\n"


def shown(page: Page) -> str:
    """The page of one error."""
    lines = [
        f"{page.code} {page.kind}: {page.about} Exit code {page.exit_code}.",
        "",
        fill(" ".join(page.meaning.split()), WIDTH),
    ]
    example = page.example
    if example is not None:
        lines += ["", "for example", f"  $ {example.command}", f"  at: {example.place}", f"  cause: {example.cause}"]
        lines.append(f"  fix: {indent(example.fix, '    ').lstrip()}")
    if page.hook:
        lines += ["", "Put this into the model file, and adapt it:", "", page.hook.rstrip()]
    if example is None and not page.hook:
        lines += ["", "The place, the cause and the fix stand in the message."]
    return "\n".join(lines) + "\n"
