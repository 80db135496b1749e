"""Measured memory of emitted plans beside the planned one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject
from meshwright.planner.plan.needs import planned_memory

NEAR = 0.05
"""What the planned and the measured fullest instant may be apart."""


def assert_planned(plan: Subject, found: Verified, unread: Sequence[int] = ()) -> None:
    """On every rank. `unread` are bytes of entries of its batch that the model does not read, which no plan has."""
    planned = planned_memory(plan.program)
    held = [one + more for one, more in zip(planned, unread or [0] * len(planned), strict=True)]
    assert held == pytest.approx(found.memory, rel=NEAR)


def assert_fullest_planned(plan: Subject, found: Verified) -> None:
    """On the fullest rank: where ranks hold what experts are sent, which is not planned by rank."""
    planned = planned_memory(plan.program)
    assert len(found.memory) == len(planned)
    assert max(planned) == pytest.approx(max(found.memory), rel=NEAR)
