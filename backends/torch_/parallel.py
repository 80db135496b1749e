"""This rank's part of a model under a plan, for a training loop of one's own.

The plan is emitted into a folder of its own, and the functions of exactly that script are called: this does what `plan
emit` writes, where it can be read. Every rank calls it, with the same whole model.
"""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import lcm, prod
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.printed.axes import axes_of
from meshwright.backends.torch_.emit.read.heterogeneous import kinds_of
from meshwright.backends.torch_.emit.write.frame.entry import GLOO_ENDS_S
from meshwright.backends.torch_.emit.write.script import SCRIPT
from meshwright.backends.torch_.verify.run.loading import load
from meshwright.ir.analysis.account import parameters
from meshwright.ir.errors import BatchImpossible, OptimizerElsewhere, PlanOfAnotherModel
from meshwright.ir.graph.fold import Fold
from meshwright.ir.sharding.shares import shares_along


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelized:
    """This rank's part of a model.

    - `module` is what to call instead of the model; names of parameters stay. Make the optimizer of its parameters, or
      by `optimizer`, which a plan with its state on the host asks for.
    - `schedule` runs the stages of a pipeline; None where there is one stage.
    """

    module: Any
    schedule: Any | None
    mesh: Any
    script: ModuleType
    """The emitted script, as a module."""
    parts: int = 1
    """How many a batch is cut into, over ranks and micro-batches."""

    def optimizer(self, make: Callable[[list[Any]], Any]) -> Any:
        """An optimizer of the trained parameters, made by a function such as `lambda params: AdamW(params)`. Its state
        lies where the plan has it."""
        if self.on_host:
            return self.script.make_optimizer(self.module, make)
        return make([parameter for parameter in self.module.parameters() if parameter.requires_grad])

    @property
    def on_host(self) -> bool:
        """Whether the plan has the optimizer's state in the host's memory."""
        return hasattr(self.script, "OnHost")

    def step(self, optimizer: Any, batch: dict[str, Any]) -> Any:
        """One step on a whole batch, of which every rank takes its part; returns the loss of all of it."""
        self.check(batch)
        if self.on_host and not isinstance(optimizer, self.script.OnHost):
            raise OptimizerElsewhere(
                place=type(optimizer).__name__,
                cause="its state is beside the parameters, and in the host's memory as planned",
                fix="make it by part.optimizer(make), or plan with --fix offload=none",
            )
        own = getattr(self.script, "own_part", None)
        mine = batch if own is None else own(batch, self.mesh)
        return self.script.train_step(self.module, optimizer, mine, self.mesh)

    def check(self, batch: dict[str, Any]) -> None:
        """Check that a batch has as many sequences as all ranks and micro-batches divide, and as planned where stages
        expect it."""
        rows, planned = {name: len(tensor) for name, tensor in batch.items()}, self.script.GLOBAL_BATCH
        for name, found in rows.items():
            if self.schedule is not None and found != planned:
                fix = f"give batches of {planned}, or plan with this --global-batch"
                raise BatchImpossible(place=name, cause=f"{found} sequences, and stages expect {planned}", fix=fix)
            if found % self.parts:
                cause = f"{found} sequences, which {self.parts} parts on ranks and in micro-batches do not divide"
                raise BatchImpossible(place=name, cause=cause, fix=f"give a multiple of {self.parts}")


def parallelize(model: Any, subject: Subject, reference: str) -> Parallelized:
    """This rank's part of a model under a plan for the model of this reference.

    Joins the other ranks, unless that is done already, and leaves them when the process ends. Raises
    `PlanOfAnotherModel` for a model with other parameters than the plan's.
    """
    same_parameters(model, subject.fold, reference)
    with tempfile.TemporaryDirectory() as folder:
        emit(subject, Path(folder)).write(Path(folder))
        script = load(str(Path(folder) / SCRIPT))
        if not script.dist.is_initialized():
            atexit.register(_leave, script.dist)
        mesh = script.start()
        module = script.parallelize(model, mesh)
    kinds = [(kind, axes_of(kind).batch) for kind in kinds_of(subject)]
    parts = lcm(*(prod(kind.mesh.axis(axis).size for axis in batch) for kind, batch in kinds))
    parts = sum(shares_along(subject.decisions, kinds[0][1])) or parts
    return Parallelized(
        module=module,
        schedule=getattr(module, "schedule", None),
        mesh=mesh,
        script=script,
        parts=parts * subject.decisions.schedule.microbatches,
    )


def _leave(ranks: ModuleType) -> None:
    """Leave the process group, whose threads would be cut off where the process ends; a loop may have done so. Those of
    gloo go on, and need Python to let go of their last tensors: it must not be ending by then (`GLOO_ENDS_S`)."""
    if ranks.is_initialized():
        gloo = ranks.get_backend() == "gloo"
        ranks.destroy_process_group()
        if gloo:
            time.sleep(GLOO_ENDS_S)


def same_parameters(model: Any, fold: Fold, reference: str) -> None:
    """Check that a model has the parameters that the plan places; the cause of a refusal is the first that differs."""
    planned = {path: type_.shape for path, (param, type_) in parameters(fold).items() if not param.buffer}
    given = {path: tuple(one.shape) for path, one in model.named_parameters(remove_duplicate=False)}
    for path, shape in planned.items():
        if given.get(path) != shape:
            found = f"is {given[path]} here" if path in given else "is not there"
            raise PlanOfAnotherModel(
                place=f"{type(model).__name__}, {path}",
                cause=f"it {found}, and {shape} in the plan's model, {reference}",
                fix="give the model that was planned, or plan this one",
            )
    extra = [path for path in model.state_dict() if path in given and path not in planned]
    if extra and len(set(model.parameters())) != len(planned):
        raise PlanOfAnotherModel(
            place=f"{type(model).__name__}, {extra[0]}",
            cause=f"the plan's model, {reference}, has no such parameter",
            fix="give the model that was planned, or plan this one",
        )
