"""JSON and TOML with one thing changed.

A change is drawn for one value, at a path that is drawn step by step, so that a key of the outermost table is as likely
as all that is in a large one. `Told` says what a kind of document means by its keys, as far as that decides whether a
change is nonsense; where it says nothing, it may be legal.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Path_ = tuple[str | int, ...]


def _no(path: Path_) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known of the keys of a kind of document, by path.

    - `needed`: nothing stands for it if it is dropped.
    - `open`: an object whose keys are names, not words of the schema.
    - `sized`: a number that is not negative, and nothing but a number.
    - `typed`: a value of one type, as it stands.
    """

    needed: Callable[[Path_], bool] = _no
    open: Callable[[Path_], bool] = _no
    sized: Callable[[Path_], bool] = _no
    typed: Callable[[Path_], bool] = _no


class Raw(str):
    """A text that is written as it stands."""

    __slots__ = ()


NOT_FINITE = tuple(map(Raw, ("NaN", "nan", "Infinity", "-inf", "1e999", "-1e400")))
ENDLESS = (Raw("9" * 5000), Raw("-" + "1" * 4999), 10**30, -(2**64), Raw("1" + "0" * 400))


def as_json(value: Any) -> str:
    """A document as JSON."""
    return _written(value, ": ")


def as_toml(document: dict[str, Any]) -> str:
    """A document as TOML, one line for each outermost key."""
    if isinstance(document, Raw):
        return document
    return "".join(f"{json.dumps(key)} = {_written(value, ' = ')}\n" for key, value in document.items())


def _equals(write: Callable[[Any], str]) -> str:
    return ": " if write is as_json else " = "


def _written(value: Any, equals: str) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}{equals}{_written(one, equals)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(one, equals) for one in value) + "]"
    return json.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A value of a document that is to be changed: the last step of `path`, in the object or list `inside`."""

    rng: Random
    whole: Any
    inside: Any
    path: Path_
    told: Told
    write: Callable[[Any], str]

    @property
    def value(self) -> Any:
        return self.inside[self.path[-1]]

    def put(self, value: Any) -> None:
        self.inside[self.path[-1]] = value

    @property
    def keys(self) -> list[Any]:
        return list(self.inside) if isinstance(self.inside, dict) else list(range(len(self.inside)))


def changed(rng: Random, document: Any, told: Told, write: Callable[[Any], str]) -> tuple[str, str]:
    """The text of a document with one thing changed, and why it is nonsense; empty if it may not be."""
    whole = copy.deepcopy(document)
    path, inside = _drawn(rng, whole)
    spot = Spot(rng=rng, whole=whole, inside=inside, path=path, told=told, write=write)
    text, nonsense = rng.choice(CHANGES)(spot)
    return text or write(whole), nonsense and f"{nonsense} at {'.'.join(map(str, path))}"


def _drawn(rng: Random, whole: Any) -> tuple[Path_, Any]:
    inside: Any = whole
    path: Path_ = ()
    while True:
        step = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        path, value = (*path, step), inside[step]
        if not (isinstance(value, dict | list) and value) or rng.random() < 0.2:
            return path, inside
        inside = value


Changed = tuple[str, str]
"""The text, if it is not what is written of the document; and why it is nonsense."""


def _dropped(spot: Spot) -> Changed:
    del spot.inside[spot.path[-1]]
    return "", "a key is missing" if spot.told.needed(spot.path) else ""


def _unknown(spot: Spot) -> Changed:
    value: Any = spot.rng.choice((1, "word", True, {}, []))
    if isinstance(spot.inside, list):
        spot.inside.append(value)
        return "", ""
    spot.inside[spot.rng.choice(("nonsense", "", "x" * 300, "наука", "\x00"))] = value
    return "", "" if spot.told.open(spot.path[:-1]) else "an unknown key"


def _other_type(spot: Spot) -> Changed:
    was = spot.value
    others: tuple[Any, ...] = (None, "nonsense", [[]], {"nonsense": 1}, True)
    spot.put(spot.rng.choice([one for one in others if type(one) is not type(was)]))
    return "", "another type" if was is not None and spot.told.typed(spot.path) else ""


def _number(spot: Spot) -> Changed:
    number = spot.rng.choice((0, 1, 2, 3, 7, 0.5, -1, -7, -0.5, 10**9, 2**31, 2**53 + 1, 10**18, 1e300))
    spot.put(number)
    return "", "a negative size" if number < 0 and spot.told.sized(spot.path) else ""


def _not_finite(spot: Spot) -> Changed:
    spot.put(spot.rng.choice(NOT_FINITE))
    return "", "a number that is not finite"


def _endless(spot: Spot) -> Changed:
    spot.put(spot.rng.choice(ENDLESS))
    return "", "an endless number"


def _deep(spot: Spot) -> Changed:
    depth = spot.rng.choice((70, 1000, 100_000))
    spot.put(Raw("[" * depth + "]" * depth))
    return "", "deep nesting"


def _repeated(spot: Spot) -> Changed:
    if isinstance(spot.inside, list):
        spot.inside.append(spot.value)
        return "", ""
    equals = _equals(spot.write)
    twice = f"{json.dumps(spot.path[-1])}{equals}1"
    if spot.write is as_toml and spot.inside is spot.whole:
        return f"{as_toml(spot.whole)}{twice}\n", "a key given twice"
    text = Raw(f"{_written(spot.inside, equals)[:-1]}, {twice}}}")
    if spot.inside is spot.whole:
        return text, "a key given twice"
    around = spot.whole
    for step in spot.path[:-2]:
        around = around[step]
    around[spot.path[-2]] = text
    return "", "a key given twice"


def _cut(spot: Spot) -> Changed:
    text = spot.write(spot.whole).rstrip()
    return text[: spot.rng.randrange(1, len(text))], "the file ends in the middle" if spot.write is as_json else ""


def _noise(spot: Spot) -> Changed:
    text = spot.write(spot.whole)
    at = spot.rng.randrange(len(text))
    return text[:at] + spot.rng.choice(("\x00", "{", "]", '"', "\\", ",", "\ufeff", "#", "0", "e")) + text[at:], ""


def _swapped(spot: Spot) -> Changed:
    here, there = spot.path[-1], spot.rng.choice(spot.keys)
    spot.inside[here], spot.inside[there] = spot.inside[there], spot.inside[here]
    return "", ""


def _similar(spot: Spot) -> Changed:
    was = spot.value
    if isinstance(was, bool):
        spot.put(not was)
    elif isinstance(was, int | float) and math.isfinite(was):
        spot.put(spot.rng.choice((was + 1, was - 1, was * 2, was // 2, -was)))
    elif isinstance(was, str):
        spot.put(spot.rng.choice((was + "x", was[:-1], was.upper(), was[::-1], f" {was}", was * 50)))
    return "", ""


CHANGES: tuple[Callable[[Spot], Changed], ...] = (
    _dropped, _unknown, _other_type, _number, _not_finite, _endless, _deep, _repeated, _cut, _swapped, _noise, _similar,
)  # fmt: skip
