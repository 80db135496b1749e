"""The fullest instant of a list of statements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mix:
    """Bytes by category."""

    activations: float = 0.0
    recomputed: float = 0.0
    transient: float = 0.0
    logits: float = 0.0

    @property
    def total(self) -> float:
        return self.activations + self.recomputed + self.transient + self.logits


@dataclass(frozen=True, slots=True)
class Fullest:
    """The fullest instant of a list: its bytes, and whether a recomputed value was being made (`recomputing`)."""

    held: Mix
    recomputing: bool = False
    routed: bool = False
    """Whether experts ran."""
