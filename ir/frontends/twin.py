"""The small twin of a model, whatever its framework: its scale and its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scale of a twin: blocks of every stack, and tokens, by which windows are measured."""

    layers: int
    seq: int
    tokens: int
    """Of the model's own workload."""
    words: int = 0
    """Indices that the model's own batches have are below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A twin by the name that the command line takes, with the text of the file that has to be written for it, if there
    is one."""

    reference: str
    text: Callable[[Path], str] | None = None

    def files(self, folder: Path) -> tuple[tuple[str, str], ...]:
        """The files to write, by name."""
        return ((self.reference.partition(":")[0], self.text(folder)),) if self.text is not None else ()
