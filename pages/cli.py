"""The page of the command line: every verb with its options, from the parsers that read it."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.planner.cli.declared import Declared, Option, declared
from meshwright.planner.cli.main import VERBS
from pages.cells import cell, code, page, table

ABOUT = """`plan VERB --help-all` prints the same. `plan MODEL …` is short for `plan plan MODEL …`. What helps with all
of it (questions in files, completion, slips) is in [The command line](../cli.md)."""


def command_line() -> str:
    """The page."""
    parts = []
    for verb in VERBS:
        found = declared(verb.arguments)
        parts.append(f"## `plan {verb.name}`\n\n{_sentence(verb.help)}\n\n{_options(found)}")
        parts += [
            f"### `plan {verb.name} {name}`\n\n{_sentence(action.told)}\n\n{_options(action)}"
            for name, action in found.actions.items()
        ]
    return page("Every verb and option", ABOUT, *parts)


def _sentence(text: str) -> str:
    told = " ".join(text.split()).rstrip(".")
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def _options(found: Declared) -> str:
    return table(("option", "what it is"), _rows(found))


def _rows(found: Declared) -> Iterator[tuple[str, str]]:
    for option in found.options:
        if option.dest != "help":
            yield code(_said(option)), cell(option.told)


def _said(option: Option) -> str:
    """An option as it is typed."""
    value = option.metavar or ("{" + ",".join(option.choices) + "}" if option.choices else option.dest.upper())
    if not option.names:
        return value if option.required and not option.repeated else f"[{value}]{' …' * option.repeated}"
    names = ", ".join(option.names)
    return names if option.flag else f"{names} {value}"
