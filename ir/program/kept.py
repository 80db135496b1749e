"""Saved tensors of a lowered body on one rank, from its forward pass for its backward pass.

The statements of a body program are a `Tape` (`meshwright.ir.analysis.saved`) like a graph, with three differences.
Sizes are those of the rank's shards. Collectives are steps too, and too dear to run twice; local steps of a reshard are
cheap. And the backward pass may hold forward statements: what they make again need not be kept, what they start from
must be. A fourth: where products multiply in eight bits or fewer, they may keep a copy of their input in these
(`Copies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TypeGuard

from meshwright.ir.analysis.saved import Need, Step, Tape, kept_of, reads
from meshwright.ir.graph.graph import ITEMSIZE, Type
from meshwright.ir.program.program import (
    Compute,
    Gradient,
    Kept,
    Kernels,
    Local,
    Move,
    Ring,
    Statement,
    operands_of,
    results_of,
    values_read,
)
from meshwright.ir.rules.base import Engine, Save, Signature
from meshwright.ir.rules.families.attention import ring_saves
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import COPY_BYTES

Sizes = Mapping[str, int]
"""Of the factors of one operator, on one rank."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The forward and backward pass of a body, as far as they decide what is saved.

    `alias`: for every operator, the operand whose storage its results share; `sizes`: its local factors; `resident`:
    stored parameters, and gathered ones that the backward pass gathers again; `again`: what it makes again; `params`:
    parameters as operators read them.
    """

    forward: Sequence[Statement]
    backward: Sequence[Statement]
    locals: Mapping[str, Local]
    mesh: Mesh
    outputs: tuple[str, ...]
    alias: Mapping[str, int | None]
    sizes: Mapping[str, Sizes]
    resident: frozenset[str]
    again: frozenset[str]
    params: frozenset[str]


def kept(passes: Passes, kernels: Kernels) -> tuple[Kept, ...]:
    """Everything that is saved under these kernels: each storage once, parameters that stay in place never."""
    own = {name for statement in passes.forward for name in (*operands_of(statement), *results_of(statement))}
    tape = Tape(
        steps=() if kernels.style == "eager" else tuple(map(step_of, passes.forward)),  # eager runs nothing again
        nbytes={name: local_bytes(passes.locals[name], passes.mesh) for name in passes.locals if name in own},
        needs=tuple(_needs(passes, kernels)),
        owner=owners(passes.forward, passes.alias),
        outputs=frozenset(passes.outputs),
        resident=passes.resident,
        again=passes.again,
    )
    return tuple(Kept(one.owner, one.nbytes) for one in kept_of(tape, kernels))


def _needs(passes: Passes, kernels: Kernels) -> Iterator[Need]:
    """Values that derivatives read, and values that recomputation starts from."""
    if not kernels.copied:
        yield from _plain_needs(passes, kernels)
        return
    copies = Copies.of(passes.forward, passes.backward, passes.params, kernels)
    copied: set[str] = set()
    for need in _plain_needs(passes, kernels, copies):
        value = need.value.removesuffix(COPY)
        if value == need.value:
            yield need
        elif value not in passes.again and value not in passes.resident and value not in copied:
            copied.add(value)
            yield Need(need.value, need.op, copies.nbytes(passes.locals[value], passes.mesh))


def _plain_needs(passes: Passes, kernels: Kernels, copies: Copies | None = None) -> Iterator[Need]:
    """Values that derivatives read, and values that recomputation starts from, before copies are counted."""
    for statement in passes.backward:
        if is_derivative(statement):
            again = statement.outputs[0] in passes.again
            for need in needs_of(statement, passes.sizes[statement.op], kernels):
                if copies and not again and copies.reads(statement, need):
                    yield Need(need.value + COPY, need.op)
                elif need.extra_bytes is None or not again:
                    yield need
        elif not passes.again.isdisjoint(results_of(statement)):
            copy = COPY if copies and copies.gathers(statement) else ""
            yield from (Need(name + copy, name) for name in operands_of(statement))


COPY = "~"
"""Ends the name of the copy that products keep of a value."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Reads of the backward pass that are of copies in fewer bits: products of trained weights keep one of each input,
    by the name of the value, whatever other operators keep. A value that is gathered again for nothing else is kept as
    a copy of the shard, and gathered as such.

    - `products` are operators; `gathered` are results of moves that the backward pass runs again.
    """

    products: frozenset[str]
    gathered: frozenset[str]
    each: float
    """Bytes of an element of a copy."""

    @classmethod
    def of(
        cls, forward: Sequence[Statement], backward: Sequence[Statement], params: Iterable[str], kernels: Kernels
    ) -> Copies:
        if not kernels.copied:
            return cls(frozenset(), frozenset(), 0.0)
        weights, products = set(params), set[str]()
        for statement in forward:
            read = operands_of(statement)
            if read and weights.issuperset(read):
                weights.update(results_of(statement))
            elif isinstance(statement, Compute) and infer(statement.signature).engine is Engine.MATMUL:
                products |= {statement.op} if statement.operands[1] in weights else set()
        made = {name for statement in forward for name in results_of(statement)}
        moved = made & {s.result for s in backward if isinstance(s, Move) and s.step.kind == "all_gather"}
        for statement in backward:
            if not (isinstance(statement, Gradient) and statement.op in products):
                moved.difference_update(values_read(statement))
            else:
                moved.difference_update(statement.operands[1:])
        return cls(frozenset(products), frozenset(moved), COPY_BYTES[kernels.copied])

    def nbytes(self, local: Local, mesh: Mesh) -> int:
        """Bytes of the copy of a value."""
        return int(local_bytes(local, mesh) / ITEMSIZE[local.type.dtype] * self.each)

    def reads(self, statement: Gradient | Ring, need: Need) -> bool:
        """Whether a derivative reads a copy: that of a product, of its input."""
        return statement.op in self.products and need.value == statement.operands[0]

    def gathers(self, statement: Statement) -> bool:
        """Whether a move of the backward pass gathers copies."""
        return isinstance(statement, Move) and statement.result in self.gathered


def is_derivative(statement: Statement) -> TypeGuard[Gradient | Ring]:
    """Whether a statement differentiates an operator."""
    return isinstance(statement, Gradient | Ring) and bool(statement.wanted)


def needs_of(statement: Gradient | Ring, sizes: Sizes, kernels: Kernels) -> Iterator[Need]:
    """Names that one derivative reads: local names, or extra tensors, numbered under the operator's name."""
    in_ring = isinstance(statement, Ring)
    for number, save in enumerate(saves_of(statement.signature, statement.wanted, kernels, in_ring=in_ring)):
        if save.what == "extra":
            yield Need(f"{statement.op}!{number}", statement.op, extra_bytes(save, sizes))
        else:
            side = statement.operands if save.what == "operand" else statement.outputs
            yield Need(side[save.index], statement.op)


def extra_bytes(save: Save, sizes: Sizes) -> int:
    """Bytes of a tensor that is saved and is no value of the graph."""
    return int(prod(sizes[factor] for dim in save.dims for factor in dim) * save.width)


@lru_cache(maxsize=65536)
def saves_of(signature: Signature, wanted: tuple[int, ...], kernels: Kernels, *, in_ring: bool) -> tuple[Save, ...]:
    """Tensors that kernels save for a derivative; `in_ring`: of ring attention."""
    if in_ring:
        return tuple(save for save in ring_saves(signature) if save.kept(kernels.device, set(wanted)))
    return reads(infer(signature), signature, wanted, kernels)


def step_of(statement: Statement) -> Step:
    """A forward statement as a step of a tape."""
    if isinstance(statement, Compute | Ring):
        rule = infer(statement.signature)
        return Step.of(rule, statement.signature, statement.operands, statement.results)
    local = isinstance(statement, Move) and statement.step.free
    return Step(operands_of(statement), results_of(statement), "cheap" if local else "dear")


def owners(forward: Iterable[Statement], alias: Mapping[str, int | None]) -> dict[str, str]:
    """The owner of a forward name's storage, where that is another name."""
    owner: dict[str, str] = {}
    for statement in forward:
        if isinstance(statement, Compute) and (slot := alias[statement.op]) is not None:
            operand = statement.operands[slot]
            owner |= dict.fromkeys(statement.results, owner.get(operand, operand))
    return owner


def local_bytes(local: Local, mesh: Mesh) -> int:
    """Bytes of the shard that a rank holds."""
    return _shard_bytes(local.type, local.placement, mesh)


@lru_cache(maxsize=65536)
def _shard_bytes(type_: Type, placement: Placement, mesh: Mesh) -> int:
    return Type(placement.local_shape(type_.shape, mesh), type_.dtype).nbytes
