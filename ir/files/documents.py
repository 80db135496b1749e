"""Users' JSON and TOML as plain dictionaries and lists, stricter than their parsers.

Both parsers take whole numbers of any length and lists of any depth; JSON's also takes keys that are given twice (the
last one counts), NaN, and numbers that are infinite as floats. Here each of these is a `Fault` at the path of its
value. What comes out can be walked, compared, printed and written without another thought.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from meshwright.ir.limits import DEPTH, DIGITS, INTEGER

Path_ = tuple[str | int, ...]
"""The way to a value: keys and indices."""

SHOWN = 60
"""Characters of a value or a key that are repeated."""

_PLAIN = re.compile(r"[\w-]+")
_LINE = re.compile(r"[\w.+-]+")
_LONE = re.compile("[\ud800-\udfff]")


class Fault(Exception):
    """A fault of a document: its place, the cause (as a clause about the value), and the remedy."""

    def __init__(self, path: Path_, cause: str, fix: str) -> None:
        super().__init__(path, cause, fix)
        self.path, self.cause, self.fix = path, cause, fix


class Unparsed(Exception):
    """The reason why a text is no JSON or no TOML, with its place if that is known."""

    def __init__(self, cause: str, *, line: int = 0, column: int = 0, cut: bool = False) -> None:
        """Keep the reason; `cut`: the text seems to end too early."""
        super().__init__(cause)
        self.cause, self.line, self.column, self.cut = cause, line, column, cut


def parse_json(text: str) -> Any:
    """The content of a JSON text. Raises `Unparsed` or `Fault`."""
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        ends = error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()) - len("false")
        raise Unparsed(error.msg, line=error.lineno, column=error.colno, cut=ends) from None
    except RecursionError:
        raise Unparsed(f"it is nested too deep: {DEPTH.said}") from None
    check(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text, with decimal numbers as they are written. Raises `Unparsed` or `Fault`."""
    try:
        found = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise Unparsed(str(error)) from None
    except RecursionError:
        raise Unparsed(f"it is nested too deep: {DEPTH.said}") from None
    except (ValueError, ArithmeticError):  # a whole number of thousands of digits, an exponent of as many
        raise Unparsed(f"a number has more digits than any count or size: {INTEGER.said}") from None
    check(found)
    return found


def parse_value(text: str) -> Any:
    """A value that stands by itself: what TOML has it be, else the text."""
    try:
        return parse_toml(f"value = {text}")["value"] if _LINE.fullmatch(text) else text
    except (Unparsed, Fault):
        return text


class _Repeated(dict[str, Any]):
    """An object with a key that is given twice."""

    key = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated, seen = _Repeated(found), set[str]()
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated


def _integer(digits: str) -> int:
    """Read an integer; beyond the limit any number will do, as it is refused."""
    return int(digits) if len(digits) <= DIGITS else INTEGER.most + 1


def check(document: object) -> None:
    """Check that a document has bounded depth and numbers, every key once, and texts that can be written."""
    for fault in _faults(document):
        raise fault


def _faults(document: object) -> Iterator[Fault]:
    pending: list[tuple[Path_, object]] = [((), document)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict | list) and len(path) >= DEPTH.most:
            yield Fault(path[:4], f"it is nested too deep: {DEPTH.said}", "write it flat")
            return
        if isinstance(value, dict):
            if isinstance(value, _Repeated):
                yield Fault((*path, value.key), "this key is given twice", "give it once")
            for key in value:
                if _LONE.search(key):
                    yield Fault(path, f"the key {key!r:.{SHOWN}} is no text", "write whole characters")
            pending += reversed([((*path, key), item) for key, item in value.items()])
        elif isinstance(value, list):
            pending += reversed([((*path, index), item) for index, item in enumerate(value)])
        elif isinstance(value, str):
            if _LONE.search(value):
                yield Fault(path, "it has half a character (a lone surrogate)", "write whole characters")
        elif isinstance(value, float | Decimal) and not math.isfinite(value):
            yield Fault(path, f"it is {value}", "give a finite number")
        elif isinstance(value, int) and abs(value) > INTEGER.most:
            yield Fault(path, f"it is too large a number: {INTEGER.said}", "give a smaller number")


def spelled(path: Path_) -> str:
    """A path as people write it: `stages[1].first`; keys that are not plain words are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            text += f".{step:.{SHOWN}}" if text else f"{step:.{SHOWN}}"
        else:
            text += f"[{step[:SHOWN]!r}]"
    return text


def shown(value: object) -> str:
    """A value of a document, cut to a length that fits a message."""
    if isinstance(value, dict | list):
        what = "object" if isinstance(value, dict) else "list"
        return f"an empty {what}" if not value else f"a{'n' if what == 'object' else ''} {what} of {len(value)}"
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def differences(one: Any, other: Any, path: Path_ = (), *, near: float = 0.0) -> Iterator[tuple[Path_, Any, Any]]:
    """Differences of two documents: the path, and what both have there. Numbers may differ by `near`, relative to
    them."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key in one and key in other:
                yield from differences(one[key], other[key], (*path, key), near=near)
            else:
                yield (*path, key), one.get(key), other.get(key)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, (*path, index), near=near)
    elif one != other and not (near and _numbers(one, other) and math.isclose(one, other, rel_tol=near)):
        yield path, one, other


def _numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) for value in values)
