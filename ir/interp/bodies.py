"""The reference interpreter: a Program on N simulated devices, in one process.

The interpreter owns what Meshwright claims to know: how tensors are cut and put together, what every collective does,
which ranks form a group, how gradients accumulate, in which order stages work. What an operator computes on one
device is not its business: local kernels are injected (`Kernels`), so the same interpreter runs on torch's or JAX's
own operators, and `ir` needs neither.

All ranks of a stage run each statement in lockstep. Whenever a sharded tensor is put together, copies are compared:
ranks that should hold the same value and do not are an error, not an average.

This is an oracle for programs, written to be obviously right; it is not fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

from meshwright.ir.errors import CopiesDiffer, NameUnknown
from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.program.program import Add, BodyProgram, Compute, Gradient, Move, Ring, Statement, Zero, results_of
from meshwright.ir.rules.base import Signature
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import Layout, Span, length, select
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement

Tensor = Any
"""A tensor of whatever library the kernels use."""
Shards = list[Tensor]
"""One tensor per rank of a mesh."""


@dataclass(frozen=True, slots=True)
class LocalCall:
    """The arguments of a local kernel.

    `operands` are local shards and `results` the local result types; `attrs` are those of the whole operator. For
    kernels that depend on where they are (vocabulary offsets, causal masks), `spans` gives the global index ranges
    that this rank holds of every factor, in local order, and `sizes` the global size of every factor.
    """

    kind: str
    operands: tuple[Tensor, ...]
    attrs: Mapping[str, Attr]
    results: tuple[Type, ...]
    spans: Mapping[str, tuple[Span, ...]]
    sizes: Mapping[str, int]


class Kernels(Protocol):
    """The tensor library of the interpreter."""

    def run(self, call: LocalCall) -> tuple[Tensor, ...]:
        """Run the operator on local shards."""

    def vjp(self, call: LocalCall, wanted: tuple[int, ...], grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """Gradients of the wanted operands, from gradients of the results (None: zero)."""

    def ring_forward(self, call: LocalCall) -> tuple[Tensor, Tensor]:
        """Attention over one visiting chunk of keys and values: (output, log-sum-exp)."""

    def ring_merge(self, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Two partial attention results combined."""

    def ring_vjp(self, call: LocalCall, merged: tuple[Tensor, Tensor], grad: Tensor) -> tuple[Tensor, ...]:
        """Gradients of (q, k, v) through one chunk, given the whole result."""

    def narrow(self, tensor: Tensor, dim: int, start: int, stop: int) -> Tensor: ...
    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor: ...
    def add(self, one: Tensor, other: Tensor) -> Tensor: ...
    def maximum(self, one: Tensor, other: Tensor) -> Tensor: ...
    def scale(self, tensor: Tensor, factor: float) -> Tensor: ...
    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor: ...
    def same(self, one: Tensor, other: Tensor) -> bool:
        """Equal up to rounding."""

    def extent(self, tensor: Tensor, dim: int) -> int: ...


# Cutting and putting together ----------------------------------------------------------------------------------------


def take(kernels: Kernels, tensor: Tensor, dim: int, spans: Sequence[Span]) -> Tensor:
    """The given index ranges of one dimension, in order."""
    parts = [kernels.narrow(tensor, dim, start, stop) for start, stop in spans or ((0, 0),)]
    return parts[0] if len(parts) == 1 else kernels.concat(parts, dim)


def untake(kernels: Kernels, parts: Sequence[Tensor], dim: int, pieces: Sequence[Sequence[Span]]) -> Tensor:
    """The inverse: parts that hold the index ranges `pieces`, put back in natural order."""
    order: list[tuple[int, Span]] = []
    offset = 0
    for spans in pieces:
        for start, stop in spans:
            order.append((start, (offset, offset + stop - start)))
            offset += stop - start
    joined_parts = kernels.concat(parts, dim) if len(parts) > 1 else parts[0]
    return take(kernels, joined_parts, dim, [span for _, span in sorted(order)])


def shard(kernels: Kernels, tensor: Tensor, type_: Type, placement: Placement, mesh: Mesh) -> Shards:
    """Shard a whole tensor. A partial sum is held by the first rank of its axes; the others hold zeros."""
    shards = []
    for rank in range(mesh.size):
        part = tensor
        for dim, spans in enumerate(placement.spans(type_.shape, mesh, rank)):
            part = take(kernels, part, dim, spans)
        at = mesh.coordinates(rank)
        if any(p.reduction == "sum" and at[p.axis] for p in placement.partial):
            part = kernels.zeros(placement.local_shape(type_.shape, mesh, rank), type_.dtype)
        shards.append(part)
    return shards


def collect(kernels: Kernels, shards: Shards, placement: Placement, mesh: Mesh, place: str) -> Tensor:
    """Reassemble a tensor: reduce partial axes, gather shards, and compare all copies."""
    now = placement
    for partial in placement.partial:
        shards = _reduce(kernels, shards, mesh, (partial.axis,), partial.reduction)
        now = Placement(now.dims, tuple(p for p in now.partial if p.axis != partial.axis))
    for dim in range(len(now.dims)):
        for cut in reversed(now.dims[dim]):
            shards = _gather(kernels, shards, mesh, (cut.axis,), dim, cut.layout)
    for rank, copy in enumerate(shards):
        if not kernels.same(shards[0], copy):
            raise CopiesDiffer(
                place=place,
                cause=f"ranks 0 and {rank} hold different copies under {placement}",
                fix="this is a wrong program",
            )
    return shards[0]


def _groups(mesh: Mesh, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
    return [mesh.group(rank, axes) for rank in range(mesh.size)]


def _reduce(kernels: Kernels, shards: Shards, mesh: Mesh, axes: tuple[str, ...], reduction: str) -> Shards:
    combine = kernels.add if reduction == "sum" else kernels.maximum
    return [reduce(combine, [shards[peer] for peer in group]) for group in _groups(mesh, axes)]


def _gather(kernels: Kernels, shards: Shards, mesh: Mesh, axes: tuple[str, ...], dim: int, layout: Layout) -> Shards:
    gathered = []
    for group in _groups(mesh, axes):
        parts = [shards[peer] for peer in group]
        extent = sum(kernels.extent(part, dim) for part in parts)
        pieces = [layout.pieces(extent, len(group), index) for index in range(len(group))]
        gathered.append(untake(kernels, parts, dim, pieces))
    return gathered


def _cut(kernels: Kernels, shards: Shards, mesh: Mesh, axes: tuple[str, ...], dim: int, layout: Layout) -> Shards:
    return [
        take(kernels, part, dim, layout.pieces(kernels.extent(part, dim), len(group), group.index(rank)))
        for rank, (part, group) in enumerate(zip(shards, _groups(mesh, axes), strict=True))
    ]


def move(kernels: Kernels, shards: Shards, statement: Move, source: Placement, mesh: Mesh, dtype: str) -> Shards:
    """Run one step of a reshard on all ranks."""
    step = statement.step
    axis = step.axes[0]
    first = [mesh.coordinates(rank)[axis] == 0 for rank in range(mesh.size)]
    match step.kind:
        case "slice":
            return _cut(kernels, shards, mesh, step.axes, step.dim, step.layout)
        case "all_gather":
            return _gather(kernels, shards, mesh, step.axes, step.dim, step.layout)
        case "all_reduce":
            return _reduce(kernels, shards, mesh, step.axes, step.reduction)
        case "reduce_scatter":
            total = _reduce(kernels, shards, mesh, step.axes, step.reduction)
            return _cut(kernels, total, mesh, step.axes, step.dim, step.layout)
        case "all_to_all":
            held = source.dims[step.dim][-1].layout
            whole = _gather(kernels, shards, mesh, step.axes, step.dim, held)
            return _cut(kernels, whole, mesh, step.axes, step.target, step.layout)
        case "mask":
            if step.reduction == "max":
                return shards
            return [part if keep else kernels.scale(part, 0.0) for part, keep in zip(shards, first, strict=True)]
        case _:
            return _pad(kernels, shards, mesh, axis, step.dim, step.layout)


def _pad(kernels: Kernels, shards: Shards, mesh: Mesh, axis: str, dim: int, layout: Layout) -> Shards:
    """Each rank's shard among zeros."""
    size = mesh.axis(axis).size
    padded = []
    for rank, part in enumerate(shards):
        group = mesh.group(rank, (axis,))
        parts = [part if peer == rank else kernels.scale(shards[peer], 0.0) for peer in group]
        extent = sum(kernels.extent(one, dim) for one in parts)
        padded.append(untake(kernels, parts, dim, [layout.pieces(extent, size, index) for index in range(size)]))
    return padded


# Bodies --------------------------------------------------------------------------------------------------------------


Environment = dict[str, Shards]


@dataclass(slots=True)
class BodyRun:
    """One body program on all ranks of its mesh; `env` holds every local name."""

    program: BodyProgram
    kernels: Kernels
    env: Environment

    def execute(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self.run(statement)

    def forget(self) -> None:
        """Drop values that the backward pass recomputes, so that a program which fails to do so is caught."""
        again = {name for statement in self.program.backward for name in results_of(statement)}
        for name in again.intersection(self.env):
            del self.env[name]

    def read(self, name: str) -> Shards:
        if name not in self.env:
            raise NameUnknown(place=self.program.name, cause=f"%{name} is not there", fix="this is a wrong program")
        return self.env[name]

    def run(self, statement: Statement) -> None:
        match statement:
            case Compute():
                self.bind(statement.results, [self.kernels.run(call) for call in self.local_calls(statement)])
            case Gradient():
                self.bind(statement.results, self.gradients(statement))
            case Ring():
                self.ring(statement)
            case Move():
                local = self.program.locals[statement.operand]
                self.env[statement.result] = move(
                    self.kernels,
                    self.read(statement.operand),
                    statement,
                    local.placement,
                    self.program.mesh,
                    local.type.dtype,
                )
            case Add():
                terms = [self.read(name) for name in statement.operands]
                self.env[statement.result] = [reduce(self.kernels.add, column) for column in zip(*terms, strict=True)]
            case Zero():
                self.env[statement.result] = self.zeros(statement.result)

    def bind(self, names: tuple[str, ...], per_rank: Sequence[tuple[Tensor, ...]]) -> None:
        for index, name in enumerate(names):
            self.env[name] = [results[index] for results in per_rank]

    def gradients(self, statement: Gradient) -> list[tuple[Tensor, ...]]:
        columns = [self.read(name) if name else None for name in statement.grads]
        return [
            self.kernels.vjp(call, statement.wanted, tuple(column[rank] if column else None for column in columns))
            for rank, call in enumerate(self.local_calls(statement))
        ]

    def operands(self, statement: Compute | Gradient | Ring) -> list[Shards]:
        """The operands of a statement. Those that a derivative does not read are zeros to it: a program need not have
        them at hand, and a rule that saves too little is caught."""
        if not isinstance(statement, Gradient):
            return [self.read(name) for name in statement.operands]
        read = infer(statement.signature).reads(statement.wanted)
        return [self.read(name) if i in read else self.zeros(name) for i, name in enumerate(statement.operands)]

    def local_calls(self, statement: Compute | Gradient | Ring) -> list[LocalCall]:
        """The arguments of each rank's kernel."""
        names = statement.outputs if not isinstance(statement, Compute) and statement.outputs else statement.results
        columns = self.operands(statement)
        mesh = self.program.mesh
        return [
            LocalCall(
                statement.signature.kind,
                tuple(column[rank] for column in columns),
                dict(statement.signature.attrs),
                tuple(self.local_type(name, rank) for name in names),
                factor_spans(statement.signature, statement.strategy, mesh, rank),
                {factor.name: factor.size for factor in infer(statement.signature).factors},
            )
            for rank in range(mesh.size)
        ]

    def local_type(self, name: str, rank: int) -> Type:
        local = self.program.locals[name]
        return Type(local.placement.local_shape(local.type.shape, self.program.mesh, rank), local.type.dtype)

    def zeros(self, name: str) -> Shards:
        types = [self.local_type(name, rank) for rank in range(self.program.mesh.size)]
        return [self.kernels.zeros(type_.shape, type_.dtype) for type_ in types]

    # ring attention

    def ring(self, statement: Ring) -> None:
        """Run ring attention: keys and values visit every rank of the ring; see `Ring`."""
        mesh = self.program.mesh
        size = mesh.axis(statement.axis).size
        calls = self.local_calls(statement)
        merged: list[tuple[Tensor, Tensor]] = []
        for rank in range(mesh.size):
            group = mesh.group(rank, (statement.axis,))
            at = mesh.coordinates(rank)[statement.axis]
            visits = [_visit(calls[rank], calls[group[(at - hop) % size]]) for hop in range(size)]
            merged.append(reduce(self.kernels.ring_merge, [self.kernels.ring_forward(visit) for visit in visits]))
        if not statement.backward:
            self.bind(statement.results, [(out,) for out, _ in merged])
            return
        grads = self.read(statement.grads[0] or "")
        totals: list[list[Tensor]] = [[None, None, None] for _ in range(mesh.size)]
        for rank in range(mesh.size):
            group = mesh.group(rank, (statement.axis,))
            at = mesh.coordinates(rank)[statement.axis]
            for hop in range(size):
                owner = group[(at - hop) % size]
                visit = _visit(calls[rank], calls[owner])
                parts = self.kernels.ring_vjp(visit, merged[rank], grads[rank])
                for slot, (holder, part) in enumerate(zip((rank, owner, owner), parts, strict=True)):
                    held = totals[holder][slot]
                    totals[holder][slot] = part if held is None else self.kernels.add(held, part)
        self.bind(statement.results, [tuple(total[slot] for slot in statement.wanted) for total in totals])


def _visit(host: LocalCall, guest: LocalCall) -> LocalCall:
    """The kernel call of a rank while another rank's keys and values visit it."""
    spans = dict(host.spans) | {"sk": guest.spans["sk"]}
    return LocalCall(host.kind, (host.operands[0], *guest.operands[1:]), host.attrs, host.results, spans, host.sizes)


def factor_spans(signature: Signature, strategy: Strategy, mesh: Mesh, rank: int) -> dict[str, tuple[Span, ...]]:
    """The global index ranges of every factor that a rank works on."""
    at = mesh.coordinates(rank)
    spans: dict[str, tuple[Span, ...]] = {f.name: ((0, f.size),) for f in infer(signature).factors}
    for axis, choice in strategy.choices:
        if isinstance(choice, Split):
            for name in choice.factors:
                local = choice.layout.pieces(length(spans[name]), mesh.axis(axis).size, at[axis])
                spans[name] = select(spans[name], local)
    return spans
