"""Text that fits the terminal: prose that wraps at words, and tables whose columns give way by priority.

    Table(columns, rows) -> lines(width)      Page: prose and tables -> standard output

A column says how it gives way and when. Where a table is wider than the console, its columns give way in the order of
their `turn`, one after the other, until it fits: one that goes *below* has lines of its own under every row; one that
*folds* goes on in further lines of its cell, down to `least` characters, and goes below where that is too much; one
that is *shortened* ends in two dots; one that is *dropped* is left out. One that *stays* gives way only to others like
it, on a console that has no room for them all. Numbers stand in columns that stay or are dropped, so that no number is
ever cut.

Text is broken at blanks, though not between a number and its unit, and after the commas of a configuration; a word that
is longer than a line after the slashes of a path, else after its punctuation, and anywhere only where it has none.

No character of these views is beyond Latin-1, and tables have no lines: there is nothing that a terminal may lack.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console

WIDTH = 80
"""Characters of a line where nothing says how wide it may be."""
LEAST_WIDTH = 40
"""Of a line, however narrow the terminal: below that nothing can be read."""
DIGITS = 6
"""Of COLUMNS, at most."""
BETWEEN = "  "
"""What is between columns."""
SHORTENED = ".."
INDENT = "  "

Line = tuple[str, str]
"""A line of text and its style, as rich names it."""


def width_of(stream: TextIO) -> int:
    """The characters of a line: COLUMNS if it is set, else the terminal's, and 80 where there is no terminal."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and len(said) <= DIGITS and int(said):
        return max(LEAST_WIDTH, int(said))
    return max(LEAST_WIDTH, Console(file=stream).width) if stream.isatty() else WIDTH


# Prose ---------------------------------------------------------------------------------------------------------------

_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTPEZ]?i?B(?:/s)?|[KMGTP]iB|[kMGTPEZ]|µs|ms|s|x|%)(?![\w]))|(?<=[<x]) (?=\d)")
"""The blank between a number and its unit, or what it is compared with."""
_SPACES = re.compile(r"\s")
_WORD_ENDS = re.compile(r" |(?<=,)(?=[a-z_]+=)")
_FOLDERS = re.compile(r"(?<=/)")
_MARKS = re.compile(r"(?<=[+:;=_.,|-])(?!\d)|(?<=[+=|])")
_KEPT = "\N{NO-BREAK SPACE}"


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Text in lines of at most this width, all but the first with an indent; a blank line of none."""
    lines, line = [], ""
    for word in _words(text):
        for piece in _pieces(word, width - cell_len(indent)):
            if cell_len(f"{line}{piece}".rstrip()) > width:
                lines.append(line)
                line = indent
            line += piece
    return [one.replace(_KEPT, " ").rstrip() for one in (*lines, line)]


def _words(text: str) -> Iterator[str]:
    """The words of a text, each with the blank after it."""
    text, start = _UNIT.sub(_KEPT, _SPACES.sub(" ", text)), 0
    for end in _WORD_ENDS.finditer(text):
        yield text[start : end.end()]
        start = end.end()
    yield text[start:]


def _pieces(word: str, width: int) -> Iterator[str]:
    """A word, in pieces if it does not fit into a line: its folders, each by its marks, each by characters."""
    pieces = [word]
    for marks in (_FOLDERS, _MARKS):
        wide = (marks.split(piece) if cell_len(piece.rstrip()) > width else (piece,) for piece in pieces)
        pieces = [piece for parts in wide for piece in parts if piece]
    for piece in pieces:
        rest = piece
        while cell_len(rest.rstrip()) > width:
            end = next(at for at in range(len(rest), 0, -1) if cell_len(rest[:at]) <= width)
            yield rest[:end]
            rest = rest[end:]
        yield rest


# Tables --------------------------------------------------------------------------------------------------------------


class Way(Enum):
    """How a column gives way."""

    STAY = "stay"
    FOLD = "fold"
    BELOW = "below"
    SHORTEN = "shorten"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, how it gives way, and its turn in that; the first turn is the first to give way."""

    head: str
    way: Way = Way.STAY
    turn: int = 0
    right: bool = False
    least: int = 12
    """Characters that it keeps where it is folded or shortened."""


def number(head: str, turn: int | None = None) -> Column:
    """A column of numbers, which stays or, when its turn comes, is dropped."""
    return Column(head, Way.STAY if turn is None else Way.DROP, turn or 0, right=True)


def text(head: str, turn: int, way: Way = Way.FOLD, least: int = 12) -> Column:
    """A column of words, which gives way when its turn comes."""
    return Column(head, way, turn, least=least)


def columns(first: str, *numbers: str) -> tuple[Column, ...]:
    """A name and numbers: the numbers are dropped from the right, all but the first, and then the name is folded."""
    dropped = [number(head, len(numbers) - at if at else None) for at, head in enumerate(numbers)]
    return text(first, len(numbers) + 1), *dropped


@dataclass(slots=True)
class Table:
    """A title, columns and rows of as many cells."""

    title: str
    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row. Must: a cell for every column."""
        assert len(cells) == len(self.columns), f"{len(cells)} cells for {len(self.columns)} columns"
        self.rows.append(tuple(_SPACES.sub(" ", cell) for cell in cells))

    def lines(self, width: int) -> list[Line]:
        """The table in lines of at most this width: its title, its heads unless all are empty, its rows."""
        shown = self._fitted(width)
        found: list[Line] = [(line, "bold") for line in folded(self.title, width, INDENT) if line]
        heads = [column.head for column in self.columns]
        if any(heads[at] for at in shown):
            found += [(line, "bold") for line in self._row(heads, shown)]
        lower = [
            at for at, column in enumerate(self.columns) if at not in shown and column.way in (Way.BELOW, Way.FOLD)
        ]
        for row in self.rows:
            found += [(line, "") for line in self._row(row, shown)]
            for at in lower:
                found += [(line, "") for line in folded(f"{INDENT}{row[at]}", width, INDENT) if line]
        return found

    def heads(self, width: int) -> list[str]:
        """The heads of the columns that have room."""
        return [self.columns[at].head for at in self._fitted(width)]

    def _fitted(self, width: int) -> dict[int, int]:
        """The columns that are shown, with their widths."""
        whole = [
            max(map(cell_len, (column.head, *(row[at] for row in self.rows)))) for at, column in enumerate(self.columns)
        ]
        shown = {at: wide for at, wide in enumerate(whole) if wide}

        def over() -> int:
            return sum(shown.values()) + len(BETWEEN) * (len(shown) - 1) - width

        yielding = [at for at in shown if self.columns[at].way is not Way.STAY]
        yielding.sort(key=lambda at: (self.columns[at].turn, -at))
        for at in yielding:
            if over() > 0 and self.columns[at].way in (Way.DROP, Way.BELOW):
                del shown[at]
            elif over() > 0:
                shown[at] = max(min(whole[at], self.columns[at].least), whole[at] - over())
        first = next(iter(shown), 0)
        for at in (*yielding, *reversed(shown)):  # too narrow for all that should stay
            if over() > 0 and at in shown and at != first:
                del shown[at]
        if over() > 0:
            shown[first] -= over()
        for at in reversed(yielding):  # what wider columns have left over
            room = max(0, -over())
            if at in shown:
                shown[at] += min(room, whole[at] - shown[at])
            elif self.columns[at].way is Way.DROP and whole[at] + len(BETWEEN) <= room:
                shown[at] = whole[at]
        return dict(sorted(shown.items()))

    def _row(self, cells: Sequence[str], shown: Mapping[int, int]) -> Iterator[str]:
        """The lines of one row."""
        parts = [_cell(cells[at], width, self.columns[at].way) for at, width in shown.items()]
        for line in zip_longest(*parts, fillvalue=""):
            placed = (
                _placed(piece, width, right=self.columns[at].right)
                for piece, (at, width) in zip(line, shown.items(), strict=True)
            )
            yield BETWEEN.join(placed).rstrip()


def _cell(text: str, width: int, way: Way) -> list[str]:
    """The lines of a cell of this width."""
    if cell_len(text) <= width:
        return [text]
    if way is Way.SHORTEN:
        return [f"{folded(text, width - len(SHORTENED))[0].rstrip(' ,;')}{SHORTENED}"]
    return folded(text, width)


def _placed(text: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return f"{blanks}{text}" if right else f"{text}{blanks}"


# A page --------------------------------------------------------------------------------------------------------------


class Page:
    """Prose and tables, line by line, for standard output."""

    def __init__(self, width: int | None = None) -> None:
        self.width = width or width_of(sys.stdout)
        self.lines: list[Line] = []

    def say(self, text: str, style: str = "", *, label: str = "", indent: str = INDENT) -> None:
        """Add prose; under a label, further lines begin where the text after it does."""
        under = " " * len(label) if label else indent
        self.lines += [(line, style) for line in folded(f"{label}{text}", self.width, under)]

    def whole(self, text: str) -> None:
        """Add a line that is not broken, however long it is: one with a path, which is copied."""
        self.lines.append((text, ""))

    def blank(self) -> None:
        """Add an empty line, unless the page begins there."""
        if self.lines:
            self.lines.append(("", ""))

    def table(self, table: Table) -> None:
        """Add a table."""
        self.lines += table.lines(self.width)

    def print(self) -> None:
        """Write the page to standard output."""
        console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, width=self.width)
        for line, style in self.lines:
            console.print(line, style=style)
