"""Which of two moments holds at least as much."""

from __future__ import annotations

from meshwright.ir.schedules import Moment


def exceeds(one: Moment, other: Moment) -> bool:
    """Whether the one runs the same action and holds as much as the other, or more, throughout."""
    same = (one.kind, one.stage) == (other.kind, other.stage)
    return same and all(a >= b for a, b in zip(_counts(one), _counts(other), strict=True))


def _counts(one: Moment) -> tuple[int, ...]:
    return *one.live, *one.pending, *one.graded, *one.back
