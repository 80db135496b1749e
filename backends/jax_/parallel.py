"""A model of this process under a plan, for a training loop of one's own.

The plan is emitted into a folder of its own, with the model that was given in place of the file's, and the functions of
exactly that script are called: this does what `plan emit` writes, where it can be read.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit.accumulation import data_axes
from meshwright.backends.jax_.emit.files import check_model, emit
from meshwright.backends.jax_.emit.script import SCRIPT
from meshwright.backends.jax_.verify.run import load
from meshwright.backends.subject import Subject
from meshwright.ir.errors import BatchImpossible, DevicesMissing
from meshwright.ir.frontends.door import load_model
from meshwright.ir.frontends.jax_.handed import check_same, handed

HANDED = "meshwright_handed"
"""The module that an emitted script takes its model from, with the hooks of the plan's file."""
HOOKS = ("example_inputs", "loss", "optimizer", "forward")

State = tuple[Any, ...]
"""Parameters, the optimizer's states, and what else the model holds, if steps change it: every device has its own
parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A model under a plan.

    - `script` is the emitted script, as a module: `script.mesh`, `script.stored` (shardings of the parameters),
      `script.loss_of`, `script.step`.
    - `params` are the trained arrays that the model had, `rest` the others; None where the script makes them.
    """

    script: ModuleType
    params: Any | None
    rest: Any | None
    parts: int
    """How many a batch is cut into, over devices and micro-batches."""

    @property
    def mesh(self) -> Any:
        """The mesh of the plan."""
        return self.script.mesh

    def init(self) -> State:
        """What training begins with: the model's own arrays, else what its `init` makes; and the optimizer's states.
        The arrays that were given stay as they are."""
        if self.params is None:
            state: State = self.script.start()
            return state
        cast = getattr(self.script, "cast", None)
        params = self.params if cast is None else cast(self.params, jax.numpy.float32)
        params = _copied(params, self.script.stored)
        states = jax.jit(self.script.optimizer.init, out_shardings=self.script.kept)(params)
        held = getattr(self.script, "held", None)
        if held is None:
            return params, states
        rest = jax.jit(self.script.begin_rest, out_shardings=held)()
        if self.rest is None:
            return params, states, rest
        if isinstance(held, dict) and held.keys() == {"held", "rngs"}:  # beside it what keys are made of
            return params, states, rest | {"held": _copied(self.rest, held["held"])}
        return params, states, _copied(self.rest, held)

    def step(self, state: State, batch: dict[str, Any]) -> tuple[State, Any]:
        """The state after a step on a whole batch, and the loss before it. The state that it is given is donated: its
        arrays are gone."""
        self.check(batch)
        *after, loss = self.script.step(*state, self.script.placed(batch))
        return tuple(after), loss

    def check(self, batch: dict[str, Any]) -> None:
        """Check that a batch has as many sequences as all devices and micro-batches divide."""
        for name, entry in batch.items():
            if len(entry) % self.parts:
                cause = (
                    f"{len(entry)} sequences, which {self.parts} parts on devices and in micro-batches do not divide"
                )
                raise BatchImpossible(place=name, cause=cause, fix=f"give a multiple of {self.parts}")


def _copied(tree: Any, places: Any) -> Any:
    """A copy of each array in its place: parts may share memory with what they are parts of, and a step donates its
    state."""
    return jax.tree.map(lambda one, to: jax.device_put(jax.numpy.copy(one), to), tree, places)


def parallelize(model: Any, subject: Subject, reference: str) -> Applied:
    """A model under a plan for the model of this reference. Raises `PlanOfAnotherModel` for one that has other
    parameters, or computes otherwise."""
    check_model(subject.calls)
    check_devices(subject.ranks, cpus=TARGETS[subject.decisions.target].device == "cpu")
    source: Any = load_model(reference)
    given, places = handed(model), subject.calls.places
    assert places is not None
    check_same(given, source, places, reference, subject.workload.seq)
    hooks = {name: source.beside[name] for name in HOOKS if source.beside.get(name) is not None}
    names = sorted(("given", *hooks))
    text = f'"""The model of this process."""\n\nfrom {HANDED} import {", ".join(names)}\n\n__all__ = {names}\n'
    calls = replace(subject.calls, file=Path("given.py"), factory="given", beside=(("given.py", text),))
    home = sys.modules[HANDED] = ModuleType(HANDED)
    vars(home).update(hooks, given=given.factory)
    with tempfile.TemporaryDirectory() as folder:
        emit(replace(subject, calls=calls), Path(folder)).write(Path(folder))
        script = load(str(Path(folder) / SCRIPT))
    copies = prod(subject.mesh.axis(axis).size for axis in data_axes(subject.program, subject.mesh.names))
    if given.rest is not None and hasattr(script, "rest"):
        script.rest = given.rest
    return Applied(script=script, params=given.params, rest=given.rest, parts=copies * subject.program.microbatches)


def check_devices(ranks: int, *, cpus: bool) -> None:
    """Must: as many devices as the plan has ranks. JAX is asked for those of CPUs, unless it has begun already."""
    try:
        if cpus and jax.config.jax_num_cpu_devices < ranks:
            jax.config.update("jax_num_cpu_devices", ranks)
        found = len(jax.devices())
    except RuntimeError:
        found = 0
    if found < ranks:
        ask = f'ask for them right after importing jax: jax.config.update("jax_num_cpu_devices", {ranks})'
        raise DevicesMissing(
            place="jax",
            cause=f"the plan has {ranks} ranks, and JAX has begun with {len(jax.devices())} devices",
            fix=ask if cpus else f"run where {ranks} devices are, or plan for {len(jax.devices())}",
        )
