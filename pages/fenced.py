"""Fenced blocks of a page, and the commands in them.

The language of a block says what it is: `console` has commands behind `$ ` and what they print, `sh` commands alone,
everything else is a text. `title="FILE"` gives a text the name of a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
PROMPT = "$ "


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and what the page says that it prints; None where it shows nothing."""

    words: str
    printed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block.

    - `start` and `end` are where its text stands in the page.
    """

    line: int
    start: int
    end: int
    language: str
    title: str
    text: str

    @property
    def commands(self) -> tuple[Command, ...]:
        """What is to be typed: of a text nothing."""
        if self.title:
            return ()
        if self.language == "console":
            return _shown(self.text)
        return _listed(self.text) if self.language == "sh" else ()


def blocks(page: str) -> tuple[Block, ...]:
    """The fenced blocks of a page, in order."""
    return tuple(
        Block(
            line=page.count("\n", 0, found.start()) + 1,
            start=found.start("text"),
            end=found.end("text"),
            language=found["info"].split(" ")[0],
            title=title[1] if (title := TITLE.search(found["info"])) else "",
            text=found["text"],
        )
        for found in FENCE.finditer(page)
    )


def _shown(text: str) -> tuple[Command, ...]:
    """The commands of a console, each up to the next prompt. One that ends with a backslash goes on."""
    found = []
    for part in re.split(rf"^{re.escape(PROMPT)}", text, flags=re.MULTILINE)[1:]:
        typed = re.match(r"(?:.*\\\n)*.*\n", part)
        assert typed, part
        found.append(Command(words=_joined(typed[0]), printed=part[typed.end() :] or None))
    return tuple(found)


def _listed(text: str) -> tuple[Command, ...]:
    """The lines of a script, without comments."""
    lines = re.sub(r"(?:^|\s+)#[^\n]*", "", text.replace("\\\n", " "))
    return tuple(Command(words=_joined(line)) for line in lines.splitlines() if line.strip())


def _joined(words: str) -> str:
    return " ".join(words.replace("\\\n", " ").split())
