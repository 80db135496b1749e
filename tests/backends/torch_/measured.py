"""Measured memory of emitted plans beside the planned one."""

from __future__ import annotations

import pytest

from meshwright.backends.torch_.emit import Subject
from meshwright.backends.torch_.verify.emitted import Verified
from meshwright.planner.verify import planned_memory

NEAR = 0.05
"""What the planned and the measured fullest instant may be apart."""


def assert_planned(plan: Subject, found: Verified, near: float = NEAR, *, routed: bool = False) -> None:
    """On every rank; on the fullest one where ranks hold what is `routed` to them, which is not planned by rank."""
    planned = planned_memory(plan.program)
    assert len(found.memory) == len(planned)
    if routed:
        assert max(planned) == pytest.approx(max(found.memory), rel=near)
    else:
        assert planned == pytest.approx(found.memory, rel=near)
