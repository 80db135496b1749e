"""Which modules hold experts that an axis cuts apart.

A module of routed experts is called with tokens [t, d], the experts chosen for each [t, k], and their weights [t, k].
It holds all experts in stacked parameters [experts, ...], and their number as `num_experts`: those of transformers do.
In the script every rank keeps its own experts, and calls the module, as it is, on the rows that are sent to it. Experts
with a capacity (`capacity_factor`, `group_size`: `meshwright.ir.frontends.moe`) are sent as many rows by each rank, and
called without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionAxis, EmissionModule
from meshwright.ir.graph import Op
from meshwright.ir.program import Move
from meshwright.ir.rewrite import facts_of


@dataclass(frozen=True, slots=True)
class Routed:
    """The modules of one body whose experts the axis cuts apart; paths relative to the instance."""

    piece: Piece
    modules: tuple[str, ...]
    limited: tuple[str, ...]
    """Those of them that have a capacity."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts that are cut apart over `axes`: tokens travel along one after the other to reach them."""

    axes: tuple[str, ...]
    bodies: tuple[Routed, ...]

    def holds(self, piece: Piece, path: str) -> bool:
        """Whether a parameter belongs to such experts."""
        return any(path.startswith(f"{module}.") for one in self.bodies if one.piece is piece for module in one.modules)


def experts_of(subject: Subject, axes: tuple[str, ...]) -> Experts:
    """The modules of a plan that hold experts."""
    found = [Routed(piece, tuple(_modules(subject, piece, axes)), limited_in(piece)) for piece in subject.pieces]
    orders = {_order(subject, piece) for piece in subject.pieces} - {()}
    if len(orders) != 1:
        raise EmissionAxis(
            place=f"axes {' and '.join(axes)}",
            cause="experts are cut apart in several ways",
            ways=("--fix ep=1",),
        )
    return Experts(orders.pop(), tuple(one for one in found if one.modules))


def limited_in(piece: Piece) -> tuple[str, ...]:
    """The modules of a body whose experts have a capacity."""
    return tuple(op.module for op in piece.graph.ops if op.kind == "dispatch" and not op.attr("dropless"))


def _order(subject: Subject, piece: Piece) -> tuple[str, ...]:
    """The axes along which rows travel to experts of a body, in this order."""
    rows = {value for op in piece.graph.ops if op.kind == "dispatch" for value in op.results}
    steps = (one for one in subject.bodies[piece.plan.name].forward if isinstance(one, Move))
    sent = (one.step.axes for one in steps if one.step.kind == "all_to_all" and one.operand.partition("@")[0] in rows)
    return tuple(dict.fromkeys(axis for axes in sent for axis in axes))


def exchanged(piece: Piece) -> set[str]:
    """The values that travel between tokens and experts."""
    ops = piece.graph.ops
    sent = {value for op in ops if op.kind == "dispatch" for value in op.results}
    return sent | {op.operands[0] for op in ops if op.kind == "combine"}


def _modules(subject: Subject, piece: Piece, axes: tuple[str, ...]) -> Iterator[str]:
    graph, back = piece.graph, [op.module for op in piece.graph.ops if op.kind == "combine"]
    weights = {param.value for param in graph.params}
    for op in graph.ops:
        if op.kind != "dispatch":
            continue
        if not op.attr("dropless") and not op.attr("groups"):
            raise _refuse(piece, op, "tokens of all ranks share slots: the module that drops them has no `group_size`")
        if not op.module or back.count(op.module) != 1:
            raise _refuse(piece, op, "tokens go to experts and come back in different modules")
        for other in graph.ops:
            if not other.module.startswith(op.module) or other.kind in ("dispatch", "combine"):
                continue
            for slot, value in enumerate(other.operands):
                if value in weights and not _cut_apart(subject, piece, axes, other, slot):
                    shown = f"{' and '.join(axes)} do not cut its weight by experts, or another axis does"
                    raise _refuse(piece, other, shown)
        yield op.module


def _cut_apart(subject: Subject, piece: Piece, axes: tuple[str, ...], op: Op, slot: int) -> bool:
    """Whether these axes alone cut a weight, by experts."""
    applied = facts_of(piece.graph)[op.name].applied(piece.plan.strategy(op.name), subject.mesh)
    dims = applied.operands[slot].value.dims
    return {shard.axis for shard in dims[0]} == set(axes) and not any(dims[1:])


def _refuse(piece: Piece, op: Op, cause: str) -> EmissionModule:
    return EmissionModule(
        place=f"plan {piece.plan.name}, %{op.name} ({op.kind}) of {piece.path(op.module) or 'the model'}",
        cause=cause,
        ways=("--fix ep=1", "--fix etp=1"),
    )
