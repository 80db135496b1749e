"""Settings of a model: tables and lists of numbers, read and changed by their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str | int, ...]


def numbers(settings: Any, at: Path = ()) -> Iterator[tuple[Path, int | float]]:
    """All numbers, with their places."""
    if isinstance(settings, Mapping):
        for name, one in settings.items():
            yield from numbers(one, (*at, name))
    elif isinstance(settings, list | tuple):
        for index, one in enumerate(settings):
            yield from numbers(one, (*at, index))
    elif isinstance(settings, int | float):
        yield at, settings


def put(settings: Any, changed: Mapping[Path, Any], at: Path = ()) -> Any:
    """The settings, with other values in these places."""
    if at in changed:
        return changed[at]
    if isinstance(settings, Mapping):
        return {name: put(one, changed, (*at, name)) for name, one in settings.items()}
    if isinstance(settings, list | tuple):
        return type(settings)(put(one, changed, (*at, index)) for index, one in enumerate(settings))
    return settings


def value_at(settings: Any, path: Path) -> Any:
    """The value of the settings in this place."""
    for part in path:
        settings = settings[part]
    return settings


def cut(settings: Any, length: int, few: int) -> Any:
    """The settings, with all lists of this length cut off: they have an entry for every block; and without the entries
    of blocks that are gone, where all names are indices."""
    if isinstance(settings, Mapping):
        indices = all(str(name).isdecimal() and int(name) < length for name in settings)
        kept = {name: one for name, one in settings.items() if not indices or int(name) < few}
        return {name: cut(one, length, few) for name, one in kept.items()}
    if isinstance(settings, list | tuple):
        return settings[:few] if len(settings) == length else settings
    return settings
