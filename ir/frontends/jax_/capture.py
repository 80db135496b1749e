"""The front door for JAX models: a source and a workload in, a fold out.

A scan over parameters is traced through a few of its blocks; if these do not fold, through all of them, and if even
that does not, the model is one body. Both are said in the notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.ir.analysis.rebatch import batched_laws
from meshwright.ir.annotated.annotations import Spec
from meshwright.ir.errors import HookUnusable, MeshwrightError
from meshwright.ir.frontends.folding.assemble import NotFoldable
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.folding.emit import Written
from meshwright.ir.frontends.folding.handles import Traced
from meshwright.ir.frontends.folding.sections import joined
from meshwright.ir.frontends.folding.segment import fold_trace, names_of
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.foreign import blamed
from meshwright.ir.frontends.jax_.annotated import annotations_of
from meshwright.ir.frontends.jax_.flat import Flat, Leaf, flattened
from meshwright.ir.frontends.jax_.primitives import elementwise, indexing, loops, products, shapes
from meshwright.ir.frontends.jax_.primitives.translate import Lowering, Translator
from meshwright.ir.frontends.jax_.rooms import placed
from meshwright.ir.frontends.jax_.source import JaxSource, Step, example_batch, named, traced
from meshwright.ir.frontends.jax_.written import constant_of
from meshwright.ir.frontends.recognise.recognised import recognised
from meshwright.ir.frontends.recognise.sharing import shared
from meshwright.ir.graph.constants import Constant, batched
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph, Op, Update

TABLE: dict[str, Lowering] = {
    **elementwise.TABLE,
    **shapes.TABLE,
    **products.TABLE,
    **indexing.TABLE,
    **loops.TABLE,
}
"""Every primitive that we have operators for."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the equations of a step, how many there were and how many stayed opaque."""

    equations: int
    opaque: int


def capture(source: JaxSource, *, batch: int, seq: int, seed: int = 0, written: Written = constant_of) -> Captured:
    """The fold of a model's training step on `batch` sequences of `seq` tokens; constants as they are `written`."""
    with blamed(source.place):
        example = example_batch(source, batch, seq)
        labels, notes = labels_of(source, example, batch, seq)
    step = traced(source, example)
    parameters = sum(leaf.type.elements for leaf in step.leaves if leaf.kind == "param")
    found = folded(source, step, labels, seed=seed, written=written)
    said = {leaf.path: leaf.spec for leaf in found.leaves if leaf.spec}
    return Captured(
        fold=found.fold,
        parameters=parameters,
        stacks=found.stacks,
        notes=(*notes, *found.notes),
        constants=batched(found.made, batched_laws(found.fold, batch)),
        annotations=annotations_of(found.fold, found.graph, found.stacks, said, found.annotated),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The fold of a step, the graph that was folded, and its stacks as they were traced; `whole`: at full depth."""

    fold: Fold
    graph: Graph
    stacks: tuple[Stack, ...]
    whole: bool
    notes: tuple[str, ...]
    made: Mapping[str, Constant]
    leaves: tuple[Leaf, ...]
    annotated: Mapping[str, Spec]


def folded(
    source: JaxSource, step: Step, labels: Mapping[str, tuple[str, ...]], *, seed: int, written: Written = constant_of
) -> Folded:
    """The fold of a step."""
    said: list[str] = []
    for whole in (False, True):
        flat = placed(flattened(step.jaxpr, step.leaves, whole=whole, seed=seed))
        stacks = tuple(flat.stacks)
        graph, _ = translated(flat, step, labels, stacks, written=written)
        try:
            fold = fold_trace(graph.graph, stacks, dict(_classes(source, stacks)))
        except NotFoldable as reason:
            said.append(f"folding failed, {'the model is one body' if whole else 'tracing at full depth'}: {reason}")
            continue
        break
    else:
        stacks = ()
        graph, _ = translated(flat, step, labels, (), written=written)
        fold = fold_trace(graph.graph, (), {})
    notes = (*said, *graph.notes)
    return Folded(
        fold=fold,
        graph=graph.graph,
        stacks=stacks,
        whole=whole,
        notes=notes,
        made=graph.made,
        leaves=tuple(flat.leaves.values()),
        annotated=graph.annotated,
    )


def translated(
    flat: Flat,
    step: Step,
    labels: Mapping[str, tuple[str, ...]],
    stacks: Sequence[Stack],
    *,
    raw: bool = False,
    written: Written = constant_of,
) -> tuple[Traced, Coverage]:
    """The graph of a flat step, with composites recognised unless it is to stay `raw`."""
    t = Translator(names_of(stacks), TABLE)
    loss, *changed = t.run(flat, dict(labels))
    updates = []
    for path, given in zip(step.buffers, changed, strict=True):
        value = t.read(given)
        if t.params.get(value) is None or t.params[value].path != path:
            kept = next(one.value for one in t.params.values() if one.path == path)
            updates.append(Update(path, t.value(t.cast(value, t.types[kept].dtype)), "mean"))
    graph = _finished(t, t.read(loss), updates)
    constants: dict[str, Term] = {value: term for value, term in t.constants.items() if value in graph.types}
    if not raw:
        graph = recognised(shared(graph), constants)
        constants = {value: term for value, term in constants.items() if value in graph.types}
    notes = tuple(dict.fromkeys((*flat.notes, *t.notes)))
    made = t.made(constants, written)
    return Traced(graph, constants, notes, made, t.annotated), Coverage(len(flat.equations), t.opaque_count)


def _finished(t: Translator, loss: str, updates: Sequence[Update]) -> Graph:
    """What reaches the loss and the buffers, as a graph. Buffers that nothing reads are left out."""
    needed = {loss, *(one.value for one in updates)}
    ops: list[Op] = []
    for op in reversed(t.ops):
        if needed.intersection(op.results):
            ops.append(op)
            needed.update(op.operands)
    ops.reverse()
    params = tuple(p for p in t.params.values() if p.value in needed or not p.buffer)
    used = {i.value for i in t.inputs} | {p.value for p in params} | {r for op in ops for r in op.results}
    return Graph(
        types={value: type_ for value, type_ in t.types.items() if value in used},
        inputs=tuple(t.inputs),
        params=params,
        ops=joined(ops, t.types),
        outputs=(loss,),
        updates=tuple(updates),
        loss=loss,
    )


def _classes(source: JaxSource, stacks: Sequence[Stack]) -> Iterator[tuple[str, str]]:
    """What blocks are called: after their stack."""
    for stack in stacks:
        name = stack.prefix.rstrip("._").rpartition(".")[2] or source.name
        for position in range(stack.depth):
            yield stack.block(position), name


# Labels --------------------------------------------------------------------------------------------------------------

PROBES = (("b", 2, 1), ("s", 1, 2))
"""Label, and the factors on batch and sequence that reveal it."""


def labels_of(
    source: JaxSource, example: Any, batch: int, seq: int
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """A name for every dimension that has one: by the hook `dims`, else by what doubles with batch or sequence."""
    sizes = {name: tuple(leaf.shape) for name, leaf in named(example).items()}
    said = dict(source.hooks["dims"] or {})
    for name, labels in said.items():
        if name not in sizes or len(labels) != len(sizes[name]):
            raise HookUnusable(
                place=f"{source.place}, dims[{name!r}]",
                cause=f"names {tuple(labels)} for {sizes.get(name, 'no entry of the batch')}",
                fix='give one name per dimension, "" where there is none',
            )
    unnamed = [name for name in sizes if name not in said]
    found = {name: [""] * len(sizes[name]) for name in unnamed}
    notes = []
    for label, more_batch, more_seq in PROBES if unnamed else ():
        try:
            probe = named(example_batch(source, batch * more_batch, seq * more_seq))
        except MeshwrightError as error:
            notes.append(f"no dimension is labelled {label!r}: example_inputs takes no other size ({error.cause})")
            continue
        for name in unnamed:
            grown = tuple(probe[name].shape) if name in probe else ()
            for dim, (before, after) in enumerate(zip(sizes[name], grown, strict=False)):
                if after == 2 * before:
                    found[name][dim] = label
    return {**{name: tuple(labels) for name, labels in found.items()}, **said}, tuple(notes)
