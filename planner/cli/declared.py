"""Options as they are declared: what a verb's parser understands, as data.

Completion and the file of `plan init` say what `planner.cli.arguments` declares, as help does; this is the only place
that looks into a parser for it.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, _SubParsersAction
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Declare = Callable[[ArgumentParser], None]
"""What adds arguments to a parser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option, or a positional argument, which has no names."""

    dest: str
    names: tuple[str, ...]
    metavar: str
    told: str
    """What the help says of it."""
    choices: tuple[str, ...]
    default: Any
    required: bool
    flag: bool
    """It takes no value."""
    repeated: bool
    """It takes several values, or may be given again."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a verb, or one of its actions, understands."""

    options: tuple[Option, ...]
    told: str = ""
    """What its help says it is for."""
    actions: dict[str, Declared] = field(default_factory=dict)
    """Its actions by name, where it has some: those of `plan cluster`."""

    def of(self, dest: str) -> Option:
        return next(option for option in self.options if option.dest == dest)


def declared(declare: Declare) -> Declared:
    """What a verb's function declares."""
    parser = ArgumentParser(allow_abbrev=False)
    declare(parser)
    return _declared(parser)


def loosened(parser: ArgumentParser) -> None:
    """Make a parser ask for nothing and add nothing: what it finds then is what was said."""
    for action in parser._actions:
        if action.dest != "help":
            action.required, action.default = False, SUPPRESS
            if not action.option_strings and action.nargs is None:
                action.nargs = "?"


def _declared(parser: ArgumentParser) -> Declared:
    options: list[Option] = []
    actions: dict[str, Declared] = {}
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            actions = {name: _declared(inner) for name, inner in action.choices.items()}
            continue
        said = vars(action) | {"prog": parser.prog}
        options.append(
            Option(
                dest=action.dest,
                names=tuple(action.option_strings),
                metavar=str(action.metavar or ""),
                told=(action.help or "") % {name: value for name, value in said.items() if value is not SUPPRESS},
                choices=tuple(map(str, action.choices or ())),
                default=None if action.default is SUPPRESS else action.default,
                required=action.required,
                flag=action.nargs == 0,
                repeated=action.nargs in ("*", "+") or isinstance(action.default, list),
            )
        )
    return Declared(tuple(options), parser.description or "", actions)
