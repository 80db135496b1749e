"""How a script cuts sequences over the context axis, where attention alone exchanges anything.

Outside of modules a cut sequence is a DTensor: a model that makes its position tables from `x.shape[1]` sees the whole
length, and makes them whole. A block, and every other module with weights, computes on this rank's tokens as plain
tensors: a hook takes its part of the tables, another one makes its result a DTensor again. The last such module leaves
its result plain, since the loss is taken of this rank's tokens.

Inside of blocks the attention itself is replaced, in the modules that call it: queries of these tokens meet the keys
and values of all of them, gathered or passing by in a ring, or each rank takes some heads of the whole sequence
(Ulysses).

A module around attention may make a table of all positions itself, from the length of what it is given (T5's buckets).
To its own code sequences are DTensors, too; modules with weights inside of it compute on this rank's tokens, or on its
rows of the table.

So of what the program moves along the axis in a body, these must be all: tables that come in whole, or are made so, and
are cut; operands and results of attention, rows for experts, scalars. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from meshwright.backends.torch_.emit.experts import exchanged
from meshwright.backends.torch_.emit.rings import ROWS, kernel_of, rows_fit
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.adjoint import Split
from meshwright.ir.combined import ATTENTION, PLAIN_MASKS, UNBIASED, WAYS, attention_outside_blocks
from meshwright.ir.errors import EmissionModule
from meshwright.ir.graph import Op
from meshwright.ir.placement import CONTIGUOUS
from meshwright.ir.program import BodyProgram, Move
from meshwright.ir.rewrite import facts_of

ROWS_OF_MASK = -2
"""The dimension of queries in such a mask: it is cut as tables are, but where a rank attends for all tokens."""
SEQUENCE = 1
"""The dimension of tokens in a sequence."""


@dataclass(frozen=True, slots=True)
class Own:
    """A module that computes on this rank's tokens."""

    path: str
    """Relative to the instance of the body; empty for that itself."""
    table: int | None
    """The dimension, counted from the end, at which tables of all positions that it is given are cut."""
    leaves: bool
    """Whether its result goes on as a DTensor."""
    dim: int = SEQUENCE
    """The dimension of that which is cut."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A module whose own code sees whole sequences."""

    path: str
    own: tuple[Own, ...]
    """What is in it and computes on this rank's part."""


@dataclass(frozen=True, slots=True)
class Body:
    """What becomes of the modules of one body."""

    piece: Piece
    own: tuple[Own, ...]
    attention: tuple[tuple[str, str], ...] = ()
    """The modules that call attention, by paths relative to the instance, and how: all_gather, ulysses or ring."""
    unmasked: tuple[str, ...] = ()
    """Those that give it a mask of their own tokens which hides nothing."""
    inside: tuple[Inside, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """How sequences are cut: over `axis`, in two chunks per rank if `ends`."""

    axis: str
    ends: bool
    bodies: tuple[Body, ...]
    entries: tuple[str, ...]
    """What of the batch is cut."""
    masked: bool
    """Whether a model makes masks for all positions, and gives them to its blocks."""
    kernel: str
    """Which of torch's fused kernels computes attention in a ring: it is called by name there."""
    narrow: bool
    """Whether values are narrower than keys."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """How attention meets the tokens of other ranks; all_gather if there is none."""
        found = dict.fromkeys(kind for body in self.bodies for _, kind in body.attention)
        return tuple(found) or ("all_gather",)

    @property
    def unmasked(self) -> bool:
        return any(body.unmasked for body in self.bodies)

    @property
    def inside(self) -> bool:
        return any(body.inside for body in self.bodies)

    @property
    def biased(self) -> bool:
        """Whether a bias of positions in attention is trained."""
        ops = (op for body in self.bodies for op in body.piece.graph.ops)
        return any(op.kind == ATTENTION and len(op.operands) > UNBIASED for op in ops)

    @property
    def several(self) -> bool:
        """Whether blocks hand on more than sequences."""
        return any(body.piece.repeated and len(body.piece.graph.outputs) > 1 for body in self.bodies)


def context_of(subject: Subject, axis: str) -> Context:
    """How a plan cuts sequences."""
    owners = [(piece, path) for piece in subject.pieces for path in ([""] if piece.repeated else piece.owners())]
    if owners[-1][0].repeated:
        raise EmissionModule(
            place=f"plan {owners[-1][0].plan.name}",
            cause="the loss is taken of a block's result, which is a DTensor",
            ways=("--fix cp=1",),
        )
    if problem := attention_outside_blocks(subject.decisions, subject.fold):
        raise EmissionModule(
            place=f"axis {axis}",
            cause=f"this is not emitted: {problem}",
            ways=("--fix cp=1",),
            fix="repeat a block in the model",
        )
    found = [_Reader(subject, piece, axis, last=owners[-1]) for piece in subject.pieces]
    return Context(
        axis,
        ends=False,
        bodies=tuple(reader.body() for reader in found),
        entries=tuple(given.value for given, _ in subject.fold.inputs if "s" in given.labels),
        masked=any(reader.masked for reader in found),
        kernel=kernel_of(subject.device, subject.workload.precision, masked=any(reader.masked for reader in found)),
        narrow=any(reader.narrow for reader in found),
    )


@dataclass
class _Reader:
    """Reads off one body what becomes of its modules."""

    subject: Subject
    piece: Piece
    axis: str
    last: tuple[Piece, str]

    @cached_property
    def program(self) -> BodyProgram:
        return self.subject.bodies[self.piece.plan.name]

    @cached_property
    def attentions(self) -> tuple[Op, ...]:
        return tuple(op for op in self.piece.graph.ops if op.kind == ATTENTION)

    @property
    def masked(self) -> bool:
        return any(op.attr("mask") not in PLAIN_MASKS for op in self.attentions)

    @property
    def narrow(self) -> bool:
        return any(self.width(op, 2) < self.width(op, 1) for op in self.attentions)

    def width(self, op: Op, slot: int) -> int:
        return self.piece.graph.types[op.operands[slot]].shape[-1]

    def kinds(self) -> dict[str, str]:
        """How modules call attention."""
        found: dict[str, str] = {}
        for op in self.attentions:
            kind = self.kind(op)
            if found.setdefault(op.module, kind) != kind:
                raise self.refuse(op, "its module calls attention in another way, too")
        return found

    def kind(self, op: Op) -> str:
        if any(choice.layout != CONTIGUOUS for axis, choice in self.splits(op) if axis == self.axis):
            raise self.refuse(op, "a sequence that is not cut into one run per rank is not emitted yet")
        named = [choice.factors for axis, choice in self.splits(op) if axis == self.axis]
        kind = WAYS.get(named[0]) if len(named) == 1 else None
        if kind is None:
            raise self.refuse(op, f"it is not split by queries or heads over {self.axis}")
        if kind == "ring":
            self.check_ring(op)
        return kind

    def check_ring(self, op: Op) -> None:
        """Must: the fused kernel takes what every rank has."""
        keys, values = (self.width(op, slot) for slot in (1, 2))
        if values > keys or op.attr("dropout"):
            raise self.refuse(op, "torch has no fused kernel for it, by which a ring puts parts together")
        own = self.piece.graph.types[op.operands[0]].shape[-2] // self.subject.mesh.axis(self.axis).size
        if not rows_fit(kernel_of(self.subject.device, self.subject.workload.precision, masked=self.masked), own):
            raise self.refuse(op, f"a ring of {own} tokens per rank; this kernel of CUDA counts rows in {ROWS}s")

    def splits(self, op: Op) -> list[tuple[str, Split]]:
        choices = self.piece.plan.strategy(op.name).choices
        return [(axis, choice) for axis, choice in choices if isinstance(choice, Split)]

    def body(self) -> Body:
        tables = self.tables()
        if self.piece.repeated:
            if not self.piece.graph.ops:
                return Body(self.piece, ())
            cut = {dim for dims in tables.values() for dim in dims}
            if self.masked:
                cut.add(ROWS_OF_MASK)
            own: tuple[Own, ...] = (Own("", self.one(cut, ""), leaves=True),)
        else:
            own = tuple(self.module(path, tables) for path in self.piece.owners())
        unmasked = tuple(dict.fromkeys(op.module for op in self.attentions if self.hides_nothing(op)))
        return Body(self.piece, own, tuple(self.kinds().items()), unmasked, tuple(self.inside()))

    def hides_nothing(self, op: Op) -> bool:
        return op.attr("mask") == "full" and op.attr("mask_shape") is not None and len(op.operands) == UNBIASED

    def inside(self) -> Iterator[Inside]:
        """Modules that make tables of positions, of which they have rows."""
        for path in dict.fromkeys(path for value, _ in self.sliced() if (path := self.around(value)) is not None):
            if path in self.piece.owners():
                raise self.refuse(
                    self.called(path), "its module holds parameters itself, and makes tables of positions"
                )
            owners = [one for one in self.piece.owners() if _inside(one, path)]
            yield Inside(path, tuple(self.in_it(one, self.called(path)) for one in owners))

    def called(self, path: str) -> Op:
        """The attention that a module calls."""
        return next(op for op in self.attentions if op.module == path)

    def in_it(self, path: str, attention: Op) -> Own:
        """A module with weights in one that calls attention."""
        graph = self.piece.graph
        weights = {param.value for param in graph.params}
        op = next(op for op in graph.ops if op.module == path and not weights.isdisjoint(op.operands))
        made = facts_of(graph)[op.name].applied(self.piece.plan.strategy(op.name), self.subject.mesh).results[0]
        cut = made.value.on(self.axis)
        if not isinstance(cut, int):
            raise self.refuse(op, f"its result is not cut over {self.axis}")
        rows = {at for value, at in self.sliced() if value in op.operands}
        return Own(path, self.one(rows, path), leaves=graph.ops.index(op) < graph.ops.index(attention), dim=cut)

    @cached_property
    def outside(self) -> set[str]:
        """What comes in."""
        found = {item.value for item in self.piece.graph.inputs}
        if not self.piece.repeated or self.piece.first in self.subject.calls.positioned:
            found |= {value for op in self.piece.graph.ops if not op.operands for value in op.results}
        return found

    @cached_property
    def maker(self) -> dict[str, Op]:
        return {value: op for op in self.piece.graph.ops for value in op.results}

    def around(self, value: str) -> str | None:
        """The module that calls attention, and makes a value in it of nothing."""
        op = self.maker.get(value)
        if op is None or op.operands or value in self.outside:
            return None
        return next((one.module for one in self.attentions if _inside(op.module, one.module)), None)

    def sliced(self) -> Iterator[tuple[str, int]]:
        """Whole values of which a rank takes its part: the dimension, counted from the end."""
        for statement in self.program.forward:
            if isinstance(statement, Move) and self.axis in statement.step.axes and statement.step.kind == "slice":
                value = statement.operand.partition("@")[0]
                yield value, statement.step.dim - len(self.piece.graph.types[value].shape)

    def module(self, path: str, tables: dict[str, set[int]]) -> Own:
        """A module outside of blocks."""
        if not path:
            raise EmissionModule(
                place=f"plan {self.piece.plan.name}, {self.piece.graph.params[0].path}",
                cause="a parameter that the model holds itself is not emitted with a cut sequence",
                ways=("--fix cp=1",),
                fix="hold it in a module of its own",
            )
        read = {value for op in self.piece.graph.ops if _inside(op.module, path) for value in op.operands}
        cut = {dim for value in read for dim in tables.get(value, set())}
        return Own(path, self.one(cut, path), leaves=(self.piece, path) != self.last)

    def one(self, cut: set[int], path: str) -> int | None:
        if len(cut) > 1:
            raise EmissionModule(
                place=f"plan {self.piece.plan.name}, module {path or 'of the block'}",
                cause="tables that come in whole are cut along different dimensions",
                ways=("--fix cp=1",),
            )
        return next(iter(cut)) if cut else None

    def tables(self) -> dict[str, set[int]]:
        """What comes into modules whole and is cut there: dimensions, counted from the end, by value."""
        graph, found = self.piece.graph, dict[str, set[int]]()
        met = {value for op in self.attentions for value in (*op.operands, *op.results)} | exchanged(self.piece)
        for statement in (*self.program.forward, *self.program.backward):
            if not isinstance(statement, Move) or self.axis not in statement.step.axes:
                continue
            if statement.reason not in ("value", "gradient") or self.program.elements[statement.operand] <= 1:
                continue
            value = statement.operand.partition("@")[0]
            if statement.reason == "gradient":
                value = value.removeprefix("d")
            if value in met or (statement.step.kind == "slice" and self.around(value) is not None):
                continue
            if statement.step.kind != "slice" or value not in self.outside or statement.reason != "value":
                raise EmissionModule(
                    place=f"plan {self.piece.plan.name}, {statement}",
                    cause=f"axis {self.axis} cuts sequences, and this is no table and no operand of attention",
                    ways=("--fix cp=1",),
                )
            found.setdefault(value, set()).add(statement.step.dim - len(graph.types[value].shape))
        return found

    def refuse(self, op: Op, cause: str) -> EmissionModule:
        return EmissionModule(
            place=f"plan {self.piece.plan.name}, %{op.name} of {self.piece.path(op.module) or 'the model'}",
            cause=cause,
            ways=("--fix cp=1", "--fix context=all_gather"),
        )


def _inside(path: str, around: str) -> bool:
    return path == around or path.startswith(f"{around}.")
