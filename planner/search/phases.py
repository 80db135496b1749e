"""The phases of an answer, in their order, for whoever shows how it goes on.

Rooms that work are given a `Told`, and call it: before a phase without a search, after every piece of work with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meshwright.planner.search.search import Search

TRACING = "tracing the model"
PRICING = "pricing plans that a person would write"
SEARCHING = "searching"
REFINING = "refining"


class Told(Protocol):
    """What is told of a phase as it begins or goes on."""

    def __call__(self, phase: str, search: Search | None = None, /) -> None: ...


def untold(phase: str, search: Search | None = None, /) -> None:
    """Tell nobody."""
