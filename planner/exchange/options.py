"""Options of a target, and the values that a file gives them, read strictly.

An option has the name that the target publishes, with dots where its files have tables, and a kind of value. Command
lines have texts where TOML, JSON and YAML have numbers and switches; a kind reads both, and nothing else. What a file
does not say is the target's default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from meshwright.ir.errors import SettingValueBad, nearest
from meshwright.ir.files.documents import shown

_DIGITS = re.compile(r"[0-9]{1,9}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?|\.[0-9]+")
_SWITCH = {"true": True, "false": False, True: True, False: False}


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of value that an option takes: how it is read (None: it is no such value), in words, and its words."""

    read: Callable[[object], Any]
    said: str
    words: tuple[str, ...] = ()


def _whole(least: int) -> Callable[[object], Any]:
    def read(value: object) -> int | None:
        if isinstance(value, str) and _DIGITS.fullmatch(value.removeprefix("-") if least < 0 else value):
            value = int(value)
        return value if type(value) is int and least <= value < 10**9 else None

    return read


def _number(value: object) -> float | None:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return float(value)
    return float(value) if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else None


def _switch(value: object) -> bool | None:
    return _SWITCH.get(value.lower() if isinstance(value, str) else value) if isinstance(value, str | bool) else None


def _words(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return tuple(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else None


def _rows(value: object) -> tuple[tuple[str, ...], ...] | None:
    rows = [_words(row) for row in value] if isinstance(value, list) else [None]
    return None if None in rows else tuple(row for row in rows if row is not None)


COUNT = Kind(_whole(1), "a whole number of at least 1")
NATURAL = Kind(_whole(0), "a whole number of at least 0")
INTEGER = Kind(_whole(-1), "a whole number, or -1")
NUMBER = Kind(_number, "a number")
SWITCH = Kind(_switch, "true or false")
TEXT = Kind(lambda value: value if isinstance(value, str) else None, "a text")
WORDS = Kind(_words, "a list of words")
ROWS = Kind(_rows, "a list of lists of words")


def word(*known: str) -> Kind:
    """A kind whose values are these words, in letters of any size."""
    by_small = {one.lower(): one for one in known}
    return Kind(
        lambda value: by_small.get(value.lower()) if isinstance(value, str) else None, " or ".join(known), known
    )


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a target: its published name, the kind of its value, and its default."""

    name: str
    kind: Kind
    default: Any = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as a file has it, and its line (0: files of this syntax have none)."""

    value: object
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options that a file gives, by name, and where it lies."""

    place: str
    entries: Mapping[str, Entry]

    def at(self, name: str) -> str:
        """The place of an option: the file, the line and its name."""
        line = self.entries[name].line if name in self.entries else 0
        return f"{self.place}{f':{line}' if line else ''}: {name}"

    def has(self, option: Option) -> bool:
        return option.name in self.entries and self.entries[option.name].value is not None

    def __getitem__(self, option: Option) -> Any:
        """The value of an option, or its default."""
        if not self.has(option):
            return option.default
        value = self.entries[option.name].value
        found = option.kind.read(value)
        if found is None and isinstance(value, str) and "$" in value:
            raise self.bad(
                option, f"it is {shown(value)}, which the file does not set to a plain value", "write it out"
            )
        if found is None:
            raise self.bad(option, f"it is {shown(value)}")
        return found

    def bad(self, option: Option, cause: str, fix: str = "") -> SettingValueBad:
        """The error for a value that an option cannot have."""
        value = self.entries[option.name].value if option.name in self.entries else ""
        meant = nearest(str(value), option.kind.words) if option.kind.words else None
        wanted = f"did you mean {meant!r}?" if meant else f"give {option.kind.said}"
        return SettingValueBad(place=self.at(option.name), cause=cause, fix=fix or wanted)


def names(options: Iterable[Option]) -> tuple[str, ...]:
    return tuple(option.name for option in options)
