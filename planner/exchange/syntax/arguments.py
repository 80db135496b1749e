"""Command lines in shell scripts.

Read are the words of a script that begin with two dashes, with the values that follow each, or words `key=value`.
Nothing is run, so that what stands behind a condition is read like the rest (`conditions` says which lines do).
Variables are filled in where the script itself sets them to a plain value before (`TP=8`, `${TP:-4}`); arrays and
quoted lists of arguments are read where they stand. A variable that the script does not set stays as it is, and whoever
asks for it refuses it. What launchers take (`torchrun`) is told apart by its names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from meshwright.ir.errors import SettingsContradict, SettingsUnreadable
from meshwright.ir.quoting import said as quoted
from meshwright.ir.quoting import word
from meshwright.planner.exchange.options import Entry

LAUNCHER = re.compile(
    r"--(nproc[-_]per[-_]node|nnodes|node[-_]rank|master[-_](addr|port)|rdzv[-_].*|standalone|module)$"
)
_SET = re.compile(
    r"^\s*(?:export\s+|local\s+|declare\s+)?([A-Za-z_]\w*)=(\"[^\"$`]*\"|'[^']*'|[^\s\"'`$;&|()<>]*)\s*;?\s*(?:#.*)?$"
)
_DEFAULT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=\"?\$\{(?:\w+):?[-=]\"?([^}\"$`]*)\"?\}\"?\s*(?:#.*)?$")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]([^}$`]*))?\}|([A-Za-z_]\w*))")
_QUOTED = re.compile(r"\b(\w+)=\"([^\"]*--[A-Za-z][^\"]*)\"")
_OPTION = re.compile(r"--[A-Za-z][\w-]*")
_PAIR = re.compile(r"\+{0,2}([a-z][a-z0-9_.]*)=(.*)")
_REDIRECTED = re.compile(r"(?<=\s)\d?(>>|>&|>|<)\s*&?\S+")
_LISTED = re.compile(r"^--|\n\s*--[A-Za-z]")
"""Several words in one: options with their values, as some quote them."""
MOST_LINES, MOST_QUOTED = 100, 20_000
"""Lines, and characters, that a quote may go on for: whatever is longer was not meant to be one."""
_ENDS = ";|&<>"
ARRAY = "MESHWRIGHT_ARGS"


def read(text: str, place: str, negated: Mapping[str, str], once: Collection[str]) -> dict[str, Entry]:
    """The options of a script, by name. The last one counts, as for argparse; those of `once` must not contradict."""
    found: dict[str, Entry] = {}
    for name, values, line in _options(text, place):
        own, value = name, values[0] if len(values) == 1 else list(values) if values else True
        if name in negated:
            own, value = negated[name], False
        before = found.get(own)
        if own in once and before is not None and before.value != value:
            raise SettingsContradict(
                place=f"{place}:{line}: {name}", cause=f"line {before.line} says otherwise", fix="give it once"
            )
        found[own] = Entry(value, line)
    return found


def pairs(text: str, place: str) -> Iterator[tuple[str, str, int]]:
    """The words `key=value` of a script, with their lines."""
    for word_, line in _words(text, place):
        if pair := _PAIR.fullmatch(word_):
            yield pair[1], pair[2], line


def conditions(text: str) -> Iterator[int]:
    """The lines of a script that stand behind a condition."""
    deep = 0
    for number, line in enumerate(text.split("\n"), 1):
        first = line.split(maxsplit=1)[:1]
        deep += first in (["if"], ["case"])
        if deep > 0:
            yield number
        deep -= first in (["fi"], ["esac"])


def _options(text: str, place: str) -> Iterator[tuple[str, list[str], int]]:
    name, values, at = "", list[str](), 0
    for word_, line in _words(text, place):
        option = _OPTION.match(word_)
        if option is None:
            if name and word_.strip(_ENDS):
                values.append(word_)
            elif name:
                yield name, values, at
                name = ""
            continue
        if name:
            yield name, values, at
        name, equals, value = word_.partition("=")
        values, at = [value] if equals else [], line
        if LAUNCHER.match(name) or not _OPTION.fullmatch(name):
            name = ""
    if name:
        yield name, values, at


def _words(text: str, place: str) -> Iterator[tuple[str, int]]:
    """The words of a script with their lines; a command ends with its line, and a list in brackets with them."""
    known: dict[str, str] = {}
    deep, open_, first, on = 0, "", 0, 0
    for number, line in _joined(_QUOTED.sub(_in_brackets, text)):
        if not open_ and (assigned := _SET.match(line) or _DEFAULT.match(line)):
            known[assigned[1]] = assigned[2].strip("\"'")
            continue
        whole, at = (f"{open_}\n{line}", first) if open_ else (line, number)
        words = _split(whole)
        if words is None:
            open_, first, on = whole, at, on + 1
            if on > MOST_LINES or len(whole) > MOST_QUOTED:
                break
            continue
        open_, on = "", 0
        for one in words:
            if set(one) <= set("()"):
                deep = max(0, deep + one.count("(") - one.count(")"))
                yield ";", at
            else:
                filled = _VARIABLE.sub(_filled(known), one)
                for word_ in filled.split() if _LISTED.search(filled) else (filled,):
                    yield word_, at
        if not deep:
            yield ";", at
    if open_:
        raise SettingsUnreadable(
            place=f"{place}:{first}", cause="it is no command line: a quote is not closed", fix="close the quotes"
        )


def _split(line: str) -> list[str] | None:
    """The words of a line; None if a quote goes on behind it."""
    lexer = shlex.shlex(_REDIRECTED.sub(" ; ", line), posix=True, punctuation_chars="();|&<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:
        return None


def _in_brackets(match: re.Match[str]) -> str:
    """A list of arguments in quotes as one in brackets, on as many lines."""
    return f"{match[1]}=({match[2]})"


def _filled(known: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return known.get(name, match[2] if match[2] is not None else match[0])

    return value


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a script, those that go on behind a backslash as one, each with the number of its first."""
    before, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first if before else number
        if line.endswith("\\"):
            before += f"{line[:-1]} "
            continue
        yield first, before + line
        before = ""
    if before:
        yield first, before


def write(options: Mapping[str, Any], comments: tuple[str, ...], negated: Mapping[str, str]) -> str:
    """A script that sets an array of arguments."""
    switched = {on: off for off, on in negated.items()}
    lines = [*(f"# {quoted(one)}" for one in comments), f"{ARRAY}=("]
    for name, value in options.items():
        if value is False:
            lines.append(f"    {switched[name]}")
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        lines.append("    " + " ".join((name, *(word(str(one)) for one in values))))
    return "\n".join((*lines, ")")) + "\n"
