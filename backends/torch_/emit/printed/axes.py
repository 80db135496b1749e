"""What every mesh axis is for in printed code.

batch     it cuts the batch: every rank is given its own sequences; parameters are copies whose gradients add up
context   it cuts anything else, and parameters are such copies
tensor    parameters are cut, or their gradients are whole on some ranks: they are DTensors along it
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.axes import Axes
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.fold import FromInput
from meshwright.ir.placement import State
from meshwright.ir.routes import Routed, routed

BATCH = 0
"""The dimension of samples in entries of a batch."""


def printed_axes(subject: Subject, moves: tuple[str, ...]) -> Axes:
    """What the axes of a plan are for."""
    ways = [(piece, routed(piece.graph, piece.plan, subject.mesh, moves)) for piece in subject.pieces]
    entries = [state for piece, way in ways for state in _entries(piece, way)]
    trained = [state for _, way in ways for state in _trained(way)]
    batch, context, tensor = list[str](), list[str](), list[str]()
    for axis in subject.mesh.names:
        if subject.mesh.axis(axis).size == 1:
            continue
        copies = all(axis in state.grad_partial for state in trained)
        cuts = bool(entries) and all(any(s.axis == axis for s in state.dims[BATCH]) for state in entries if state.dims)
        if cuts and not copies:
            raise EmissionPrinted(place=f"axis {axis}", cause="it cuts the batch, and parameters too")
        (batch if cuts else context if copies else tensor).append(axis)
    for what, several in (("parameters", tensor), ("sequences", context)):
        if len(several) > 1:
            raise EmissionPrinted(place=f"axes {' and '.join(several)}", cause=f"{what} are cut along several axes")
    return Axes(tuple(batch), tensor=tensor[0] if tensor else None, context=context[0] if context else None)


def _entries(piece: Piece, way: Routed) -> Iterator[State]:
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            yield way.hubs[item.value].leaves.state


def _trained(way: Routed) -> Iterator[State]:
    for param in way.graph.params:
        if param.value in way.graph.differentiable and way.graph.readers[param.value]:
            yield way.hubs[param.value].home
