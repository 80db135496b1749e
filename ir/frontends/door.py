"""Front ends by framework, loaded when they are asked for, and the functions that the planner calls on each.

A front end is the module `door` of its package: the functions of `FrontEnd`. Those of this module find the one that a
model is of; nothing else knows how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from meshwright.ir.errors import FactoryRaised, ModelFileMissing, ModelKindUnknown
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.store import Store
from meshwright.ir.frontends.contract import Factory, find_factory
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, blamed
from meshwright.ir.frontends.remembered import Loaded, Remembered
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.constants import Constant

FRONT_ENDS = ("jax_", "torch_")
"""Packages beside this module, in the order in which they are asked whether a model is theirs."""


class Source(Loaded, Protocol):
    """A model to plan for."""

    @property
    def beside(self) -> Mapping[str, Any]:
        """The hooks in the factory's file."""

    def in_dtype(self, dtype: str) -> Source:
        """The source with parameters that the factory made in fp32 in the dtype of a workload."""

    def as_made(self) -> Source | None:
        """The source with all parameters in the dtypes in which the factory made them; None if they are."""


class FrontEnd(Protocol):
    """The reader of one framework's models."""

    def from_file(self, path: Path, dtype: str | None) -> Source | None:
        """The model of a file that is not Python; None if this front end reads no such file."""

    def from_factory(
        self, factory: Factory, time_limit_s: float, mesh: tuple[tuple[str, int], ...] = ()
    ) -> Source | None:
        """The model of a factory, with the hooks beside it; None if it is of another framework. With a mesh, its code's
        own shardings are asked for, which are of these axes."""

    def from_object(self, model: Any, hooks: Mapping[str, Any]) -> Source | None:
        """A model that exists already; None if it is of another framework."""

    def capture_of(self, source: Any, *, batch: int, seq: int, seed: int) -> Captured:
        """The fold of a model's training step on `batch` sequences of `seq` tokens."""

    def calls_of(
        self,
        source: Any,
        reference: str,
        *,
        batch: int,
        seq: int,
        constants: Mapping[str, Constant] | None,
        stacks: Sequence[Stack],
    ) -> Calls:
        """The calls of a model on a batch; `constants` and `stacks` are those of its capture. Raises `EmissionModel`
        for a model that emitted code cannot call."""

    def twin_of(self, source: Any, reference: str, scale: Scale) -> Twin:
        """The small twin of the model that `reference` names. Raises `NoTwin`."""


def read_again(
    reference: str, *, dtype: str, mesh: tuple[tuple[str, int], ...] = (), store: Store | None = None
) -> Source:
    """The model that MODEL names, in the dtype of a workload, as `load_model` gives it; or, with a store, what an
    earlier run kept of it."""

    def load() -> Source:
        return load_model(reference, dtype=dtype, mesh=mesh).in_dtype(dtype)

    return load() if store is None else Remembered.of(store, load, front_end, reference, dtype, mesh)


def _reader(source: Source) -> Any:
    """What is asked of a source: the front end of its framework, or the source itself where it was kept."""
    return source if isinstance(source, Remembered) else front_end(source.framework)


def front_end(framework: str) -> FrontEnd:
    """The front end of a framework, by its package."""
    return import_module(f"meshwright.ir.frontends.{framework}.door")


def _front_ends() -> Iterator[FrontEnd]:
    return map(front_end, FRONT_ENDS)


# Models ---------------------------------------------------------------------------------------------------------------


def load_model(
    reference: str,
    *,
    dtype: str | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    mesh: tuple[tuple[str, int], ...] = (),
) -> Source:
    """The model that MODEL names on the command line:

    file.py:factory        what a factory makes, with the hooks beside it
    a directory, *.json    a Hugging Face configuration
    *.toml                 a shape

    `dtype` is for configurations and shapes; a factory decides for itself. With a mesh, the code's own shardings are
    asked for.
    """
    path = Path(reference)
    if path.suffix == ".py" or ".py:" in reference:
        with blamed(reference):
            factory = find_factory(reference, time_limit_s=time_limit_s)
            return next(found for one in _front_ends() if (found := one.from_factory(factory, time_limit_s, mesh)))
    for one in _front_ends():
        if (found := one.from_file(path, dtype)) is not None:
            return found
    if not os.path.exists(path):  # noqa: PTH110 - Path raises where a name is too long
        fix = f"{did_you_mean(reference)}give file.py:factory, a directory or a file"
        raise ModelFileMissing(place=reference, cause="there is no such file", fix=fix)
    raise ModelKindUnknown(
        place=reference,
        cause=f"{path.name} is no model",
        fix="give file.py:factory, a Hugging Face directory or config.json, or a .toml",
    )


def load_made(make: Callable[[], Any], place: str, hooks: Mapping[str, Any]) -> Source:
    """The model of a factory that is at hand, with the hooks that are given or stand beside it."""
    factory = Factory(make, {**getattr(make, "__globals__", {}), **hooks}, place, make.__name__)
    with blamed(place):
        return next(found for one in _front_ends() if (found := one.from_factory(factory, TIME_LIMIT_S)))


def load_object(model: Any, **hooks: Any) -> Source:
    """A model that exists already, with the hooks of the contract."""
    for one in _front_ends():
        if (found := one.from_object(model, hooks)) is not None:
            return found
    raise FactoryRaised(
        place=type(model).__qualname__,
        cause="it is a model of no framework that is read here",
        fix="give a torch.nn.Module, or file.py:factory",
    )


def capture(source: Source, *, batch: int, seq: int, seed: int = 0) -> Captured:
    """The fold of a model's training step on `batch` sequences of `seq` tokens. The seed draws the blocks that are
    traced for all that are like them; it changes nothing if they are."""
    found: Captured = _reader(source).capture_of(source, batch=batch, seq=seq, seed=seed)
    return found


def calls_of(
    source: Source,
    reference: str,
    *,
    batch: int,
    seq: int,
    constants: Mapping[str, Constant] | None = None,
    stacks: Sequence[Stack] = (),
) -> Calls:
    """The calls of a model on a batch. Raises `EmissionModel` for a model that emitted code cannot call."""
    found: Calls = _reader(source).calls_of(source, reference, batch=batch, seq=seq, constants=constants, stacks=stacks)
    return found


def twin_of(source: Source, reference: str, scale: Scale) -> Twin:
    """The small twin of the model that `reference` names. Raises `NoTwin`."""
    found: Twin = _reader(source).twin_of(source, reference, scale)
    return found
