"""A traced run beside its plan: the step, and what it goes to, measured and predicted.

A trace does not say which plan it is of, so nothing of it is held against the plan but its times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.planner.answer.compare import Row, inside
from meshwright.planner.answer.traced.step import PARTS, Measured, predicted_parts
from meshwright.planner.plan.file import FILE
from meshwright.planner.plan.types import Plan

STEP, TOKENS = "step_time_s", "tokens_per_s"


def rows(plan: Plan, measured: Measured) -> Iterator[Row]:
    """The figures that are compared; parts are those of the step that is shown, and of the whole predicted step."""
    predicted = plan.prediction
    yield Row(STEP, measured.step_time_s, predicted.step_time_s)
    tokens = plan.workload.tokens
    yield Row(TOKENS, tokens / measured.step_time_s, predicted.tokens_per_s_per_gpu * plan.machines.ranks)
    ours, theirs = measured.parts, predicted_parts(predicted, on_device=measured.on_device)
    yield from (Row(name, ours[name], theirs[name]) for name in PARTS)


def to_json(plan: Plan, measured: Measured) -> dict[str, Any]:
    """The comparison as docs/emit.md describes it."""
    return {
        "plan": {"file": FILE, "config": plan.config.to_json()},
        "by": measured.by,
        "ranks": [rank.name for rank in measured.ranks],
        "steps": measured.steps,
        "skipped": measured.skipped,
        "step": measured.number,
        "slowest_s": measured.slowest_s,
        "predicted_low_s": plan.prediction.step_time_low_s,
        "predicted_high_s": plan.prediction.step_time_high_s,
        "inside": inside(plan, measured.step_time_s),
        "figures": {
            row.name: {"measured": row.measured, "predicted": row.predicted, "ratio": row.ratio}
            for row in rows(plan, measured)
        },
    }
