"""A question's file and what the command line says beside it, as the arguments of a verb."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from meshwright.ir.errors import QuestionKeyMissing, nearest
from meshwright.ir.files.documents import Fault, Path_, Unparsed, parse_toml
from meshwright.ir.files.lines import Lines
from meshwright.ir.files.schema import Refused, faults_of
from meshwright.planner.cli.declared import Declare, declared
from meshwright.planner.cli.questions.keys import FILES, HOME, KEYS, OF_ONE_VERB, TOP
from meshwright.planner.cli.questions.table import FORM, QuestionTable
from meshwright.planner.question.ask import SHIPPED


def settled(said: Namespace, declare: Declare) -> Namespace:
    """The arguments of a verb: what is said, else what the file of --config says, else what is so without it."""
    verb = declared(declare)
    own = OF_ONE_VERB[said.verb]
    usual = {option.dest: option.default for option in verb.options if option.dest != "help"}
    of_file = {key: value for key, value in read(said.config).items() if key in usual and key not in own}
    args = Namespace(**usual | of_file | vars(said))
    for option in verb.options:
        if option.required and getattr(args, option.dest) is None:
            raise QuestionKeyMissing(
                place=said.config,
                cause=f"it has no {option.dest}, and the command line gives none",
                fix=f'add `{option.dest} = "…"`, or give {option.names[0] if option.names else option.metavar}',
            )
    return args


def read(path: str) -> dict[str, Any]:
    """What a file says, by key; files that it names are found from where it lies."""
    values = question(FORM.text(path), path)
    folder = os.path.dirname(path)  # noqa: PTH120 - Path would take the ./ of a name away
    return values | {key: beside(folder, key, values[key]) for key in FILES if key in values}


def question(text: str, path: str) -> dict[str, Any]:
    """What the text of a file says, by key."""
    lines = Lines(text)
    found, refused = faults_of(QuestionTable, _document(text, path, lines))
    if refused:
        first = min(refused, key=lambda one: lines.of(one.path))
        FORM.refuse(_meant(first), f"{path}:{lines.of(first.path)}")
    values: dict[str, Any] = {}
    for table, keys in KEYS.items():
        inside = getattr(found, table) if table else found
        values |= {key: value for key in keys if (value := getattr(inside, key)) is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _document(text: str, path: str, lines: Lines) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except Fault as fault:
        FORM.refuse(Refused("value", fault.path, fault.cause, fault.fix), f"{path}:{lines.of(fault.path)}")
    except Unparsed:
        return FORM.toml(text, path)


def _meant(one: Refused) -> Refused:
    """A refusal; of an unknown key, with the table that has a key of this or of a like name."""
    if one.kind != "unknown":
        return one
    asked, here = str(one.path[-1]), _here(one.path)
    meant = asked if asked in HOME else nearest(asked, KEYS[here]) or nearest(asked, HOME)
    if meant is None or HOME[meant] == here:
        return one
    table = HOME[meant]
    under = f"under [{table}]" if table != TOP else "before all tables"
    fix = f"{meant!r} stands {under}" if meant == asked else f"did you mean {meant!r}, {under}?"
    return Refused(one.kind, one.path, one.cause, fix)


def _here(path: Path_) -> str:
    """The table that an unknown key stands in."""
    return str(path[0]) if len(path) == 2 and path[0] in KEYS else TOP


def beside(folder: str, key: str, said: str) -> str:
    """A name that a file in a folder says, as it is called from here."""
    there = os.path.join(folder, said)  # noqa: PTH118 - as above
    return there if folder and _is_file(key, said, there) else said


def seen_from(folder: str, key: str, said: str) -> str:
    """A name as a file in a folder calls it."""
    return os.path.relpath(said, folder) if folder not in ("", ".") and _is_file(key, said, said) else said


def _is_file(key: str, said: str, there: str) -> bool:
    if key == "cluster":
        return said.endswith(".toml") or os.path.isfile(there)  # noqa: PTH113 - Path raises where a name is too long
    return key == "model" or said != SHIPPED
