"""Masks that a model makes for all heads, of constants, where a tensor axis cuts attention by heads: the plan has a
part of them on every rank, and the model's code makes them whole."""

from __future__ import annotations

from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.combined import ATTENTION
from meshwright.ir.rewrite import facts_of

HEADS = 1
"""The dimension of heads in attention."""


def masked_heads(subject: Subject, piece: Piece, axis: str) -> tuple[str, ...]:
    """The modules that call attention so; paths relative to the instance."""
    found = []
    for op in piece.graph.ops:
        shape = op.attr("mask_shape")
        if op.kind != ATTENTION or not isinstance(shape, tuple) or len(shape) < 3 or shape[-3] == 1:
            continue
        applied = facts_of(piece.graph)[op.name].applied(piece.plan.strategy(op.name), subject.mesh)
        if applied.results[0].value.on(axis) == HEADS:
            found.append(op.module)
    return tuple(dict.fromkeys(found))
