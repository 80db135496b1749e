"""What a step holds on TPUs, as planned and as it was compiled."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("jax")

from benchmarks.compiled_for_tpus import RECORD, planned
from meshwright.planner.plan.needs import planned_memory

ROWS = json.loads(RECORD.read_text())
NEAR = 0.1
"""Of what is held."""


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['model']}, {row['degrees']['recompute']}, {row.get('seq', 512)}"
)
def test_planned_memory_is_near_what_is_compiled(row: dict[str, Any]) -> None:
    plan = planned(row["model"], row["degrees"], batch=row.get("batch"), seq=row.get("seq"))
    assert abs(max(planned_memory(plan.program)) / (row["held_mib"] * 2**20) - 1) < NEAR
