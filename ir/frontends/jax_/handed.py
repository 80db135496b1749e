"""A model of JAX that exists already, in place of the one that a plan's file makes.

In: an NNX or Equinox module with its arrays, a Linen module (alone, or in a pair with its variables), or `(init,
apply)`; and the source of the plan's file, whose hooks stay. Out: a factory of the model that makes no trained array
of its own, and the arrays that it has.

Must: the same leaves as the model of the plan, and a step of the same equations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from meshwright.ir.errors import PlanOfAnotherModel
from meshwright.ir.frontends.jax_.models import is_linen, model_of
from meshwright.ir.frontends.jax_.sites import Sites
from meshwright.ir.frontends.jax_.source import JaxSource, example_batch, refused, traced
from meshwright.ir.graph.calls import Places

BATCH = 2
"""Sequences that a step is traced on: its equations are the same for any batch."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A model's factory, and its trained arrays as the model's framework has them; None if it has none yet."""

    factory: Callable[[], Any]
    params: Any | None
    rest: Any | None = None
    """Its other arrays; None if it has none yet, or the factory gives them."""


def handed(model: Any) -> Handed:
    """The model that was handed over. It is not changed: what a step is told of it is a copy."""
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None and isinstance(model, nnx.Module):
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        return Handed(lambda: nnx.merge(graph, _zeros(params), rest), params)
    if equinox is not None and isinstance(model, equinox.Module):
        trained, static = equinox.partition(model, equinox.is_inexact_array)
        return Handed(lambda: equinox.combine(_zeros(trained), static), trained)
    if isinstance(model, tuple) and len(model) == 2 and is_linen(model[0]):
        from flax.core import meta

        module, variables = model
        others = {name: meta.unbox(one) for name, one in variables.items() if name != "params"}
        whole = "params" in variables
        return Handed(
            lambda: module, meta.unbox(variables["params"] if whole else variables), others if whole else None
        )
    return Handed(lambda: model, None)


def _zeros(tree: Any) -> Any:
    """Arrays of the same shapes, which a compiled program that looks at shapes alone never makes."""
    return jax.tree.map(lambda one: jax.numpy.zeros(one.shape, one.dtype), tree)


def check_same(model: Handed, planned: JaxSource, places: Places, reference: str, seq: int) -> None:
    """Must: the leaves and the equations of the model that the plan is for. Raises `PlanOfAnotherModel`."""
    found = model_of(model.factory, planned.place, planned.hooks["forward"])
    if not isinstance(found, tuple) or len(found) != 2 or not callable(found[0]):
        raise refused(found, "the model that was given")
    own = replace(planned, made=found[0], name=found[1])
    batch = example_batch(planned, BATCH, seq)
    mine, its = (
        {leaf.path: (leaf.type.shape, leaf.type.dtype) for leaf in one.made(batch).leaves if leaf.kind == "param"}
        for one in (own, planned)
    )
    for path in sorted(mine.keys() | its.keys()):
        if mine.get(path) != its.get(path):
            raise _another(f"{own.name}, {path}", f"it is {_shown(mine, path)}, and {_shown(its, path)} in", reference)
    if Sites(traced(own, batch).whole).check != places.check:
        raise _another(own.name, "a step of it has other equations than that of", reference)


def _shown(leaves: dict[str, tuple[tuple[int, ...], str]], path: str) -> str:
    return " ".join(map(str, reversed(leaves[path]))) if path in leaves else "not there"


def _another(place: str, cause: str, reference: str) -> PlanOfAnotherModel:
    return PlanOfAnotherModel(
        place=place,
        cause=f"{cause} the plan's model, {reference}",
        fix="give the model that was planned, or plan this one",
    )
