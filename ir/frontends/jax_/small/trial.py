"""Trials of a model in JAX: built of settings, and traced.

    settings  ->  a source  ->  the jaxpr of one step, flat  ->  Run

A trace makes no weight, so a trial takes some tens of milliseconds whatever its numbers are. A block of a scan over
stacked parameters is a block like any other: its parameters are those of the stack without the first dimension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import jax
import numpy as np

from meshwright.ir.frontends.jax_.dtypes import is_key
from meshwright.ir.frontends.jax_.flat import Equation, Flat, flattened
from meshwright.ir.frontends.jax_.primitives import elementwise
from meshwright.ir.frontends.jax_.rooms import blocks_of
from meshwright.ir.frontends.jax_.source import JaxSource, example_batch, loss_of, traced
from meshwright.ir.frontends.small.runs import (
    BATCH,
    CONVOLUTION,
    ELEMENTWISE,
    LOOK_UP,
    Kinds,
    Run,
    Settings,
    Shape,
    Step,
    tried,
)

VIEWS = frozenset(("convert_element_type", "transpose", "reshape", "squeeze", "broadcast_in_dim", "copy", "slice"))
"""Equations that show a parameter otherwise, and do not read it."""
READING = {"gather": LOOK_UP, "conv_general_dilated": CONVOLUTION} | dict.fromkeys(elementwise.TABLE, ELEMENTWISE)
KEYS = ("random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_split", "random_clone")
"""Equations that make keys of random numbers, and draw none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A model of settings: its source, and one step of it."""

    source: JaxSource
    flat: Flat

    @property
    def narrow(self) -> str:
        """The line of an equation that computes in less than fp32, or a parameter that is kept so, if there is one."""
        low = ("bf16", "f16", "f8e4m3", "f8e5m2")
        held = (leaf.path for leaf in self.flat.leaves.values() if leaf.type.dtype in low)
        made = (one.source for one in self.flat.equations if any(type_.dtype in low for type_ in one.types))
        return next((place for found in (held, made) for place in found if place), "")


def trial_of(source: JaxSource, seq: int) -> Tried:
    """The trial of a model as it is."""
    step = traced(source, example_batch(source, BATCH, seq))
    return Tried(source=source, flat=flattened(step.jaxpr, step.leaves, whole=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is built of settings (`meshwright.ir.frontends.small.runs.Recipe`). What settings mean may last no
    longer than `build`'s context: a file has one set of numbers at a time."""

    settings: Settings
    build: Callable[[Settings], Any]
    """A context in which the model of settings is: its source."""
    whole: Tried
    seq: int

    def skeleton(self, model: Tried) -> Run:
        """The tensors that a model holds."""
        return skeleton(model)

    def built(self, settings: Settings) -> Tried | None:
        """The model of settings, if they are possible."""
        with tried(self.whole.source.place), self.build(settings) as source:
            return trial_of(source, self.seq)
        return None

    def run(self, model: Tried, settings: Settings, seq: int) -> tuple[Run | None, int]:
        """The tensors and operators of a model, which was traced when it was built."""
        return ran(model), len(model.flat.equations)

    def computed(self, settings: Settings, seq: int) -> float | None:
        """The loss of the model of settings on values that are drawn, if it is a number."""
        with tried(self.whole.source.place), self.build(settings) as source:
            return computed(source, seq)
        return None

    def exactly(self) -> None:
        """Trials are traces."""


# Runs ----------------------------------------------------------------------------------------------------------------


def skeleton(model: Tried) -> Run:
    """The tensors that a model holds, in the form in which products read them."""
    forms = dict(_forms(model.flat))
    held = {
        kind: {
            leaf.path: forms.get(value, leaf.type.shape)
            for value, leaf in model.flat.leaves.items()
            if leaf.kind == kind
        }
        for kind in ("param", "buffer")
    }
    return Run(parameters=held["param"], buffers=held["buffer"], kinds=_kinds(held["param"]))


def _kinds(parameters: Mapping[str, Shape]) -> Kinds:
    blocks: dict[str, dict[int, list[str]]] = {}
    for path in parameters:
        for block in blocks_of(path):
            inside = ".".join("*" if part.isdigit() else part for part in block.rest.split("."))
            blocks.setdefault(block.prefix, {}).setdefault(block.number, []).append(inside)
    return {prefix: Counter(tuple(dict.fromkeys(held)) for held in of.values()) for prefix, of in blocks.items()}


def _forms(flat: Flat) -> Iterator[tuple[int, Shape]]:
    """Parameters of more than two dimensions that a product reads as they are: as matrices, or stacks of them. What is
    summed over is one dimension, and so is what is not: heads and what they hold."""
    shown = {value: value for value in flat.leaves}
    for one in flat.equations:
        first = one.inputs[0] if one.inputs else None
        if one.name in ("convert_element_type", "copy") and isinstance(first, int) and first in shown:
            shown[one.outputs[0]] = shown[first]
        if one.name != "dot_general":
            continue
        contracted, batched = one.params["dimension_numbers"]
        for at, value in enumerate(one.inputs):
            if isinstance(value, int) and value in shown and len(flat.types[value].shape) > 2:
                yield shown[value], _form(flat.types[value].shape, contracted[at], batched[at])


def _form(shape: Shape, contracted: tuple[int, ...], batched: tuple[int, ...]) -> Shape:
    free = [dim for dim in range(len(shape)) if dim not in (*contracted, *batched)]
    parts = sorted(((*contracted,), (*free,)), key=lambda dims: dims[:1])
    return (*(shape[dim] for dim in batched), *(prod(shape[dim] for dim in dims) for dims in parts))


def ran(model: Tried) -> Run:
    """The tensors that a model holds, and the operators of a step."""
    held, flat = skeleton(model), model.flat
    shown = {value: leaf.path for value, leaf in flat.leaves.items() if leaf.kind == "param"}
    words = {value for value, leaf in flat.leaves.items() if leaf.kind == "input" and _whole(flat, value)}
    steps: list[Step] = []
    read_by: dict[str, str] = {}
    for one in flat.equations:
        values = [value for value in one.inputs if isinstance(value, int)]
        for value in values:
            if value in shown and one.name not in VIEWS:
                read_by.setdefault(shown[value], READING.get(one.name, one.name))
        if one.name in VIEWS and values and values[0] in shown:
            shown[one.outputs[0]] = shown[values[0]]
        said = values[1:] if one.name == "gather" else values  # what a table says is no entry, whatever asked it
        of_words = not words.isdisjoint(said)
        if of_words:
            words |= {value for value in one.outputs if _whole(flat, value)}
        steps.append(_step(flat, one, of_words=of_words))
    return Run(parameters=held.parameters, buffers=held.buffers, kinds=held.kinds, steps=tuple(steps), read_by=read_by)


def _whole(flat: Flat, value: int) -> bool:
    """Whether a value may say where something is: what is true or not of an entry, or counts that, does not."""
    return flat.types[value].dtype in ("i64", "i32", "i16", "i8", "u8")


def _step(flat: Flat, one: Equation, *, of_words: bool) -> Step:
    draws = one.name.startswith("random_") and one.name not in KEYS
    first = one.inputs[0] if one.inputs else None
    shape = flat.types[first].shape if isinstance(first, int) else ()
    looked_up = one.params["dimension_numbers"].collapsed_slice_dims if one.name == "gather" else ()
    return Step(
        name=one.name,
        shapes=tuple(type_.shape for type_ in one.types),
        chances=() if draws else None,
        rows=shape[looked_up[0]] if looked_up else None,
        words=of_words and one.name == "gather",
        chosen=(one.types[0].shape[-1], shape[-1]) if one.name == "top_k" else None,
    )


# Values --------------------------------------------------------------------------------------------------------------


def computed(source: JaxSource, seq: int) -> float | None:
    """The loss of a model on values that are drawn: the same for the same shapes."""
    make = source.hooks["example_inputs"]
    if make is None:
        return None
    drawn = np.random.default_rng(0)
    with jax.default_device(jax.devices("cpu")[0]):
        batch = jax.tree.map(lambda one: _entry(drawn, np.asarray(one)), make(BATCH, seq))
        model = source.made(jax.eval_shape(lambda: batch))
        state = jax.tree.map(lambda one: _drawn(drawn, one), model.state)
        loss = float(jax.jit(lambda state, batch: loss_of(source, model.run(state, batch)[0], batch))(state, batch))
    return loss if isfinite(loss) else None


def _drawn(drawn: np.random.Generator, leaf: Any) -> Any:
    if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
        return jax.random.split(jax.random.key(0), leaf.shape) if is_key(leaf) else np.zeros(leaf.shape, leaf.dtype)
    low, high = (-0.1, 0.1) if len(leaf.shape) > 1 else (0.5, 1.5)
    return drawn.uniform(low, high, leaf.shape).astype(leaf.dtype)


def _entry(drawn: np.random.Generator, entry: Any) -> Any:
    """An entry of a batch; of indices that are all alike some that are not, which may be too large (classes)."""
    alike = np.issubdtype(entry.dtype, np.integer) and entry.size and np.all(entry == entry.flat[0])
    return drawn.integers(0, 8, entry.shape).astype(entry.dtype) if alike else entry
