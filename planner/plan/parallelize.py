"""`meshwright.parallelize(model, plan)`: this rank's part of a model, for a training loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.planner.plan.emitted import backend_of, subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload


def parallelize(model: Any, plan: str | Path, *, reference: str | None = None) -> Any:
    """This rank's part of a model under a saved plan, by the backend of its target; `reference` says where the model's
    file is, if it has moved.

    Joins the other ranks, unless that is done already, and leaves them when the process ends. Raises
    `PlanOfAnotherModel` for a model with other parameters than the plan's.
    """
    again = reload(load_plan(plan), reference)
    subject = subject_of(again)
    return backend_of(subject).parallelize(model, subject, again.ask.model)
