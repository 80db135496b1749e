"""Quoting of names in written code: one function for each place where a name may stand.

Names of models, files, modules, parameters and entries of batches are the user's, and may hold any character: torch
allows all but a dot in the name of a module. Code never has them in it but through these functions:

    literal     a string of Python
    around      an f-string of Python with one hole
    pattern     a string of Python that holds a regular expression
    attribute   a read of an attribute; `assigned` writes it
    keywords    arguments of a call by name
    constant    a number, a string, None: what a literal can say
    identifier  a name of our own that is made of one of the user's
    said        what a docstring or a comment quotes
    word        a word of a shell's command
    toml        a string of TOML

Names of mesh axes are words already (`MeshAxis` refuses others), and JSON is written by `json`.

Writers lay code out by looking for commas and brackets in it, and put values for `%name`. So literals hold none of
these: what could be taken for code is written as an escape.
"""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Mapping
from math import isfinite
from typing import Any

_STRUCTURE = frozenset('"\\()[]{},%')
"""What ends a literal, and what writers look for in code."""


def literal(text: str) -> str:
    """A string literal in double quotes, on one line."""
    return f'"{_inside(text)}"'


def around(before: str, hole: str, after: str) -> str:
    """An f-string: an expression between two texts."""
    return f'f"{_inside(before)}{{{hole}}}{_inside(after)}"'


def pattern(text: str) -> str:
    """A regular expression: a raw string, where that can hold it."""
    plain = text.isascii() and text.isprintable() and '"' not in text and not text.endswith("\\")
    return f'r"{text}"' if plain else literal(text)


def attribute(holder: str, name: str) -> str:
    """An attribute of an expression's value."""
    return f"{holder}.{name}" if is_name(name) else f"getattr({holder}, {literal(name)})"


def assigned(holder: str, name: str, value: str) -> str:
    """A statement that sets an attribute."""
    return f"{holder}.{name} = {value}" if is_name(name) else f"setattr({holder}, {literal(name)}, {value})"


def keywords(arguments: Mapping[str, str]) -> list[str]:
    """Arguments by name, each with an expression for its value."""
    return [
        f"{name}={value}" if is_name(name) else f"**{{{literal(name)}: {value}}}" for name, value in arguments.items()
    ]


def constant(value: str | float | None) -> str:
    """A value as code. Numbers of other libraries, and members of enumerations, become Python's."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        return literal(str(value))
    if isinstance(value, int):
        return repr(int(value))
    return repr(float(value)) if isfinite(value) else f'float("{float(value)}")'


def as_code(value: Any) -> str:
    """What holds values, as code: as Python prints it, but for infinite numbers, which have no literal."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {as_code(one)}' for name, one in value.items())}}}"
    if type(value) in (list, tuple):
        items = ", ".join(map(as_code, value))
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
    return constant(value) if isinstance(value, float) and not isfinite(value) else repr(value)


def loose(expression: str) -> bool:
    """Whether an operator stands outside all brackets of an expression."""
    deep = 0
    for letter in expression:
        deep += (letter in "([{") - (letter in ")]}")
        if letter == " " and not deep:
            return True
    return expression.startswith(("-", "~"))


def is_name(text: str) -> bool:
    """Whether code may use a name as it is. Python itself changes some: those beginning with two underscores inside of
    a class, and letters that look like others."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text) and not text.startswith("__")


def identifier(text: str) -> str:
    """An identifier for any text; several texts may yield the same."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{word}" if not word or word[0].isdigit() or keyword.iskeyword(word) else word


def said(text: str) -> str:
    """A text inside a docstring in double quotes or a comment, which it ends in neither."""
    return "".join(_escaped(letter) if letter in '"\\' or not letter.isprintable() else letter for letter in text)


def word(text: str) -> str:
    """A text as one word of a shell command."""
    return shlex.quote(text)


def _inside(text: str) -> str:
    return "".join(_escaped(letter) if letter in _STRUCTURE or not letter.isprintable() else letter for letter in text)


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    code = ord(letter)
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def toml(text: str) -> str:
    """A string of TOML, on one line."""
    escaped = "".join(
        f"\\u{ord(letter):04x}"
        if ord(letter) < 32 or ord(letter) == 127
        else {'"': '\\"', "\\": "\\\\"}.get(letter, letter)
        for letter in text
    )
    return f'"{escaped}"'
