"""What a step holds on TPUs, as planned and as it was compiled."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("jax")

from benchmarks.compiled_for_tpus import RECORD, planned
from meshwright.planner.plan.needs import planned_memory

ROWS = json.loads(RECORD.read_text())
NEAR, WRITTEN_OUT = 0.15, 0.2
"""Of what is held. Without recomputation the scores of attention are kept, which is written out in this model, and
planned as a kernel that keeps none."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}, {row['degrees']['recompute']}")
def test_planned_memory_is_near_what_is_compiled(row: dict[str, Any]) -> None:
    share = max(planned_memory(planned(row["model"], row["degrees"]).program)) / (row["held_mib"] * 2**20)
    assert abs(share - 1) < (NEAR if row["degrees"]["recompute"] == "full" else WRITTEN_OUT)
