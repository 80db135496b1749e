"""A model under a saved plan, for a training loop of one's own.

meshwright.parallelize(model, plan)    this rank's part of a model of torch
meshwright.jax_apply(model, plan)      a model of JAX on all devices: sharded init and step
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.ir.errors import EmissionTarget
from meshwright.planner.plan.emitted import backend_of, subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload


def parallelize(model: Any, plan: str | Path, *, reference: str | None = None) -> Any:
    """This rank's part of a model under a saved plan, by the backend of its target; `reference` says where the model's
    file is, if it has moved.

    Joins the other ranks, unless that is done already, and leaves them when the process ends. Raises
    `PlanOfAnotherModel` for a model with other parameters than the plan's.
    """
    return _under(model, plan, reference, by_rank=True)


def jax_apply(model: Any, plan: str | Path, *, reference: str | None = None) -> Any:
    """A model of JAX under a saved plan: `init()` makes a sharded state, `step(state, batch)` the next one and a loss;
    `reference` says where the model's file is, if it has moved.

    The model is an NNX or Equinox module with its arrays, a Linen module, a pair of one and its variables, or `(init,
    apply)`. Loss, optimizer and example inputs are those of the plan's file. Raises `PlanOfAnotherModel` for a model
    with other parameters or another step than the plan's, `DevicesMissing` where there are fewer devices than ranks.
    """
    return _under(model, plan, reference, by_rank=False)


def _under(model: Any, plan: str | Path, reference: str | None, *, by_rank: bool) -> Any:
    """The model under a plan whose ranks have parts of it of their own, or have none."""
    again = reload(load_plan(plan), reference)
    subject = subject_of(again)
    found = backend_of(subject)
    if found.by_rank() != by_rank:
        raise EmissionTarget(
            place=f"target {subject.decisions.target}",
            cause="its ranks have no part of a model of their own" if by_rank else "each of its ranks has its own part",
            fix=f"call meshwright.{'jax_apply' if by_rank else 'parallelize'}",
        )
    return found.parallelize(model, subject, again.ask.model)
