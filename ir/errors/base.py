"""What every error is, and the catalogue that a kind of error enters by being defined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

_BY_CODE: dict[str, type[MeshwrightError]] = {}


class MeshwrightError(Exception):
    """Anything that Meshwright refuses. Raised through its subclasses only.

    A subclass without a code of its own is a family: it declares the prefix of its members' codes and their exit code.
    """

    code: ClassVar[str]
    family: ClassVar[str]
    exit_code: ClassVar[int]
    hook: ClassVar[str] = ""
    """Code that a user can paste as it is; a raiser ends the fix with it."""

    def __init_subclass__(cls) -> None:
        """Enter a kind of error into the catalogue."""
        if "code" not in cls.__dict__:
            return
        if not re.fullmatch(rf"{cls.family}\d\d\d", cls.code):
            raise TypeError(f"{cls.__name__}: code {cls.code!r} is not {cls.family!r} and three digits")
        if cls.code in _BY_CODE:
            raise TypeError(f"{cls.__name__}: code {cls.code} is taken by {_BY_CODE[cls.code].__name__}")
        _BY_CODE[cls.code] = cls

    def __init__(self, *, place: str, cause: str, fix: str) -> None:
        """``place``: where; ``cause``: what was found there; ``fix``: what to do, as an instruction."""
        super().__init__(place, cause, fix)
        self.place = place
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        """Return the message as a terminal shows it; further lines of a fix stay at the margin, ready to be pasted."""
        cause = "\n".join(map(_plain, self.cause.split("\n")))
        return f"error {self.code} at {_plain(self.place)}: {cause}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[Callable[..., MeshwrightError], tuple[object, ...]]:
        """Errors cross process boundaries; the default would lose the keywords."""
        return _rebuild, (type(self), self.place, self.cause, self.fix)

    def to_json(self) -> dict[str, object]:
        """Return the error as ``--json`` prints it."""
        return {
            "code": self.code,
            "kind": type(self).__name__,
            "exit_code": self.exit_code,
            "place": self.place,
            "cause": self.cause,
            "fix": self.fix,
        }


@contextmanager
def within(place: str) -> Iterator[None]:
    """Refusals at a place that says what their own is in."""
    try:
        yield
    except MeshwrightError as error:
        if error.place.startswith(place):
            raise
        raise _rebuild(type(error), f"{place}, {error.place}", error.cause, error.fix) from error


def _plain(text: str) -> str:
    """A text that moves no cursor, whatever name of a file is in it."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _rebuild(kind: type[MeshwrightError], place: str, cause: str, fix: str) -> MeshwrightError:
    return kind(place=place, cause=cause, fix=fix)


def catalogue() -> tuple[type[MeshwrightError], ...]:
    """Return every kind of error, by code."""
    return tuple(kind for _, kind in sorted(_BY_CODE.items()))


def closest(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known words that ``word`` may have been meant to be, the likeliest first: those of the same letters,
    then those that are alike. Case does not matter.
    """
    from difflib import get_close_matches

    # Sorted, so that a tie does not depend on the order in which the words were collected.
    spelled = {one.casefold(): one for one in sorted(known, reverse=True)}
    asked = word.casefold()
    words = sorted(spelled)
    letters = sorted(asked)
    swapped = [one for one in words if len(one) == len(asked) and sorted(one) == letters]
    alike = get_close_matches(asked, words, n=most, cutoff=cutoff)
    return [spelled[one] for one in dict.fromkeys((*swapped, *alike))][:most]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` was most likely meant to be, or None if none is close."""
    return next(iter(closest(word, known)), None)


def instead(word: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown word: the one that was meant, or all that there are, in their order."""
    words = list(known)
    meant = nearest(word, words)
    return f"did you mean {meant!r}?" if meant else f"use one of {', '.join(words)}"
