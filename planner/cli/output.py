"""The files that a command may write over: its own of an earlier run, or any with --force.

plan.json    is written over where it is a plan of the same MODEL
scripts      are written over where they are as `plan emit` left them: `MANIFEST` has the digests of its files
pages        and traces are written over where they begin with the mark of who wrote them
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from meshwright.ir.errors import (
    OutputTaken,
    PlanUnwritable,
)
from meshwright.ir.files.documents import Fault, Unparsed, parse_json
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import PLAN_BYTES

MANIFEST = ".meshwright.json"
HEAD_BYTES = 1000
"""Of a file, in which the mark of its writer stands."""


def folder_of(text: str) -> Path:
    """The folder that --out names."""
    if not text:
        raise PlanUnwritable(place="--out ''", cause="it names no directory", fix="name a directory to write to")
    return Path(text)


def check_plan(file: Path, model: str, *, force: bool) -> None:
    """Check that a folder holds nothing, or a plan of the same model."""
    if force or not os.path.isfile(file):  # noqa: PTH113 - Path raises where a name is too long
        return
    found = _read(file)
    described = found.get("model") if "format_version" in found else None
    if not isinstance(described, dict):
        raise _taken(file, "it is there, and is no plan")
    if described.get("ref") != model:
        raise _taken(file, f"it is a plan of {described.get('ref')}, and this is one of {model}")


def check_files(folder: Path, names: Iterable[str], *, force: bool) -> None:
    """Check that files are missing, or as they were written."""
    written = {} if force else _read(folder / MANIFEST)
    for name in () if force else names:
        file = folder / name
        if os.path.isfile(file) and written.get(name) != _digest(file.read_bytes()):  # noqa: PTH113
            changed = (
                "it was changed since it was written" if name in written else "it is there, and was not written here"
            )
            raise _taken(file, changed)


def remember(folder: Path, texts: Mapping[str, str]) -> None:
    """Write down what was written, for the next check."""
    known = _read(folder / MANIFEST) | {name: _digest(text.encode()) for name, text in texts.items()}
    (folder / MANIFEST).write_text(f"{json.dumps(known, indent=2, sort_keys=True)}\n", encoding="utf-8")


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _read(file: Path) -> dict[str, object]:
    """A JSON object, or none."""
    try:
        found = parse_json(read_text(file, PLAN_BYTES))
    except (Unreadable, Unparsed, Fault):
        return {}
    return found if isinstance(found, dict) else {}


def _taken(file: Path, cause: str) -> OutputTaken:
    return OutputTaken(
        place=str(file), cause=cause, fix="name another directory with --out, or write over it with --force"
    )


def own_file(text: str, mark: str, *, force: bool) -> Path:
    """The file that --out names, in a folder that is there: it is missing, or has the mark of an earlier run."""
    if not text:
        raise PlanUnwritable(place="--out ''", cause="it names no file", fix="name a file to write to")
    file = Path(text)
    if os.path.isdir(file):  # noqa: PTH112 - Path raises where a name is too long
        raise PlanUnwritable(place=f"--out {text}", cause="it is a directory", fix="name a file to write to")
    if not force and os.path.isfile(file):  # noqa: PTH113
        try:
            with file.open("rb") as opened:
                known = mark.encode() in opened.read(HEAD_BYTES)
        except OSError as error:
            raise unwritable(file, error, "a file") from None
        if not known:
            raise OutputTaken(
                place=str(file),
                cause="it is there, and was not written here",
                fix="name another file with --out, or write over it with --force",
            )
    made(file.parent)
    return file


def write_file(file: Path, text: str, *, as_json: bool) -> None:
    """Write a file of a command's own, and say so."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(file, error, "a file") from None
    if as_json:
        sys.stdout.write(f"{json.dumps({'written': [str(file)]}, indent=2)}\n")
    else:
        sys.stdout.write(f"written: {file}\n")


def made(folder: Path) -> Path:
    """The folder to write into, made if it is missing: before the search, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def unwritable(place: Path, error: OSError | ValueError, what: str = "a directory") -> PlanUnwritable:
    """The error for a place that cannot be written, which is to be named."""
    cause = error.strerror if isinstance(error, OSError) else str(error)
    return PlanUnwritable(
        place=f"--out {place}", cause=(cause or "it cannot be written").lower(), fix=f"name {what} to write to"
    )
