"""A model's own shardings: the mesh that its code is traced under, and what it says of values and parameters.

    constraints   `jax.lax.with_sharding_constraint` with a `PartitionSpec`, and Linen's `nn.with_logical_constraint`
    parameters    `nnx.with_partitioning`, and Linen's `nn.with_partitioning` and `nn.with_logical_partitioning`

The mesh has no devices (`jax.sharding.AbstractMesh`), so any number of them is traced anywhere. Logical names become
mesh axes by the rules that stand beside the factory, `logical_axis_rules`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from meshwright.ir.annotated.annotations import Annotations, Spec
from meshwright.ir.errors import AnnotationAxis
from meshwright.ir.frontends.folding.segment import calls_traced
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph

Sizes = tuple[tuple[str, int], ...]
"""The axes of a mesh; empty where a model is not asked for its shardings."""
RULES = "logical_axis_rules"
"""The name in a model's file of pairs of a logical name and mesh axes."""


@contextmanager
def meshed(sizes: Sizes, rules: Any, place: str) -> Iterator[None]:
    """Where code runs that says where its values lie. Without a mesh, NNX's metadata says nothing. Raises
    `AnnotationAxis`."""
    with ExitStack() as stack:
        nnx = sys.modules.get("flax.nnx")
        if not sizes:
            if nnx is not None:
                stack.enter_context(nnx.use_eager_sharding(False))
            yield
            return
        names, lengths = zip(*sizes, strict=True)
        stack.enter_context(jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh(lengths, names)))
        linen = sys.modules.get("flax.linen")
        if rules is not None and linen is not None:
            stack.enter_context(linen.logical_axis_rules(rules))
        try:
            yield
        except ValueError as error:
            found = re.search(r"axis: (\w+) of .* is not found in mesh", str(error))
            if found is None:
                raise
            raise lacking(found[1], sizes, place) from None


def lacking(name: str, sizes: Sizes, place: str) -> AnnotationAxis:
    """The refusal of an axis that the mesh lacks."""
    has = ", ".join(f"{axis}={size}" for axis, size in sizes)
    return AnnotationAxis(
        place=place,
        cause=f"a sharding names the axis {name!r}, and the mesh has {has}",
        fix=f"give a mesh with all axes that the code names, or pairs of {name!r} and mesh axes as {RULES} beside the "
        "factory",
    )


def spec_of(names: Any, sizes: Sizes, rules: Any, place: str) -> Spec:
    """Names of dimensions, as libraries of JAX keep them, by mesh axes; nothing where no mesh is given. Raises
    `AnnotationAxis`."""
    known, mapped = {axis for axis, _ in sizes}, dict(rules or ())
    found = []
    for one in names or () if sizes else ():
        several = one if isinstance(one, tuple | list) else () if one is None else (one,)
        axes: list[str] = []
        for name in several:
            if not isinstance(name, str):  # PartitionSpec.UNCONSTRAINED
                continue
            to = name if name in known else mapped.get(name, "")
            if to == "":
                raise lacking(name, sizes, place)
            axes += [] if to is None else [to] if isinstance(to, str) else list(to)
        if unknown := next((axis for axis in axes if axis not in known), None):
            raise lacking(unknown, sizes, place)
        found.append(tuple(axes))
    return tuple(found)


def annotations_of(
    fold: Fold, graph: Graph, stacks: Sequence[Stack], params: Mapping[str, Spec], values: Mapping[str, Spec]
) -> Annotations:
    """What is said of a fold, given what is said of the values of the graph that was folded."""
    found: dict[tuple[str, str], Spec] = {}
    for name, _, ops in calls_traced(graph, stacks, fold):
        for own, other in zip(fold.body[name].graph.ops, ops, strict=True):
            for value, traced in zip(own.results, other.results, strict=True):
                if traced in values:
                    found.setdefault((name, value), values[traced])
    for call in fold.calls():
        for item, source in zip(call.body.graph.inputs, call.sources, strict=True):
            if (entry := getattr(source, "name", None)) in values:
                found.setdefault((call.body.name, item.value), values[str(entry)])
    return Annotations(params, found)
