"""Unequal shares: copies of a model on different devices take parts of a batch by speed, and parts of the state by
room.

    batch_shares   Decisions, (3, 3, 1, 1) -> Decisions    of eight sequences the first two copies take three each
    state_shares   Decisions, weights      -> Decisions    of what ZeRO cuts, each copy holds about so large a part

Two questions: what a rank computes, and what it holds between steps. Both are layouts (`Uneven`) of the outermost axis
that holds copies, the first one in every operator and at both ends of every body, the second one in storage. What is
added up over copies weighs by itself: a mean is a sum over all tokens of the batch, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

from meshwright.ir.analysis.loops import Loops, Names, stem
from meshwright.ir.decisions.decisions import Decisions, Storage
from meshwright.ir.errors import SharesImpossible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.degrees import BATCH, TABLE
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, Layout, Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Dim, Placement, Shard, State

COPIES = TABLE[0].name
"""How the names of axes begin that hold copies outside the experts."""


def axis_of(decisions: Decisions) -> str:
    """The outermost axis that holds copies, if all stages have the same one, else empty."""
    outermost = (
        next((one for one in stage.mesh.axes if one.name.startswith(COPIES)), None) for stage in decisions.stages
    )
    found = {axis and (axis.name, axis.size) for axis in outermost}
    axis = found.pop()
    return axis[0] if axis and not found else ""


def shares_of(decisions: Decisions) -> tuple[int, ...]:
    """Shares of a batch per copy, in smallest terms; empty where all are equal."""
    axis = axis_of(decisions)
    for plan in decisions.plans if axis else ():
        for _, strategy in plan.strategies:
            choice = strategy.of(axis)
            if isinstance(choice, Split) and isinstance(choice.layout, Uneven):
                return tuple(size // gcd(*choice.layout.sizes) for size in choice.layout.sizes)
    return ()


def shares_along(decisions: Decisions, axes: Sequence[str]) -> tuple[int, ...]:
    """Shares of a batch per rank along axes that cut it, major to minor: inner ones cut a copy's share in equal
    parts."""
    found, axis = shares_of(decisions), axis_of(decisions)
    if not found:
        return ()
    inner = prod(decisions.stages[0].mesh.axis(name).size for name in axes if name != axis)
    return tuple(share for share in found for _ in range(inner))


def equally(decisions: Decisions) -> Decisions:
    """The plan with equal shares of the batch."""
    axis = axis_of(decisions)

    def chosen(strategy: Strategy) -> Strategy:
        return Strategy(
            tuple((one, Split(c.factors) if one == axis and isinstance(c, Split) else c) for one, c in strategy.choices)
        )

    def cut(dim: Dim) -> Dim:
        return tuple(Shard(axis) if shard.axis == axis else shard for shard in dim)

    plans = (
        replace(
            plan,
            strategies=tuple((name, chosen(strategy)) for name, strategy in plan.strategies),
            states=tuple(
                (name, State(tuple(map(cut, state.dims)), state.partial, state.grad_partial))
                for name, state in plan.states
            ),
        )
        for plan in decisions.plans
    )
    return replace(decisions, plans=tuple(plans)) if shares_of(decisions) else decisions


def weights_of(decisions: Decisions) -> tuple[int, ...]:
    """The parts of copies in the largest tensor that is stored in unequal shards; empty where there is none."""
    axis = axis_of(decisions)
    placements = (item.optimizer for plan in decisions.plans for item in plan.storage) if axis else ()
    found = (shard.layout for one in placements for dim in one.dims for shard in dim if shard.axis == axis)
    sizes = [
        layout.sizes for layout in found if isinstance(layout, Uneven) and max(layout.sizes) > 1 + min(layout.sizes)
    ]
    return max(sizes, key=sum, default=())


# Batches -------------------------------------------------------------------------------------------------------------


def batch_shares(decisions: Decisions, fold: Fold, sizes: Sequence[int]) -> Decisions:
    """The plan with these numbers of sequences of a micro-batch on the copies. Raises `SharesImpossible`."""
    axis = axis_of(decisions)
    loops = loops_of(Same(fold))
    _check(decisions, axis, sizes, batch_of(fold))
    plans = tuple(
        replace(
            plan,
            strategies=tuple(
                (name, _chosen(name, strategy, graph, found, axis, sizes)) for name, strategy in plan.strategies
            ),
            states=tuple((name, _state(name, state, graph, found, axis, sizes)) for name, state in plan.states),
        )
        for plan in decisions.plans
        for graph, found in [(fold.body[plan.body].graph, loops[plan.body])]
    )
    return replace(decisions, plans=plans)


def batch_of(fold: Fold) -> int:
    """The sequences of a micro-batch; 0 if it has none."""
    loops = next(iter(loops_of(Same(fold)).values())).loops
    return next((loop.size for loop in loops if stem(loop.name) == BATCH), 0)


def _check(decisions: Decisions, axis: str, sizes: Sequence[int], batch: int) -> None:
    """Check that every copy has a share, and that the shares make up the batch."""
    if not axis:
        raise SharesImpossible(
            place="shares", cause="there is no axis of copies that all stages have", fix="plan with dp > 1"
        )
    copies = decisions.stages[0].mesh.axis(axis).size
    if len(sizes) != copies or min(sizes) < 1 or sum(sizes) != batch:
        raise SharesImpossible(
            place=f"shares {tuple(sizes)}",
            cause=f"there are {copies} copies on axis {axis}, and {batch} sequences in a micro-batch",
            fix="give every copy at least one sequence, and share out all of them",
        )


def _chosen(name: str, strategy: Strategy, graph: Graph, found: Loops, axis: str, sizes: Sequence[int]) -> Strategy:
    if not isinstance(strategy.of(axis), Split):
        return strategy
    rule = rule_of(next(op for op in graph.ops if op.name == name), graph.types)

    def shared(choice: Choice) -> Choice:
        if not isinstance(choice, Split):
            return choice
        (factor,) = choice.factors
        names, extent = found.factors[name][factor], rule.factor(factor).size
        return Split(choice.factors, _shared(f"%{name}", names, choice.layout, extent, sizes))

    return Strategy(tuple((one, shared(choice) if one == axis else choice) for one, choice in strategy.choices))


def _state(name: str, state: State, graph: Graph, found: Loops, axis: str, sizes: Sequence[int]) -> State:
    def shared(at: int, shard: Shard) -> Shard:
        if shard.axis != axis:
            return shard
        names, extent = found.dims[name][at], graph.types[name].shape[at]
        return Shard(axis, _shared(f"%{name}", names, shard.layout, extent, sizes))

    dims = tuple(tuple(shared(at, shard) for shard in dim) for at, dim in enumerate(state.dims))
    return State(dims, state.partial, state.grad_partial)


def _shared(place: str, names: Names, layout: Layout, extent: int, sizes: Sequence[int]) -> Uneven:
    """A placement with its cuts by copies in these shares. Must: they cut the sequences first, in order."""
    each, rest = divmod(extent, sum(sizes))
    if layout != CONTIGUOUS or not names or stem(names[0]) != BATCH or rest:
        over = ".".join(names) or "nothing"
        raise SharesImpossible(
            place=place,
            cause=f"what copies cut there, {extent} over {over}, is not {sum(sizes)} whole sequences",
            fix="share out the batch equally",
        )
    return Uneven(tuple(size * each for size in sizes))


# States --------------------------------------------------------------------------------------------------------------


def state_shares(decisions: Decisions, fold: Fold, weights: Sequence[float]) -> Decisions:
    """The plan with sharded states in parts of about these weights. Tensors with fewer units than copies stay as they
    are."""
    axis = axis_of(decisions)
    meshes = {name: stage.mesh for stage in decisions.stages for name in stage.plans}
    plans = tuple(
        replace(plan, storage=tuple(_stored(item, graph, axis, weights, meshes[plan.name]) for item in plan.storage))
        if plan.name in meshes
        else plan
        for plan in decisions.plans
        for graph in [fold.body[plan.body].graph]
    )
    return replace(decisions, plans=plans)


def _stored(item: Storage, graph: Graph, axis: str, weights: Sequence[float], mesh: Mesh) -> Storage:
    value = next(param.value for param in graph.params if param.path == item.path)
    shape = graph.types[value].shape

    def weighed(placement: Placement) -> Placement:
        dims = tuple(
            _weighed(dim, extent, axis, weights, mesh) for dim, extent in zip(placement.dims, shape, strict=True)
        )
        return Placement(dims, placement.partial)

    return replace(item, params=weighed(item.params), grads=weighed(item.grads), optimizer=weighed(item.optimizer))


def _weighed(dim: Dim, extent: int, axis: str, weights: Sequence[float], mesh: Mesh) -> Dim:
    at = next((place for place, shard in enumerate(dim) if shard.axis == axis), None)
    if at is None or any(shard.layout != CONTIGUOUS for shard in dim):
        return dim
    before, after = (prod(mesh.axis(shard.axis).size for shard in part) for part in (dim[:at], dim[at + 1 :]))
    units = extent // before // after
    if units < len(weights):
        return dim
    sizes = apportioned(units, weights)
    return (*dim[:at], Shard(axis, Uneven(tuple(size * after for size in sizes))), *dim[at + 1 :])


def apportioned(units: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Units in proportion to weights, at least one each; the remainder of rounding goes where most is missing."""
    free = units - len(weights)
    shares = [free * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    missing = sorted(range(len(weights)), key=lambda index: (counts[index] - shares[index], index))
    for index in missing[: free - sum(counts)]:
        counts[index] += 1
    return tuple(1 + count for count in counts)
