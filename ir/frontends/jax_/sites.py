"""Where equations stand in a jaxpr: what code that runs the same jaxpr finds values by.

An equation is known by its number in its own jaxpr, after those of the equations whose bodies it lies in. The numbers
are those of a jaxpr as it was traced: what nothing reads is numbered, too, since other code need not leave it out. So
`Sites` is made of that one, and knows the equations of the jaxpr that was made of it by the variables they give.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any


class Sites:
    """The numbers of all equations of a jaxpr, bodies included."""

    def __init__(self, closed: Any) -> None:
        self.closed = closed  # variables are known by identity
        self.known = {
            id(var): (at, one) for jaxpr in _jaxprs(closed) for at, one in enumerate(jaxpr.eqns) for var in one.outvars
        }

    def number(self, equation: Any) -> int:
        """That of an equation, which may lack some results; -1 if it gives nothing that is known."""
        return self._known(equation)[0]

    def operand(self, equation: Any, at: int) -> int:
        """Which operand it was of an equation that has lost some."""
        whole = self._known(equation)[1]
        return next((place for place, var in enumerate(whole.invars) if var is equation.invars[at]), at)

    def _known(self, equation: Any) -> tuple[int, Any]:
        return next((self.known[id(var)] for var in equation.outvars if id(var) in self.known), (-1, equation))

    @property
    def check(self) -> int:
        """A sum over the names of all primitives, in order: another one means another jaxpr."""
        return zlib.crc32(" ".join(_names(self.closed)).encode())


def site(numbers: Sequence[int]) -> str:
    """As it is written: `17/3`."""
    return "/".join(map(str, numbers))


def bodies(equation: Any) -> Iterator[Any]:
    """The jaxprs that an equation runs."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(inner := getattr(one, "jaxpr", one), "eqns"):
                yield inner


def _jaxprs(closed: Any) -> Iterator[Any]:
    jaxpr = getattr(closed, "jaxpr", closed)
    yield jaxpr
    for equation in jaxpr.eqns:
        for body in bodies(equation):
            yield from _jaxprs(body)


def _names(closed: Any) -> Iterator[str]:
    for equation in getattr(closed, "jaxpr", closed).eqns:
        yield equation.primitive.name
        for body in bodies(equation):
            yield from _names(body)
