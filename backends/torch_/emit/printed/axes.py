"""The use of every mesh axis in printed code.

batch     it cuts the batch wherever that is read: every rank is given its own sequences
context   it cuts the batch here and there, or anything else, and parameters are copies whose gradients add up, or their
          copies are sharded over it
tensor    parameters are cut, or their gradients are whole on some ranks: all are DTensors along it; of several such
          axes the innermost, and the others are context

Along a batch or context axis most parameters have copies. What else some have is told of each (`emit.copies`): the axis
cuts it, or all ranks compute its whole gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.backends.torch_.emit.read.axes import Axes, cuts_more
from meshwright.backends.torch_.emit.read.copies import Copies, Named
from meshwright.ir.graph.fold import FromInput
from meshwright.ir.program.routes import Routed, routed
from meshwright.ir.sharding.placement import State

BATCH = 0
"""The dimension of samples in entries of a batch."""


def axes_of(subject: Subject) -> Axes:
    """The use of a plan's axes, whether it is printed or its model's own code runs."""
    return printed_axes(subject)[0] if subject.prints or cuts_more(subject) else Axes(subject.mesh.names, None)


def printed_axes(subject: Subject) -> tuple[Axes, Copies]:
    """The use of a plan's axes, and the parameters that differ among ranks along those for data."""
    moves = TARGETS[subject.decisions.target].lowering().moves
    ways = [(piece, routed(piece.graph, piece.plan, subject.mesh, moves)) for piece in subject.pieces]
    entries = [state for piece, way in ways for state in _entries(piece, way)]
    entries = entries or [state for _, way in ways for state in _entered(way)]
    trained = {(piece.plan.name, path): state for piece, way in ways for path, state in _trained(way)}
    shards = {axis for piece in subject.pieces for axis in _shards(piece, trained)}
    batch, context, tensor = list[str](), list[str](), list[str]()
    for axis in subject.mesh.names:
        if subject.mesh.axis(axis).size == 1:
            continue
        copies = all(axis in state.grad_partial for state in trained.values())
        cut = [any(one.axis == axis for one in state.dims[BATCH]) for state in entries if state.dims]
        if entries and all(cut):
            batch.append(axis)
        else:
            (context if copies or axis in shards or any(cut) else tensor).append(axis)
    context = [axis for axis in subject.mesh.names if axis in (*context, *tensor[:-1])]
    axes = Axes(tuple(batch), tensor[-1] if tensor else None, tuple(context), subject.mesh.names)
    apart = {name: tuple(a for a in axes.copies if a in _cutting(state)) for name, state in trained.items()}
    alike = {
        name: tuple(a for a in axes.copies if a not in (*state.grad_partial, *_cutting(state)))
        for name, state in trained.items()
    }
    summed = {name: tuple(a for a in state.grad_partial if a == axes.tensor) for name, state in trained.items()}
    return axes, Copies(*(_some(one) for one in (apart, alike, {}, summed)))


def in_one_sum(subject: Subject, copies: Copies) -> Copies:
    """The use of axes where ranks have one tensor of a parameter which several calls read: its gradients are one, whole
    along an axis for all that read it, or for none."""
    plans = {piece.plan.body: piece.plan.name for piece in subject.pieces}
    bodies = [call.body.name for call in subject.fold.calls()]
    alike, parted, summed = dict(copies.of_alike), dict[Named, tuple[str, ...]](), dict(copies.of_summed)
    for tie, (_, holders) in zip(subject.program.ties, subject.fold.tied, strict=True):
        on: dict[tuple[int, ...], list[Named]] = {}
        for (stage, _), (number, path) in zip(tie.holders, holders, strict=True):
            if bodies[number] in plans:
                on.setdefault(subject.decisions.stages[stage].ranks, []).append((plans[bodies[number]], path))
        for names in on.values():
            every = set.intersection(*(set(copies.of_alike.get(name, ())) for name in names))
            inside = tuple(set().union(*(copies.of_summed.get(name, ()) for name in names)))
            for name in names:
                own = copies.of_alike.get(name, ())
                others = tuple(axis for axis in inside if axis not in copies.of_summed.get(name, ()))
                parted[name] = (*(axis for axis in own if axis not in every), *others)
                alike[name], summed[name] = tuple(axis for axis in own if axis in every), inside
    return replace(copies, of_alike=_some(alike), of_parted=_some(parted), of_summed=_some(summed))


def _some(axes: Mapping[Named, tuple[str, ...]]) -> dict[Named, tuple[str, ...]]:
    """The parameters that have any."""
    return {name: found for name, found in axes.items() if found}


def _cutting(state: State) -> set[str]:
    """The axes that cut a value."""
    return {shard.axis for dim in state.dims for shard in dim}


def _shards(piece: Piece, trained: Mapping[tuple[str, str], State]) -> Iterator[str]:
    """The axes over which a plan shards parameters that they do not cut."""
    for item in piece.plan.storage:
        home = trained.get((piece.plan.name, item.path))
        yield from set(item.optimizer.axes) - _cutting(home) if home is not None else ()


def _entries(piece: Piece, way: Routed) -> Iterator[State]:
    """The uses of entries of the batch: nothing is sent for them, so a rank is given all that it reads."""
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            hub = way.hubs[item.value]
            yield from (one.state for one in (hub.leaves, *hub.ways))


def _entered(way: Routed) -> Iterator[State]:
    """Inputs of stages that are given nothing of the batch."""
    yield from (way.hubs[item.value].leaves.state for item in way.graph.inputs if item.requires_grad)


def _trained(way: Routed) -> Iterator[tuple[str, State]]:
    """The parameters that a body reads, or hands on to others, as they and their gradients lie there."""
    for param in way.graph.params:
        used = way.graph.readers[param.value] or param.value in way.graph.outputs
        if used and param.value in way.graph.differentiable:
            yield param.path, way.hubs[param.value].home
