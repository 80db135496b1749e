"""The parser of command lines: argparse, whose refusals say what was probably meant, and whose help fits a screen.

A word that is no choice (of an option, or of the verbs) and an option that there is not are answered with the nearest
one, as everywhere else (`ir.errors.nearest`).

`--help` tells of what most command lines need: it leaves out the options of `SELDOM`, counts them, and names
`--help-all`, which tells of all. Of verbs it has a line each, by what they are about.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, HelpFormatter, _SubParsersAction
from collections.abc import Collection, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, Never

from meshwright.ir.errors import nearest

HELP_ALL = "--help-all"
SELDOM = frozenset(
    {
        "--allow",
        "--annotated",
        "--beat",
        "--dump-after",
        "--force",
        "--forbid",
        "--from-format",
        "--imbalance",
        "--jobs",
        "--max-gap",
        "--micro-batch",
        "--no-cache",
        "--operators",
        "--profile",
        "--recipe",
        "--scaling",
        "--seed",
        "--stack",
        "--style",
        "--time-limit",
        "--top",
    }
)
"""Options that short help leaves out, of any verb that has `ENOUGH` options."""
ENOUGH = 16
"""Options of a verb whose help would be more than a screen."""
WIDEST, NAME = 24, "NAME"
"""Characters of choices that stand in place of a value, and what stands there of more: they are told as text."""


class Help(HelpFormatter):
    """Help in which no word is wider than a line: many choices are told as text."""

    def _metavar_formatter(self, action: Action, default_metavar: str) -> Any:
        named = Action(action.option_strings, action.dest, metavar=NAME) if _many(action) else action
        return super()._metavar_formatter(named, default_metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _get_help_string(self, action: Action) -> str:
        told = action.help or ""
        return f"{told} [{', '.join(map(str, action.choices or ()))}]".lstrip() if _many(action) else told


def _many(action: Action) -> bool:
    """Whether choices stand in the text of an option."""
    choices = action.choices if action.metavar is None and isinstance(action.choices, Sequence) else ()
    return len(",".join(map(str, choices))) > WIDEST


class _HelpAll(Action):
    """Print all that there is, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, SUPPRESS, nargs=0, default=SUPPRESS, help=SUPPRESS)

    def __call__(self, parser: ArgumentParser, *said: object) -> Never:
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.whole_help())
        parser.exit()


class Parser(ArgumentParser):
    """A parser, and those of its verbs."""

    menu: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    """Headings with verbs, each with what it is for: instead of one list of all verbs."""

    def __init__(self, **said: Any) -> None:
        super().__init__(**{"formatter_class": Help} | said)
        self.add_argument(HELP_ALL, action=_HelpAll)

    def format_help(self) -> str:
        """What most command lines need."""
        return self._told(self._seldom())

    def format_usage(self) -> str:
        """How it is typed; options that need not be given as one word, where some are left out of help."""
        return self._usage(self._seldom()).format_help()

    def whole_help(self) -> str:
        """All that there is."""
        return self._told(())

    def _seldom(self) -> tuple[Action, ...]:
        """What short help leaves out."""
        options = [action for action in self._actions if action.option_strings and action.help != SUPPRESS]
        seldom = tuple(action for action in options if SELDOM.intersection(action.option_strings))
        return seldom if len(options) > ENOUGH else ()

    def _usage(self, left_out: Collection[Action]) -> HelpFormatter:
        """A formatter that has the usage."""
        shown, prog = self._actions, self.prog
        if left_out or self.menu:
            shown = [action for action in self._actions if action.required]
            prog = f"{prog} [OPTIONS]" if left_out else prog
        formatter = self.formatter_class(prog=prog)
        formatter.add_usage(self.usage, shown, [] if left_out or self.menu else self._mutually_exclusive_groups)
        return formatter

    def _told(self, left_out: Collection[Action]) -> str:
        formatter = self._usage(left_out)
        formatter.add_text(self.description)
        for heading, rows in self.menu:
            formatter.start_section(heading)
            formatter.add_arguments(Action((), name, help=told) for name, told in rows)
            formatter.end_section()
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments(
                action
                for action in group._group_actions
                if action not in left_out and not (self.menu and isinstance(action, _SubParsersAction))
            )
            formatter.end_section()
        if left_out:
            formatter.add_text(f"{len(left_out)} options more, which are seldom needed: {self.prog} {HELP_ALL}")
        return formatter.format_help()

    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            meant = nearest(str(value), map(str, action.choices or ()))
            if meant is not None:
                error.message += f"; did you mean {meant!r}?"
            raise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; what a verb does not know is refused by the verb, which knows what may have been meant."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            self._refuse(unknown)
        return found, unknown

    def error(self, message: str) -> Never:
        """Refuse a command line, as all refusals are printed: broken at words on a terminal, else in one line."""
        told = f"{self.prog}: error: {message}"
        if sys.stderr.isatty():
            width = get_terminal_size().columns
            told = "\n".join(wrap(told, width, subsequent_indent="  ", break_on_hyphens=False))
        self.print_usage(sys.stderr)
        self.exit(2, f"{told}\n")

    def _refuse(self, unknown: Sequence[str]) -> Never:
        known = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        asked = next((word[2:].partition("=")[0] for word in unknown if word.startswith("--")), "")
        meant = nearest(asked, known)
        self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean --{meant}?" if meant else ""))
