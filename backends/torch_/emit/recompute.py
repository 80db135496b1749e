"""What is computed again in the backward pass: whole blocks, by `torch.utils.checkpoint`."""

from __future__ import annotations

from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionRecompute


def recomputed(subject: Subject) -> tuple[Piece, ...]:
    """The blocks that run again."""
    stacks = [piece.instances().before for piece in subject.pieces if piece.repeated]
    blocks = f"{stacks[0]}*" if stacks else "*"
    return tuple(piece for piece in subject.pieces if _again(piece, blocks))


def _again(piece: Piece, blocks: str) -> bool:
    plan, made = piece.plan, {value for op in piece.graph.ops for value in op.results}
    if not plan.recompute:
        return False
    if not piece.repeated:
        raise _refuse(plan.name, blocks, "computing again what stands outside of blocks")
    if not made <= set(plan.recompute):
        raise _refuse(
            plan.name, blocks, f"computing a part of a block again ({len(plan.recompute)} of {len(made)} values)"
        )
    return True


def _refuse(name: str, blocks: str, what: str) -> EmissionRecompute:
    return EmissionRecompute(
        place=f"plan {name}",
        cause=f"{what} is not emitted yet",
        fix=f"plan with --fix recompute=none, or pin whole blocks only, as in --fix '{blocks}:recompute=on'",
    )
