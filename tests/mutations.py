"""Every way in which a valid document can be wrong at one key: what schemas are tried against."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from meshwright.ir.errors import MeshwrightError

Path_ = tuple[str | int, ...]

HUGE = 10**18
OTHERS: dict[str, Any] = {
    "null": None,
    "text": "\x00nonsense",
    "list": [[]],
    "object": {"nonsense": 1},
    "true": True,
    "zero": 0,
    "negative": -1,
    "fraction": 0.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "huge": HUGE,
    "endless": 10**400,
}
"""What takes the place of a value."""


def paths(document: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every key of a document, from the outside in."""
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield (*at, key)
        yield from paths(value, (*at, key))


def mutated(document: Any, same: Callable[[Path_], Path_] = lambda path: path) -> Iterator[tuple[Path_, str, Any]]:
    """The document with one key dropped, unknown or otherwise, for each that is not the `same` as one before."""
    seen = set[Path_]()
    for path in paths(document):
        if same(path) in seen:
            continue
        seen.add(same(path))
        for how in ("dropped", *OTHERS):
            changed = copy.deepcopy(document)
            inside = _inside(changed, path)
            if how == "dropped":
                del inside[path[-1]]
            elif _same(inside[path[-1]], OTHERS[how]):
                continue
            else:
                inside[path[-1]] = OTHERS[how]
            yield path, how, changed
        if isinstance(_inside(document, path)[path[-1]], dict):
            changed = copy.deepcopy(document)
            _inside(changed, path)[path[-1]]["nonsense"] = 1
            yield (*path, "nonsense"), "unknown", changed


def repeated(document: Any) -> Iterator[tuple[Path_, str]]:
    """The document as JSON with one key given twice, for each object."""
    for path in ((), *paths(document)):
        inside = document
        for key in path:
            inside = inside[key]
        if isinstance(inside, dict) and inside:
            key = next(iter(inside))
            whole = json.dumps(_replaced(document, path, "\x01"))
            text = f"{{{json.dumps(key)}: 0, {json.dumps(inside)[1:]}"
            yield (*path, key), whole.replace('"\\u0001"', text) if path else text


def _same(one: Any, other: Any) -> bool:
    """Whether two values mean the same: 0 and 0.0 do, 1 and true do not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _replaced(document: Any, path: Path_, value: Any) -> Any:
    changed = copy.deepcopy(document)
    if path:
        _inside(changed, path)[path[-1]] = value
    return changed


def _inside(document: Any, path: Path_) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def refusal(read: Callable[[], object]) -> MeshwrightError | None:
    """The error that a document is refused with, if it is. Anything but an error of ours escapes."""
    try:
        read()
    except MeshwrightError as error:
        return error
    return None
