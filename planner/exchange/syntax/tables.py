"""Tables of tables, whose names are joined by dots: TOML, JSON, YAML; and `key=value` words over YAML.

What is no table is a value, and so is an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.ir.errors import SettingsUnreadable, SettingValueBad
from meshwright.ir.files.documents import Fault, Path_, Unparsed, parse_json, parse_toml, spelled
from meshwright.ir.files.lines import Lines
from meshwright.ir.quoting import said, toml
from meshwright.planner.exchange.options import Entry
from meshwright.planner.exchange.syntax import arguments, yaml


def read_json(text: str, place: str) -> dict[str, Entry]:
    """The options of a JSON text."""
    try:
        return dict(_flat(_object(parse_json(text), place), {}))
    except (Unparsed, Fault) as error:
        raise _refused(error, "JSON", place) from None


def read_toml(text: str, place: str) -> dict[str, Entry]:
    """The options of a TOML text, with their lines."""
    try:
        found = parse_toml(text)
    except (Unparsed, Fault) as error:
        raise _refused(error, "TOML", place) from None
    lines = Lines(text)
    return {name: Entry(one.value, lines.of(tuple(name.split(".")))) for name, one in _flat(found, {})}


def read_yaml(text: str, place: str) -> dict[str, Entry]:
    """The options of a YAML text, with their lines."""
    try:
        found, lines = yaml.parse(text)
        return dict(_flat(_object(found, place), lines))
    except (Unparsed, Fault) as error:
        raise _refused(error, "YAML", place) from None


def read_words(text: str, place: str) -> dict[str, Entry]:
    """The options of `key=value` words, each value read as YAML reads it."""
    found: dict[str, Entry] = {}
    for name, value, line in arguments.pairs(text, place):
        try:
            plain, _ = yaml.parse(value)
        except (Unparsed, Fault):  # it is a text
            plain = value
        found[name] = Entry(plain, line)
    return found


def _object(found: object, place: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise SettingsUnreadable(place=place, cause="it is no table of settings", fix="give names with values")
    return found


def _flat(
    table: Mapping[str, Any], lines: Mapping[Path_, int], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Entry]]:
    for key, value in table.items():
        own = (*path, key)
        if isinstance(value, dict) and value:
            yield from _flat(value, lines, own)
        else:
            yield ".".join(own), Entry(value, lines.get(own, 0))


def _refused(error: Unparsed | Fault, syntax: str, place: str) -> SettingsUnreadable | SettingValueBad:
    if isinstance(error, Fault):
        return SettingValueBad(place=f"{place}: {spelled(error.path)}", cause=error.cause, fix=error.fix)
    at = f":{error.line}" if error.line else ""
    return SettingsUnreadable(place=f"{place}{at}", cause=f"it is not {syntax}: {error.cause}", fix="correct the line")


# Writing -------------------------------------------------------------------------------------------------------------


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of tables."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        *tables, last = name.split(".")
        inside = found
        for table in tables:
            inside = inside.setdefault(table, {})
        inside[last] = value
    return found


def write_json(options: Mapping[str, Any]) -> str:
    """A JSON text. JSON has no comments."""
    return f"{json.dumps(nested(options), indent=2)}\n"


def write_yaml(options: Mapping[str, Any], comments: tuple[str, ...]) -> str:
    """A YAML text."""
    return "\n".join((*_comments(comments), *yaml.text_of(nested(options)))) + "\n"


def write_toml(options: Mapping[str, Any], comments: tuple[str, ...]) -> str:
    """A TOML text."""
    lines = list(_comments(comments))
    tables: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        table, _, last = name.rpartition(".")
        tables.setdefault(table, {})[last] = value
    for table, values in tables.items():
        lines += ["", f"[{table}]"] if table else []
        lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else toml(value) if isinstance(value, str) else str(value)


def _comments(comments: tuple[str, ...]) -> Iterator[str]:
    return (f"# {said(one)}" for one in comments)
