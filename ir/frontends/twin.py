"""The small twin of a model, whatever its framework: how small, and what it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How small: blocks of every stack, and tokens, which windows are measured by."""

    layers: int
    seq: int
    tokens: int
    """Of the model's own workload."""
    words: int = 0
    """Indices that the model's own batches have are below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A twin as the command line names models; and the text of the file that has to be written for it, if one has, for
    the folder that it is to be in."""

    reference: str
    text: Callable[[Path], str] | None = None

    def files(self, folder: Path) -> tuple[tuple[str, str], ...]:
        """Names and texts."""
        return ((self.reference.partition(":")[0], self.text(folder)),) if self.text is not None else ()
