"""The collectives that a Program has in one step, and what of a run is not among them.

Values and their gradients travel one by one: there must be a collective of this kind, group and size for each. What
concerns parameters (gathers, gradients) is packed into messages by the runtime, as the evaluator takes it to be; the
scalars of all micro-batches (targets, losses) are one message: of these the bytes are compared, by kind and group.
Tokens and labels are read whole by every rank, where the Program has them cut and gathered: `whole` lists these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.ir.fold import Call, Fold, FromInput
from meshwright.ir.program import BodyProgram, Move, Program, Statement

Planned = tuple[str, tuple[str, ...], int]
"""Kind, mesh axes, bytes that each rank gives."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step communicates."""

    values: Mapping[Planned, int]
    packed: Mapping[tuple[str, tuple[str, ...]], int]
    """Bytes in all."""
    whole: Mapping[Planned, int]


def predicted(program: Program, fold: Fold, stages: Sequence[int] = (0,)) -> Predicted:
    """The collectives that ranks execute which hold these stages of a program."""
    values: Counter[Planned] = Counter()
    packed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    whole: Counter[Planned] = Counter()
    calls = list(fold.calls())
    for number, name in (call for stage in stages for call in program.stages[stage].calls()):
        body, given = program.body(name), _given(calls[number])
        for statement, times in _all(body, program.microbatches):
            if not isinstance(statement, Move) or statement.step.free:
                continue
            kind, axes = statement.step.kind, tuple(sorted(statement.step.axes))
            size = int(body.nbytes[statement.operand])
            scalar = body.elements[statement.operand] == 1
            if statement.reason not in ("value", "gradient") or scalar:
                packed[kind, axes] += size * times
            elif statement.operand.partition("@")[0] in given:
                whole[kind, axes, size] += times
            else:
                values[kind, axes, size] += times
    return Predicted(values, packed, whole)


def _all(body: BodyProgram, microbatches: int) -> Iterator[tuple[Statement, int]]:
    """All statements, and how often each runs in a step."""
    yield from ((statement, microbatches) for statement in (*body.forward, *body.backward))
    yield from ((statement, 1) for statement in (*body.sync, *body.publish))


def _given(call: Call) -> set[str]:
    """The inputs of a body that are entries of the batch."""
    inputs = zip(call.body.graph.inputs, call.sources, strict=True)
    return {item.value for item, source in inputs if isinstance(source, FromInput)}
