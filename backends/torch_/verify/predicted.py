"""The collectives that a Program has in one step, and what of a run is not among them.

Values and their gradients travel one by one: there must be a collective of this kind, group and size for each. What
concerns parameters (gathers, gradients) is packed into messages by the runtime, as the evaluator takes it to be, so of
that the bytes are compared, by kind and group. Tokens and labels are read whole by every rank, where the Program has
them cut and gathered: `whole` lists these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.ir.fold import Call, Fold, FromInput
from meshwright.ir.mesh import Mesh
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


def predicted(program: Program, fold: Fold) -> Predicted:
    """The collectives of a program of one stage and one micro-batch."""
    values: Counter[Planned] = Counter()
    packed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    whole: Counter[Planned] = Counter()
    calls = list(fold.calls())
    for number, name in program.stages[0].calls():
        body, given = program.body(name), _given(calls[number])
        for statement in _all(body):
            if not isinstance(statement, Move) or statement.step.free:
                continue
            kind, axes = statement.step.kind, tuple(sorted(statement.step.axes))
            size = int(body.nbytes[statement.operand])
            if statement.reason not in ("value", "gradient"):
                packed[kind, axes] += size
            elif statement.operand.partition("@")[0] in given:
                whole[kind, axes, size] += 1
            else:
                values[kind, axes, size] += 1
    return Predicted(values, packed, whole)


def _all(body: BodyProgram) -> tuple[Statement, ...]:
    return (*body.forward, *body.backward, *body.sync, *body.publish)


def _given(call: Call) -> set[str]:
    """The inputs of a body that are entries of the batch."""
    inputs = zip(call.body.graph.inputs, call.sources, strict=True)
    return {item.value for item, source in inputs if isinstance(source, FromInput)}


def unlike(
    found: Mapping[tuple[str, tuple[int, ...], int], int], planned: Predicted, mesh: Mesh, rank: int
) -> list[str]:
    """How the collectives of a rank differ from the planned ones."""
    left: Counter[tuple[str, tuple[int, ...], int]] = Counter(found)
    wrong = []
    for (kind, axes, size), number in sorted(planned.values.items()):
        key = kind, tuple(sorted(mesh.group(rank, axes))), size
        if left[key] < number:
            shown = f"{kind} over {'.'.join(axes)} of {size} bytes"
            wrong.append(f"{shown}: {number} planned, {left[key]} executed")
        left[key] = max(0, left[key] - number)
    rest: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for (kind, group, size), number in left.items():
        rest[kind, group] += number * size
    for (kind, axes), size in sorted(planned.packed.items()):
        group = tuple(sorted(mesh.group(rank, axes)))
        executed = rest.pop((kind, group), 0)
        if executed != size:
            wrong.append(f"{kind} over {'.'.join(axes)}, of parameters: {size} bytes planned, {executed} executed")
    extra = [(kind, group, size) for (kind, group), size in sorted(rest.items()) if size]
    return [*wrong, *(f"{kind} over ranks {group}: {size} bytes executed, none planned" for kind, group, size in extra)]
