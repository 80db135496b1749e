"""Programs: everything that a rank executes, written out.

A Program is the lowered form of (Fold, Decisions): no choice is left in it and no communication is implied. It is
folded like the model: one `BodyProgram` per body plan, run as often as its stage repeats it. A body program is a list
of statements for one rank, the same text for all ranks of the mesh; what differs is which shard a name stands for.
Groups are given by mesh axes ("all ranks that differ only along tp"), so the text does not grow with the cluster.

Statements:

    Compute   one operator on local shards                 %q = linear(%x@1, %q_proj)   {tp=n dp=d0}
    Gradient  its vector-Jacobian product                  d%x@1, d%q_proj = linear'(…)
    Move      one step of a reshard (a collective, or a free local step)
    Ring      an operator that passes shards around a ring while it computes
    Add       local sum, where several readers' gradients meet
    Zero      a gradient that nobody contributed to

Every local name has a global type and a placement; `ir.verify.programs` re-derives each placement from the statement
that makes it and knows nothing about the lowering that produced it. `meshwright.ir.program.text` writes and reads all
of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType

from meshwright.ir.errors import UnknownStyle
from meshwright.ir.graph.graph import ITEMSIZE, Type, Update
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.rules.base import Signature
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.layouts import Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.target.workload import ATTENTION, COPY_BYTES, STYLES, Workload


@dataclass(frozen=True, slots=True)
class Local:
    """The tensor of a local name: the rank's shard of a tensor of this global type."""

    type: Type
    placement: Placement


@dataclass(frozen=True, slots=True)
class Compute:
    """One operator on local shards. The signature is the global one; local sizes follow from the strategy."""

    signature: Signature
    strategy: Strategy
    operands: tuple[str, ...]
    results: tuple[str, ...]
    op: str
    """The operator of the body's graph that this comes from."""

    def __str__(self) -> str:
        tail = f"  {{{self.strategy}}}" if self.strategy.choices else ""
        return f"{_names(self.results)} = {self.signature.kind}({_names(self.operands)}){tail}"


@dataclass(frozen=True, slots=True)
class Gradient:
    """The vector-Jacobian product of an operator: from gradients of its results to gradients of the operands in
    `wanted`.

    `grads` has one entry per result, None where no gradient arrives; `results` one per wanted operand. `operands` and
    `outputs` are those of the forward statement; only what `Rule.reads` (and `reruns`) names need be at hand.
    """

    signature: Signature
    strategy: Strategy
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    grads: tuple[str | None, ...]
    wanted: tuple[int, ...]
    results: tuple[str, ...]
    op: str

    def __str__(self) -> str:
        grads = ", ".join(f"%{name}" if name else "0" for name in self.grads)
        tail = f"  {{{self.strategy}}}" if self.strategy.choices else ""
        return f"{_names(self.results)} = {self.signature.kind}'({_names(self.operands)}; {grads}){tail}"


@dataclass(frozen=True, slots=True)
class Ring:
    """Attention whose keys and values travel around the ring of `axis` while queries stay: n-1 shifts of (k, v)
    forward; backward the same again, and n shifts of their gradients. A backward ring names, as a `Gradient` does, the
    `outputs`, `grads` and `wanted` operands."""

    signature: Signature
    strategy: Strategy
    axis: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    op: str
    outputs: tuple[str, ...] = ()
    grads: tuple[str | None, ...] = ()
    wanted: tuple[int, ...] = ()

    @property
    def backward(self) -> bool:
        return bool(self.wanted)

    def shifts(self, mesh: Mesh) -> int:
        """The number of times that a tensor as large as the keys is passed on, and one as large as the values."""
        n = mesh.axis(self.axis).size
        return 2 * n - 1 if self.backward else n - 1

    def __str__(self) -> str:
        mark = "'" if self.backward else ""
        return f"{_names(self.results)} = ring[{self.axis}] {self.signature.kind}{mark}({_names(self.operands)})"


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a reshard."""

    step: Step
    operand: str
    result: str
    reason: str = "value"
    """Why it is there: "value", "gradient", "parameter" (gather before use), "sync" (gradient reduction), "update"
    (of parameters)."""

    def __str__(self) -> str:
        return f"%{self.result} = {self.step} %{self.operand}  for {self.reason}"


@dataclass(frozen=True, slots=True)
class Add:
    """The local sum of values in one placement."""

    operands: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return f"%{self.result} = {' + '.join(f'%{name}' for name in self.operands)}"


@dataclass(frozen=True, slots=True)
class Zero:
    """A gradient that is zero because no path leads to the loss."""

    result: str

    def __str__(self) -> str:
        return f"%{self.result} = 0"


Statement = Compute | Gradient | Ring | Move | Add | Zero


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that execute a body, as far as they decide what is saved for the backward pass."""

    style: str = "eager"
    device: str = "cuda"
    attention: str = "flash2"
    fused_loss: bool = False
    """Fused kernels keep the scores of a cross entropy once, as they came (compilers always do, eager ones never)."""
    copied: str = ""
    """The precision in which products of trained weights keep a copy of their inputs, of `COPY_BYTES`; empty: they keep
    these as they arrive."""

    def __post_init__(self) -> None:
        for name, known in ((self.style, STYLES), (self.attention, ATTENTION)):
            if name not in known:
                raise UnknownStyle(place=repr(name), cause="no such kernels", fix=f"use one of {', '.join(known)}")
        if self.copied not in ("", *COPY_BYTES):
            named = f"use one of {', '.join(COPY_BYTES)}"
            raise UnknownStyle(place=repr(self.copied), cause="no copies in this precision", fix=named)


@dataclass(frozen=True, slots=True)
class Kept:
    """Something kept from forward to backward: a local name, or an extra tensor of an operator (log-sum-exp)."""

    name: str
    nbytes: int
    """Bytes on one rank."""
    host: bool = False
    """Whether it waits in the host's memory: it leaves when the forward list is done, and is back before the backward
    list begins."""


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """A parameter inside a body program.

    It is stored as `stored`; `value` is the name in its compute placement; `grad` the name of the gradient that the
    backward pass leaves and micro-batches add up (None if frozen): in its stored placement `grads` where that is finer
    than the compute placement, and as computed, unreduced, where it is not. At the end of the step `sync` brings it to
    the optimizer's shards as `synced`; `publish` brings the optimizer's result `updated` back to where the parameter
    is stored as `published`. There is no `synced` where another call on the same ranks has the parameter's tensor, too:
    gradients are added to those of the first (`meshwright.ir.program.ties`).
    """

    path: str
    value: str
    stored: str
    grads: Placement
    optimizer: Placement
    grad: str | None = None
    synced: str | None = None
    updated: str | None = None
    published: str | None = None
    buffer: bool = False
    host: bool = False
    """Whether the optimizer's state lies in the host's memory, and the host makes the step: `synced` goes down, and
    `updated` comes up."""
    lent: str | None = None
    """The name under which gradients come back in the backward pass from later calls of its stage that borrow the
    value; None where none does (`meshwright.ir.program.units`)."""
    borrowed: str | None = None
    """The body whose value it is: that of the latest call of it before, in this stage, which lends it. Nothing is
    stored here, and the gradient goes back there."""


@dataclass(frozen=True)
class BodyProgram:
    """One body on one kind of stage.

    - Every name is defined once in forward, and once in backward unless recomputed there under the same name.
    - The backward list reads nothing but inputs, parameters, kept values, and what it computes itself.
    - A statement that several body programs hold as one object must stand for the same shards in all of them.
    """

    name: str
    body: str
    mesh: Mesh
    locals: Mapping[str, Local]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: tuple[ParamSlot, ...]
    forward: tuple[Statement, ...]
    backward: tuple[Statement, ...]
    output_grads: tuple[str | None, ...]
    """For each output the name under which its gradient arrives, None where none does."""
    input_grads: tuple[str | None, ...]
    """For each input the name of the gradient that leaves, None where none does."""
    kept: tuple[Kept, ...]
    updates: tuple[Update, ...] = ()
    sync: tuple[Statement, ...] = ()
    """Once per step: accumulated gradients to the optimizer's shards."""
    publish: tuple[Statement, ...] = ()
    """Once per step: updated parameters from the optimizer's shards back to where they are stored."""
    kernels: Kernels = Kernels()
    """What `kept` is counted for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "locals", MappingProxyType(dict(self.locals)))

    @cached_property
    def arriving(self) -> tuple[str, ...]:
        """Gradients that the backward pass begins with: of outputs, and of parameters that the body lent."""
        return tuple(name for name in (*self.output_grads, *(slot.lent for slot in self.params)) if name)

    @cached_property
    def elements(self) -> Mapping[str, int]:
        """Elements of every local name on one rank."""
        counted: dict[tuple[int, tuple[int, ...]], int] = {}  # by identity: many names share few placements
        found = {}
        for name, local in self.locals.items():
            key = id(local.placement), local.type.shape
            if key not in counted:
                counted[key] = local_elements(local.placement, local.type.shape, self.mesh)
            found[name] = counted[key]
        return found

    @cached_property
    def nbytes(self) -> Mapping[str, float]:
        """Bytes of every local name on one rank."""
        elements = self.elements
        return {name: elements[name] * ITEMSIZE[local.type.dtype] for name, local in self.locals.items()}

    @cached_property
    def uneven(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The axes that cut anything into parts of unequal sizes, with these sizes: one for each such cut."""
        stored = [placement for slot in self.params for placement in (slot.grads, slot.optimizer)]
        placements = {id(one): one for one in (*(local.placement for local in self.locals.values()), *stored)}
        shards = (shard for one in placements.values() for dim in one.dims for shard in dim)
        return tuple({(one.axis, one.layout.sizes): None for one in shards if isinstance(one.layout, Uneven)})

    @cached_property
    def offloads(self) -> bool:
        """Whether anything of the body waits in the host's memory."""
        return any(kept.host for kept in self.kept) or any(slot.host for slot in self.params)

    def moves(self, *, free: bool = False) -> tuple[Move, ...]:
        """The collectives of one forward and backward run."""
        found = [s for s in (*self.forward, *self.backward) if isinstance(s, Move)]
        return tuple(move for move in found if free or not move.step.free)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive calls of the fold that repeat a period of body programs."""

    programs: tuple[str, ...]
    repeats: int
    first_call: int


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of a rank's work list.

    Kinds: F forward, B full backward, I input gradients, W weight gradients; send_F, recv_F (activations), send_B,
    recv_B (gradients) with `peer` the other stage; sync and step end the optimizer step.
    """

    kind: str
    stage: int = -1
    microbatch: int = -1
    peer: int = -1

    def __str__(self) -> str:
        if self.stage < 0:
            return self.kind
        peer = f">{self.peer}" if self.kind.startswith("send") else (f"<{self.peer}" if self.peer >= 0 else "")
        return f"{self.stage}{self.kind}{self.microbatch}{peer}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its runs, and the ranks that run them."""

    mesh: Mesh
    ranks: tuple[int, ...]
    runs: tuple[Run, ...]
    first: int
    last: int

    def calls(self) -> Iterator[tuple[int, str]]:
        """The number of every call of the fold that runs on the stage, with the name of its body program."""
        for run in self.runs:
            names = run.programs * run.repeats
            yield from enumerate(names, run.first_call)


@dataclass(frozen=True, slots=True)
class Tie:
    """One parameter that several body programs hold, perhaps on different stages: at the end of the step their
    gradients are added, on the same ranks before they are reduced, and over the stages that hold it."""

    path: str
    holders: tuple[tuple[int, int], ...]
    """(stage, call) of every holder, in running order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An input of the model in a micro-batch, placed as the first call that reads it wants it."""

    name: str
    type: Type
    placement: Placement
    mesh: Mesh

    @property
    def nbytes(self) -> float:
        """Bytes of the entry in one micro-batch, on a rank."""
        return float(local_elements(self.placement, self.type.shape, self.mesh) * ITEMSIZE[self.type.dtype])


@dataclass(frozen=True)
class Program:
    """The program of a whole step."""

    bodies: tuple[BodyProgram, ...]
    stages: tuple[Stage, ...]
    transfers: tuple[Transfer, ...]
    actions: tuple[tuple[tuple[int, ...], Sequence[Action]], ...]
    """For each group of ranks its list of actions."""
    ties: tuple[Tie, ...] = ()
    entries: tuple[Entry, ...] = ()
    microbatches: int = 1
    workload: Workload | None = None
    """What it trains and on which software; prices depend on it, what is computed does not."""

    def body(self, name: str) -> BodyProgram:
        return next(body for body in self.bodies if body.name == name)

    @property
    def kernels(self) -> Kernels:
        """The kernels that execute the bodies."""
        return self.bodies[0].kernels if self.bodies else Kernels()


@lru_cache(maxsize=65536)
def local_elements(placement: Placement, shape: tuple[int, ...], mesh: Mesh) -> int:
    """Elements of the shard that the first rank holds."""
    return prod(placement.local_shape(shape, mesh))


def operands_of(statement: Statement) -> tuple[str, ...]:
    """The local names a statement reads."""
    if isinstance(statement, Gradient) or (isinstance(statement, Ring) and statement.backward):
        return (*statement.operands, *statement.outputs, *filter(None, statement.grads))
    if isinstance(statement, Move):
        return (statement.operand,)
    return () if isinstance(statement, Zero) else statement.operands


def values_read(statement: Statement) -> tuple[str, ...]:
    """Names whose values a statement needs. A gradient statement repeats the operands and results of its forward
    statement (`verify_gradients`), also those that its derivatives do not read."""
    if not isinstance(statement, Gradient):
        return operands_of(statement)
    rule = infer(statement.signature)
    if rule.reruns(statement.wanted):
        return operands_of(statement)
    read = rule.reads(statement.wanted)
    return (
        *(name for index, name in enumerate(statement.operands) if index in read),
        *(name for name in statement.grads if name),
    )


def results_of(statement: Statement) -> tuple[str, ...]:
    """The local names a statement defines."""
    return (statement.result,) if isinstance(statement, (Move, Add, Zero)) else statement.results


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"%{name}" for name in names)
