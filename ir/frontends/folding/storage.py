"""Storage of traced tensors: from tensors that are written in place to values that are written once.

A traced program writes into tensors: `x.div_(y)`, `out[:, 1:] = x`, a running mean. A graph has no writes. Between the
two stands the *cell*: what a name in the traced program denotes. A cell is either a root, which owns storage, or a view
of another cell. A cell can be read, which gives the current value, and written, which gives its root a new one:

    write to a root    the root's value is the new one
    write to a view    the parent is written with the new part put back in its place (a transpose is transposed back)
    read of a view     if its root was written since, the view is taken again

That is functionalization, as in torch; it is done here because torch's own pass rewrites the operators that we want to
keep, and costs as much time as the trace itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Cell(Generic[V]):
    """The tensor of a traced name. A view knows how to be taken (`take`) from its parent's value, and how to be put
    back (`put`) into it."""

    def __init__(
        self,
        value: V | None,
        parent: Cell[V] | None = None,
        take: Callable[[V], V] | None = None,
        put: Callable[[V, V], V] | None = None,
    ) -> None:
        self.value = value
        self.parent = parent
        self.root: Cell[V] = parent.root if parent is not None else self
        self.version = 0
        self._seen = self.root.version if value is not None else -1
        self._take = take
        self._put = put

    def read(self) -> V:
        """The current value."""
        if self.parent is not None and self._take is not None and self._seen != self.root.version:
            self.value = self._take(self.parent.read())
            self._seen = self.root.version
        if self.value is None:
            raise AssertionError("a cell without a value")
        return self.value

    def write(self, value: V) -> None:
        """Give the tensor a new value, and with it every tensor that shares its storage."""
        if self.parent is None or self._put is None:
            self.version += 1
        else:
            self.parent.write(self._put(self.parent.read(), value))
        self.value = value
        self._seen = self.root.version
