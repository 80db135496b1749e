"""The fold of a model at another batch size, without tracing the model again.

A fold is captured at some batch; a planner asks for every micro-batch times data-parallel degree. `with_batch` writes
the new sizes into a fold, in two steps of which only the second depends on the batch that is asked for.

*Which extents hold the batch* is read from the loops of the whole model (`meshwright.ir.analysis.loops`): an atom that
inputs label "b" is the batch, wherever it comes by, alone or fused with others, (b·s). Extents that merely equal it are
other atoms. The slots of experts are atoms of their own:

    dropless routing     `dropless_capacity`, the mean, counted again from the new tokens
    a capacity in slots  in proportion: a capacity factor is a share of the tokens. So are runs of tokens that have
                         slots of their own (`groups`)

*What follows*: an extent is the product of its atoms, so every type has its new shape. Attributes that carry sizes are
written anew from the types of the results (`shape`, `capacity`), or in proportion (the end of a slice that takes
everything, the batch of a mask). Then the rule of every operator that changed derives its results again: where an
attribute does not fit, as where the model cuts the batch, it differs, and the fold is refused.

The `law` of a constant stays: it names the expression that the trace wrote at its batch, a digest that no batch changes
the meaning of.

Attributes that carry a count and no size would pass unseen. Means carry none. A scalar is refused that multiplies or
divides a sum over the batch and is, or divides one by, a multiple of the batch; so are parameters and opaque operators
that hold the batch, a batch of 1 (in a trace, loops of extent 1 are not to be seen), and one that falls into parts.

Who asks captures the model again then, at twice the batch: of two folds `in_proportion` writes the one at any batch,
where they differ in nothing but numbers that double. That says nothing of why they do, so it comes second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from meshwright.ir.analysis.loops import Atoms, atoms_of
from meshwright.ir.errors import CannotRebatch, MeshwrightError
from meshwright.ir.graph.constants import proportional
from meshwright.ir.graph.fold import Body, Fold, short_of, unfolded_short
from meshwright.ir.graph.graph import Attr, Graph, Op, Type
from meshwright.ir.rules.base import Role
from meshwright.ir.rules.families.moe import dropless_capacity
from meshwright.ir.rules.opaque import ruled
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.same import Same

LABEL = "b"

SHAPED = ("view", "expand", "full", "zeros", "ones", "constant")
"""Kinds whose attribute `shape` is the shape of their result."""

ROUTING = ("dispatch", "combine")

Dim = tuple[tuple[int, ...], int]
"""The atoms of a dimension that change with the batch, and the product of the others."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The capacity of a dispatch: an atom that follows from the batch. `loops`: how many of its loops are the batch
    (one, if samples are not paired with each other); `tokens`: the product of the others."""

    atom: int
    old: int
    loops: int
    tokens: int
    topk: int
    experts: int
    dropless: bool


@dataclass(frozen=True, slots=True)
class Batched:
    """The places of the batch in a fold: for every body, the values that change with it, each with its dimensions that
    do."""

    batch: int
    atoms: tuple[int, ...]
    slots: tuple[Slots, ...]
    bodies: Mapping[str, Mapping[str, tuple[Dim, ...]]]
    inputs: Mapping[str, tuple[Dim, ...]]


def batch_of(fold: Fold) -> int:
    """The batch that a fold was captured at."""
    return _batched(Same(fold)).batch


def with_batch(fold: Fold, batch: int) -> Fold:
    """The fold that a capture at this batch would give. Raises `CannotRebatch` where that cannot be derived."""
    if batch < 1:
        raise CannotRebatch(place="fold", cause=f"a batch of {batch}", fix="ask for a batch of at least 1")
    found = _batched(Same(fold))
    if batch == found.batch:
        return fold
    sizes = _sizes(found, batch)
    try:
        return replace(
            fold,
            bodies=tuple(_body(body, found.bodies[body.name], sizes, found.batch, batch) for body in fold.bodies),
            inputs=tuple((item, _type(type_, found.inputs.get(item.value), sizes)) for item, type_ in fold.inputs),
        )
    except CannotRebatch:
        raise
    except MeshwrightError as error:
        raise _refused(error.place, error.cause) from error


def in_proportion(few: Fold, more: Fold, rows: int, batch: int) -> Fold:
    """The fold at this batch, given those that were captured at `rows` and at twice as many sequences. Raises
    `CannotRebatch` where these differ in anything but sizes that double, and laws of constants."""

    def size(one: Type, other: Type) -> Type:
        return replace(one, shape=proportional(one.shape, other.shape, rows, batch))

    def operator(one: Op, other: Op) -> Op:
        attrs = tuple((name, one.attr(name) if name == "law" else value) for name, value in other.attrs)
        _same(one, replace(other, attrs=one.attrs))
        return replace(one, attrs=proportional(one.attrs, attrs, rows, batch))

    def body(one: Body, other: Body) -> Body:
        own, graph = one.graph, other.graph
        _same(one, replace(other, graph=replace(graph, types=own.types, ops=own.ops)))
        types = {value: size(type_, graph.types[value]) for value, type_ in own.types.items()}
        ops = tuple(operator(*pair) for pair in zip(own.ops, graph.ops, strict=True))
        return replace(one, graph=replace(own, types=types, ops=ops))

    try:
        bodies = tuple(body(*pair) for pair in zip(few.bodies, more.bodies, strict=True))
        sizes = zip(few.inputs, more.inputs, strict=True)
        inputs = tuple((item, size(one, other)) for (item, one), (_, other) in sizes)
        _same(few, replace(more, bodies=few.bodies, inputs=few.inputs))
        _same([item for item, _ in few.inputs], [item for item, _ in more.inputs])
    except (ValueError, KeyError):
        raise _refused("fold", f"at {2 * rows} sequences it is another than at {rows}") from None
    return replace(few, bodies=bodies, inputs=inputs)


def _same(one: object, other: object) -> None:
    if one != other:
        raise ValueError(other)


def batched_laws(fold: Fold, batch: int) -> frozenset[str]:
    """The laws of constants whose shape depends on the batch that the fold was captured at.

    Where it is not known which sizes do, all that are multiples of it are taken to.
    """
    try:
        known = _batched(Same(fold)).bodies
    except MeshwrightError:
        known = None

    def holds(body: Body, op: Op) -> bool:
        shape = body.graph.types[op.name].shape
        return any(size % batch == 0 for size in shape) if known is None else op.name in known[body.name]

    ops = [(body, op) for body in fold.bodies for op in body.graph.ops if op.kind == "constant"]
    return frozenset(str(op.attr("law")) for body, op in ops if holds(body, op))


def _refused(place: str, cause: str) -> CannotRebatch:
    return CannotRebatch(place=place, cause=cause, fix="capture the model at the batch that is wanted")


# Where the batch is --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _batched(key: Same[Fold]) -> Batched:
    """The places of the batch in a fold, found once per fold."""
    short, whole = short_of(key), unfolded_short(key)
    graph, atoms = whole.graph, atoms_of(Same(whole.graph))
    batch, labelled = _labelled(graph, atoms)
    slots = tuple(_slots(graph, atoms, labelled))
    changing = labelled | {one.atom for one in slots}
    _refuse_counts(graph, atoms, labelled, batch)
    dims = {value: tuple(_dim(atoms, parts, changing) for parts in atoms.dims(value)) for value in graph.types}
    dims = {value: found for value, found in dims.items() if any(held for held, _ in found)}
    _refuse_holders(graph, atoms, dims)
    bodies = {
        call.body.name: {value: dims[name] for value, name in names.items() if name in dims}
        for call, names in zip(short.calls(), whole.names, strict=True)
    }
    inputs = {item.value: dims[item.value] for item in graph.inputs if item.value in dims}
    return Batched(batch, tuple(sorted(labelled)), slots, bodies, inputs)


def _labelled(graph: Graph, atoms: Atoms) -> tuple[int, frozenset[int]]:
    """The batch and its atoms; each must be all of it."""
    found: dict[int, str] = {}
    for item in graph.inputs:
        for label, parts in zip(item.labels, atoms.dims(item.value), strict=False):
            if label == LABEL:
                if len(parts) > 1:
                    raise _refused(f"input %{item.value}", f"the batch falls into {len(parts)} parts")
                found |= dict.fromkeys(parts, item.value)
    sizes = sorted({atoms.size[atom] for atom in found})
    if len(sizes) != 1:
        cause = f"its batches are {sizes}" if sizes else f"no input has a dimension {LABEL!r} of more than one sample"
        raise _refused("inputs", cause)
    return sizes[0], frozenset(found)


def _slots(graph: Graph, atoms: Atoms, labelled: frozenset[int]) -> Iterator[Slots]:
    """Capacities that depend on tokens of the batch, one for every atom."""
    seen = set(labelled)
    for index, op in enumerate(graph.ops):
        if op.kind != "dispatch":
            continue
        rule = atoms.rules[index]
        loops = [atom for name in rule.results[0][1] for atom in atoms.factor(index, name)]
        batched = sum(atom in labelled for atom in loops)
        capacity = atoms.dims(op.name)[1]
        if not batched or (capacity and set(capacity) <= seen):
            continue
        if len(capacity) != 1:
            raise _refused(_place(op), f"its {op.integer('capacity')} slots are {len(capacity)} loops, not one")
        yield Slots(
            atom=capacity[0],
            old=op.integer("capacity"),
            loops=batched,
            tokens=prod(atoms.size[atom] for atom in loops if atom not in labelled),
            topk=graph.types[op.operands[1]].shape[-1],
            experts=op.integer("num_experts"),
            dropless=bool(op.attr("dropless")),
        )
        seen.update(capacity)


def _dim(atoms: Atoms, parts: tuple[int, ...], changing: frozenset[int]) -> Dim:
    held = tuple(atom for atom in parts if atom in changing)
    return held, prod(atoms.size[atom] for atom in parts if atom not in changing)


def _place(op: Op) -> str:
    return f"%{op.name} = {op.kind}" + (f" <{op.source}>" if op.source else "")


def _refuse_holders(graph: Graph, atoms: Atoms, dims: Mapping[str, tuple[Dim, ...]]) -> None:
    """Refuse parameters whose size depends on the batch, and opaque operators without a rule that read it: what they do
    with a batch is unknown."""
    for param in graph.params:
        if param.value in dims:
            raise _refused(f"parameter {param.path!r}", f"its shape {graph.types[param.value]} holds the batch")
    for index, op in enumerate(graph.ops):
        if op.kind != "opaque" or not any(value in dims for value in (*op.operands, *op.results)):
            continue
        if not ruled(str(op.attr("target")), dict(op.attrs)):
            raise _refused(_place(op), "it is opaque and sees the batch")
        rule = atoms.rules[index]
        made = {name for result in rule.results for names in result for name in names}
        for value, operand in zip(op.operands, rule.operands, strict=True):
            for (held, _), names in zip(dims.get(value, ()), operand, strict=False):
                if held and any(rule.factor(name).role is Role.WHOLE and name not in made for name in names):
                    raise _refused(_place(op), "it needs the batch in one place")


def _refuse_counts(graph: Graph, atoms: Atoms, labelled: frozenset[int], batch: int) -> None:
    """Refuse a scalar that may be a count of samples, applied to a sum over them."""
    summed: set[str] = set()
    for index, op in enumerate(graph.ops):
        over = any(
            factor.role is Role.SUM and labelled.intersection(atoms.factor(index, factor.name))
            for factor in atoms.rules[index].factors
        )
        if op.kind in ("mul", "div") and summed.intersection(op.operands) and _counts(op.attr("scalar"), batch):
            raise _refused(_place(op), f"{op.attr('scalar')} may count what is summed over a batch of {batch}")
        if over or summed.intersection(op.operands):
            summed.update(op.results)


def _counts(scalar: Attr, batch: int) -> bool:
    """Whether a scalar, or one over it, is a multiple of the batch."""
    if not isinstance(scalar, int | float) or not scalar:
        return False
    shares = (abs(scalar) / batch, 1 / (abs(scalar) * batch))
    return any(round(share) >= 1 and abs(share - round(share)) < 1e-6 * share for share in shares)


# What it changes -----------------------------------------------------------------------------------------------------


def _sizes(found: Batched, batch: int) -> dict[int, int]:
    """The new size of every atom that changes."""
    sizes = dict.fromkeys(found.atoms, batch)
    for one in found.slots:
        sizes[one.atom] = _capacity(one, found.batch, batch)
    return sizes


def _capacity(one: Slots, old: int, new: int) -> int:
    before, after = (one.tokens * prod([batch] * one.loops) for batch in (old, new))
    if one.dropless and one.old == dropless_capacity(before, one.topk, one.experts):
        return dropless_capacity(after, one.topk, one.experts)
    share, rest = divmod(one.old * after, before)
    if rest:
        raise _refused("dispatch", f"{one.old} slots for a batch of {old} are not a whole number for {new}")
    return share


def _type(type_: Type, dims: tuple[Dim, ...] | None, sizes: Mapping[int, int]) -> Type:
    if dims is None:
        return type_
    return Type(tuple(prod([rest, *(sizes[atom] for atom in held)]) for held, rest in dims), type_.dtype)


def _body(body: Body, dims: Mapping[str, tuple[Dim, ...]], sizes: Mapping[int, int], old: int, new: int) -> Body:
    graph = body.graph
    types = {**graph.types, **{value: _type(graph.types[value], dims[value], sizes) for value in dims}}
    ops = tuple(
        _op(op, graph, types, old, new) if not dims.keys().isdisjoint((*op.operands, *op.results)) else op
        for op in graph.ops
    )
    return replace(body, graph=replace(graph, types=types, ops=ops))


def _op(op: Op, graph: Graph, types: Mapping[str, Type], old: int, new: int) -> Op:
    """The operator with its new attributes, from which its rule must derive the new types."""
    change = _changed(op, graph, types, old, new)
    made = replace(op, attrs=tuple((key, change.get(key, value)) for key, value in op.attrs)) if change else op
    for value, derived in zip(made.results, rule_of(made, types).types, strict=True):
        if derived != types[value]:
            raise _refused(_place(op), f"%{value} would be {types[value]}, its rule derives {derived}")
    return made


def _changed(op: Op, graph: Graph, types: Mapping[str, Type], old: int, new: int) -> dict[str, Attr]:
    """Attributes that depend on sizes, with new values."""
    before, after = graph.types[op.name].shape, types[op.name].shape
    if op.kind in SHAPED:
        return {"shape": after}
    if op.kind == "opaque":
        return {"types": tuple(str(types[value]) for value in op.results)}
    if op.kind in ROUTING:
        value = op.name if op.kind == "dispatch" else op.operands[0]
        was, now = (kinds[value].shape[1] for kinds in (graph.types, types))
        if not isinstance(groups := op.attr("groups"), int):
            return {"capacity": now}
        if groups * now % was:
            raise _refused(
                _place(op), f"{groups} runs of tokens with slots of their own at {was} slots, for {now} slots"
            )
        return {"capacity": now, "groups": groups * now // was}
    if op.kind == "slice":
        dim = op.integer("dim")
        was, now = (kinds[op.operands[0]].shape[dim] for kinds in (graph.types, types))
        if was == now:
            return {}
        if before != graph.types[op.operands[0]].shape:
            raise _refused(_place(op), f"it cuts the batch to {before[dim]} of {was}")
        return {"end": now} if op.attr("end") == was else {}
    if op.kind == "arange":
        start, end = op.attr("start", 0), op.attr("end", 0)
        if isinstance(start, int) and isinstance(end, int) and (end - start) * after[0] % before[0] == 0:
            return {"end": start + (end - start) * after[0] // before[0]}
    if op.kind == "attention" and isinstance(shape := op.attr("mask_shape"), tuple):
        batched = len(shape) == len(after) and shape[0] == old == before[0] and after[0] == new
        return {"mask_shape": (new, *shape[1:])} if batched else {}
    return {}
