"""Words of the text forms of plans and programs: how names are written, and a scanner that reads them back.

A name that is plain is written as it is, any other one as a JSON string, so that every text form can be read back. The
scanner knows lines, literals, names and patterns, and where it stands; what comes in which order is the business of
`meshwright.ir.decisions.text` and `meshwright.ir.program.text`. Anything unreadable is a `PlanSyntax` with line and
column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from meshwright.ir.errors import MeshwrightError, PlanSyntax

T = TypeVar("T")

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_PLAIN_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_PLAIN_VALUE = r"[A-Za-z0-9_.@!+]+"
PLACEMENT = r"\[[^\]\n]*\](?:[+|][a-z]+\(\w+\))*"
"""A placement or a state."""


def word_text(name: str) -> str:
    """A name that stands by itself."""
    return name if re.fullmatch(_PLAIN_WORD, name, re.ASCII) else string_text(name)


def value_text(name: str) -> str:
    """The name of a value, with its mark."""
    return f"%{name if re.fullmatch(_PLAIN_VALUE, name, re.ASCII) else string_text(name)}"


def values_text(names: Iterable[str]) -> str:
    return ", ".join(map(value_text, names))


def string_text(text: str) -> str:
    """A JSON string; what some reader takes for a line end is escaped."""
    return json.dumps(text)


def ranges_text(numbers: Sequence[int]) -> str:
    """``0..7, 16..23``: runs that count up are written as ranges."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ", ".join(f"{first}..{last}" if last > first else str(first) for first, last in runs)


class Scanner:
    """A place in a text. Every method skips blanks, reads one thing that must come next, and stands behind it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.skip_lines()

    def look(self, pattern: str) -> re.Match[str] | None:
        """Whether something of this pattern comes next on this line."""
        return re.compile(pattern, re.ASCII).match(self.text, self._next())

    def _next(self) -> int:
        """The place where the next thing on this line begins."""
        at = self.at
        while self.text[at : at + 1] in (" ", "\t"):
            at += 1
        return at

    def take(self, pattern: str, wanted: str) -> str:
        found = self.look(pattern)
        if found is None:
            raise self.refuse(wanted)
        self.at = found.end()
        return found[0]

    def accept(self, literal: str) -> bool:
        """Take this word or mark if it comes next."""
        found = self.look(re.escape(literal) + (r"(?!\w)" if literal[-1].isalnum() else ""))
        self.at = found.end() if found else self.at
        return found is not None

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.refuse(repr(literal))

    def refuse(self, wanted: str) -> PlanSyntax:
        found = self.look(r"[^\n]*")
        rest = found[0][:20] if found else ""
        return self.error(f"found {rest!r}" if rest else "found the end of the line", f"write {wanted}")

    def error(self, cause: str, fix: str) -> PlanSyntax:
        at = self._next()
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return PlanSyntax(place=f"line {line}, column {column}", cause=cause, fix=fix)

    def parsed(self, parse: Callable[[str], T], pattern: str, wanted: str) -> T:
        """Read a part that has a reader of its own; its refusals get our place."""
        start = self.at
        text = self.take(pattern, wanted)
        try:
            return parse(text)
        except MeshwrightError as error:
            self.at = start
            raise self.error(f"{text}: {error.cause}", error.fix) from error

    # Lines.

    def skip_lines(self) -> None:
        found = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*").match(self.text, self.at)
        self.at = found.end() if found else self.at

    def end_line(self) -> None:
        if not self.look(r"\r?(?:#[^\n]*)?(?:\n|\Z)"):
            raise self.refuse("nothing more on this line")
        found = self.text.find("\n", self.at)
        self.at = len(self.text) if found < 0 else found + 1
        self.skip_lines()

    def finish(self) -> None:
        if self.look(r"\Z") is None:
            raise self.refuse("a line of the grammar")

    # Names and numbers.

    def word(self, wanted: str) -> str:
        return self._unquoted(self.take(f"{_STRING}|{_PLAIN_WORD}", wanted))

    def value(self) -> str:
        return self._unquoted(self.take(f"%(?:{_STRING}|{_PLAIN_VALUE})", "a value, such as %x")[1:])

    def string(self, wanted: str) -> str:
        return self._unquoted(self.take(_STRING, wanted))

    def _unquoted(self, text: str) -> str:
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text))
        except ValueError:
            self.at -= len(text)
            raise self.error(f"{text} is no JSON string", "escape it as JSON does") from None

    def natural(self) -> int:
        return int(self.take(r"[0-9]+", "a number of at least 0"))

    def listed(self, item: Callable[[], T]) -> tuple[T, ...]:
        """One or more items between commas."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    def listed_until(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Items between commas, none or more, up to a closing mark."""
        if self.accept(close):
            return ()
        items = self.listed(item)
        self.expect(close)
        return items

    def ranges(self) -> tuple[int, ...]:
        """Read what `ranges_text` writes; nothing for no numbers."""
        if not self.look("[0-9]"):
            return ()
        return tuple(number for run in self.listed(self._range) for number in run)

    def _range(self) -> range:
        first = self.natural()
        return range(first, self.natural() + 1) if self.accept("..") else range(first, first + 1)
