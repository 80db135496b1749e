"""Lines of code, laid out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

WIDTH = 120


def indented(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        yield f"    {line}"


def quoted(names: Iterable[str]) -> str:
    """Names as arguments of a call."""
    return ", ".join(f'"{name}"' for name in names)


def wrapped(before: str, items: list[str], after: str) -> Iterator[str]:
    """A list on one line if it fits, without brackets; else one entry a line."""
    line = f"{before[:-1]}{', '.join(items)}"
    if len(line) <= WIDTH:
        yield line
        return
    yield before
    for item in items:
        yield f"    {item},"
    yield after
