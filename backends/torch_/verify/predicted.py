"""Predicted collectives of one step of a Program, and those of a run that are not among them.

Values and their gradients travel one by one: there must be a collective of this kind, group and size for each. What
concerns parameters (gathers, gradients) is packed into messages by the runtime, as the evaluator takes it to be; the
scalars of all micro-batches (targets, losses) are one message: of these the bytes are compared, by kind and group.
Terms of a loss may be added up first, and then take fewer.
Tokens and labels are read whole by every rank, where the Program has them cut and gathered: `whole` lists these.

How many rows travel to an expert that drops none depends on values: the Program has the mean, rounded up to whole
slots; a rank that has the rows of all experts has no slot that is empty. So of these exchanges each rank must execute
the planned number, and the ranks of a group together the planned bytes. Before rows, ranks tell one another how many
come, a number for each expert, or where rows are gathered whose each one is: `counts`. They are not priced. Where all
have parts of the same rows, they know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from meshwright.backends.printing.rows import in_parts, rows_of
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.fold import Call, Fold, FromInput
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.program import BodyProgram, Move, Program, Statement
from meshwright.ir.sharding.reshard import given_elements
from meshwright.ir.target.workload import Workload

COUNT_BYTES = 8
SCALAR_BYTES = 4
"""Of a count or a loss, which scripts have in fp32 at most and in what the model computes at least."""
EXPERT = 0
"""The dimension of rows for experts that counts these."""
Planned = tuple[str, tuple[str, ...], int]
"""Kind, mesh axes, bytes that each rank gives."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The communication of a step."""

    values: Mapping[Planned, int]
    packed: Mapping[tuple[str, tuple[str, ...]], int]
    """Bytes in all."""
    whole: Mapping[Planned, int]
    routed: Mapping[tuple[str, ...], tuple[int, Fraction, tuple[str, ...]]] = field(default_factory=dict)
    """Of rows that travel to experts and back, by mesh axes: how many exchanges, bytes in all, and the axes along which
    ranks have these together: their own, and those along which rows have travelled before, or will after."""
    counts: Mapping[Planned, int] = field(default_factory=dict)
    scalars: Mapping[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    """Bytes of scalars in all: as many at most, since terms of a loss are added up before they are summed."""
    told: int = 0
    """Bytes that there may be beside, at most, between ranks that sum scalars: of what micro-batches count for, which
    they may tell one another. It is not priced."""


def predicted(program: Program, fold: Fold, stages: Sequence[int]) -> Predicted:
    """The collectives of ranks that hold these stages of a program."""
    values: Counter[Planned] = Counter()
    packed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    scalars: Counter[tuple[str, tuple[str, ...]]] = Counter()
    whole: Counter[Planned] = Counter()
    routed: dict[tuple[str, ...], tuple[int, Fraction, tuple[str, ...]]] = {}
    counts: Counter[Planned] = Counter()
    calls = list(fold.calls())
    for number, name in (call for stage in stages for call in program.stages[stage].calls()):
        body, given = program.body(name), _given(calls[number])
        rows = _rows(calls[number].body.graph)
        for statement, times in _all(body, program.microbatches):
            if not isinstance(statement, Move) or statement.step.free:
                continue
            kind, axes = statement.step.kind, tuple(sorted(statement.step.axes))
            moved = rows.get(_value(statement))
            size = int(body.nbytes[statement.operand] * (moved.filled if moved else 1))
            if statement.reason not in ("value", "gradient"):
                held = body.elements[statement.operand], body.elements[statement.result]
                sent_elements = given_elements(statement.step, *held, body.mesh)
                packed[kind, axes] += int(sent_elements * _each(program, body, statement)) * times
            elif body.elements[statement.operand] == 1:
                scalars[kind, axes] += max(size, SCALAR_BYTES) * times
            elif kind == "all_to_all" and moved and moved.travels:
                before, nbytes, within = routed.get(axes, (0, Fraction(0), axes))
                local = body.locals[statement.operand]
                apart = {*within, *(shard.axis for shard in local.placement.dims[EXPERT])}
                travelling = int(body.nbytes[statement.operand]) * moved.filled
                routed[axes] = before + times, nbytes + travelling * times, tuple(sorted(apart))
                if moved.there and statement.reason == "value" and not in_parts(statement.step):
                    reached = local.placement.local_shape(local.type.shape, body.mesh)[EXPERT]
                    counts[kind, axes, int(reached) * COUNT_BYTES] += times
            elif kind == "all_gather" and moved and moved.there and statement.reason == "value":
                local = body.locals[statement.operand]
                values[kind, axes, size] += times
                slots = prod(local.placement.local_shape(local.type.shape, body.mesh)[:2])
                counts[kind, axes, int(slots * moved.filled) * COUNT_BYTES] += times
            elif statement.operand.partition("@")[0] in given:
                whole[kind, axes, size] += times
            else:
                values[kind, axes, size] += times
    told = SCALAR_BYTES * program.microbatches if program.microbatches > 1 else 0
    return Predicted(values, packed, whole, routed, counts, scalars, told)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of experts that drop none."""

    there: bool
    """Whether they are what is dispatched: it goes to experts."""
    back: bool
    """Whether they are what is combined: it comes back."""
    filled: Fraction
    """The part of the slots that is planned for them which they take, in the mean: slots are rounded up."""

    @property
    def travels(self) -> bool:
        return self.there or self.back


def _rows(graph: Graph) -> dict[str, _Rows]:
    """The rows of a body, by value. Where they cannot be told apart, only the user's code runs them."""
    try:
        made_of = rows_of(graph)
    except EmissionPrinted:
        return {}
    ops = {op.results[0]: op for op in graph.ops}
    back = {op.operands[0] for op in graph.ops if op.kind == "combine"}

    def of(value: str, dispatched: str) -> _Rows:
        op = ops[dispatched]
        filled = Fraction(graph.types[op.operands[1]].elements, prod(graph.types[dispatched].shape[:2]))
        return _Rows(value == dispatched, value in back, filled)

    return {value: of(value, dispatched) for value, dispatched in made_of.items()}


def _value(move: Move) -> str:
    """The value that a move moves, or whose gradient it moves."""
    value = move.operand.partition("@")[0]
    return value.removeprefix("d") if move.reason == "gradient" else value


def _each(program: Program, body: BodyProgram, move: Move) -> float:
    """Bytes per element of moves of parameters: gradients travel in one dtype, parameters in another. Gradients that
    are summed before they are scattered, or along axes that cut modules, travel as they were computed, or accumulated
    over micro-batches."""
    workload = program.workload or Workload(global_batch=1, seq=1, recipe="fp32")
    later = (one for one in (*body.backward, *body.sync) if isinstance(one, Move) and one.operand == move.result)
    first = any(one.step.kind == "reduce_scatter" for one in later) or set(move.step.axes) <= _within(body)
    added = program.microbatches > 1 and move in body.sync
    return workload.states.reduced if move.reason == "sync" and (added or not first) else workload.states.used


def _within(body: BodyProgram) -> set[str]:
    """The axes along which values are exchanged in a move."""
    moves = (one for one in (*body.forward, *body.backward) if isinstance(one, Move) and not one.step.free)
    values = (one for one in moves if one.reason in ("value", "gradient") and body.elements[one.operand] > 1)
    return {axis for one in values for axis in one.step.axes}


def _all(body: BodyProgram, microbatches: int) -> Iterator[tuple[Statement, int]]:
    """All statements, each with its number of runs in a step."""
    yield from ((statement, microbatches) for statement in (*body.forward, *body.backward))
    yield from ((statement, 1) for statement in (*body.sync, *body.publish))


def _given(call: Call) -> set[str]:
    """The inputs of a body that are entries of the batch."""
    inputs = zip(call.body.graph.inputs, call.sources, strict=True)
    return {item.value for item, source in inputs if isinstance(source, FromInput)}
