"""The parser of command lines: argparse, whose refusals say what was probably meant.

A word that is no choice (of an option, or of the verbs) and an option that there is not are answered with the nearest
one, as everywhere else (`ir.errors.nearest`).
"""

from __future__ import annotations

from argparse import Action, ArgumentError, ArgumentParser
from collections.abc import Sequence
from typing import Any, Never

from meshwright.ir.errors import nearest


class Parser(ArgumentParser):
    """A parser, and those of its verbs."""

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

    def _refuse(self, unknown: Sequence[str]) -> Never:
        known = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        asked = next((word[2:].partition("=")[0] for word in unknown if word.startswith("--")), "")
        meant = nearest(asked, known)
        self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean --{meant}?" if meant else ""))
