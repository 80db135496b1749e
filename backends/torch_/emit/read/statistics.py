"""Batch norms over cut batches: they normalise by the statistics of all copies, as on one device.

Ranks add up both moments of every channel in the forward pass, and the gradients of weight and bias in the backward
pass, of which those of the moments are made: two numbers per channel each way, as planned (`rules.norm`). torch's own
`SyncBatchNorm` sends more, and runs on GPUs alone. Of micro-batches, each has statistics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.subject import Piece, Subject
from meshwright.ir.errors import EmissionModule
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.rules.registry import expand, signature_of
from meshwright.ir.sharding.adjoint import Split, Strategy

KIND = "batch_norm"
BATCH = "n"


def moments_in(graph: Graph) -> set[str]:
    """The moments of batch norms in training, by name, where an axis cuts their batch."""
    ops = [op for op in graph.ops if op.kind == KIND and op.attr("training", True)]
    return {f"{op.name}.{expand(signature_of(op, graph.types)).graph.ops[0].name}" for op in ops}


def shared_statistics(subject: Subject, batch: tuple[str, ...]) -> tuple[tuple[Piece, tuple[str, ...]], ...]:
    """The modules with such batch norms, by piece; `batch` are the axes that cut the batch."""
    found = ((piece, tuple(dict.fromkeys(_modules(piece, batch)))) for piece in subject.pieces)
    return tuple((piece, modules) for piece, modules in found if modules)


def _modules(piece: Piece, batch: tuple[str, ...]) -> Iterator[str]:
    for op in piece.graph.ops:
        if op.kind == KIND and op.attr("training", True):
            cuts = _cuts(piece.plan.strategy(op.name))
            if cuts != [(axis, (BATCH,)) for axis in batch]:
                raise _refuse(piece, op)
            if cuts:
                yield op.module


def _cuts(strategy: Strategy) -> list[tuple[str, tuple[str, ...]]]:
    """Cuts by the axes of the dimensions that are normalised over."""
    chosen = [(axis, choice.factors) for axis, choice in strategy.choices if isinstance(choice, Split)]
    return [(axis, factors) for axis, factors in chosen if factors != ("c",)]


def _refuse(piece: Piece, op: Op) -> EmissionModule:
    shown = piece.plan.strategy(op.name)
    return EmissionModule(
        place=f"plan {piece.plan.name}, %{op.name} ({op.kind}) of {piece.path(op.module) or 'the model'}",
        cause=f"batch norms that are cut otherwise than by the batch are not emitted yet, and this one is: {shown}",
    )
