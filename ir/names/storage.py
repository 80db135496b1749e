"""ZeRO: stored tensors are cut further over the axes that hold copies.

Outside the experts copies are held for data and context parallelism, inside them by the ranks that hold the same
experts. ZeRO-1 cuts the optimizer's state, ZeRO-2 the gradients too, ZeRO-3 the parameters (Rajbhandari et al. 2020).
Axes that do not store (`Degrees.shard`) keep copies: hybrid sharding. What 48 ranks do not divide is padded,
or stays whole where a target has no padding (`Capabilities.pads`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.decisions.decisions import BodyPlan, Storage
from meshwright.ir.decisions.sharding import Sharding
from meshwright.ir.errors import IndivisibleExtent
from meshwright.ir.graph.graph import Graph, Param
from meshwright.ir.names.degrees import Degrees, uses
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import Padded
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, Shard, State
from meshwright.ir.sharding.rewrite import facts_of


def stored(
    graph: Graph,
    found: Loops,
    chosen: Mapping[str, Strategy],
    states: Mapping[str, State],
    mesh: Mesh,
    degrees: Degrees,
) -> tuple[Storage, ...]:
    """The storage of every trained parameter of a body that differs from the placement for its operators."""
    storing = [use for use in uses(degrees) if use.stores]
    sharding = degrees.sharding
    if not sharding.kinds or not any(use.holds_copies(expert=expert) for use in storing for expert in (False, True)):
        return ()
    return tuple(
        in_shards(param.path, sharding, compute, cut_further(compute, graph.types[param.value].shape, over, mesh))
        for param, compute in _computed(graph, chosen, states, mesh)
        for over in [[use.name for use in storing if use.holds_copies(expert=_of_experts(param, found))]]
    )


def in_shards(path: str, sharding: Sharding, compute: Placement, cut: Placement) -> Storage:
    """The storage of a parameter: what is sharded lies cut, the rest as operators want it."""
    return Storage(
        path,
        params=cut if sharding.params else compute,
        grads=cut if sharding.grads else compute,
        optimizer=cut if sharding.optimizer else compute,
    )


def without_padding(plan: BodyPlan) -> BodyPlan:
    """The plan with whole what it would have to pad; the same object if it pads nothing."""
    return _without_padding(Same(plan))


@lru_cache(maxsize=8192)
def _without_padding(plan: Same[BodyPlan]) -> BodyPlan:
    storage = tuple(Storage(one.path, *map(_even, (one.params, one.grads, one.optimizer))) for one in plan.of.storage)
    return plan.of if storage == plan.of.storage else replace(plan.of, storage=storage)


def _even(placement: Placement) -> Placement:
    dims = tuple(tuple(one for one in dim if not isinstance(one.layout, Padded)) for dim in placement.dims)
    return placement if dims == placement.dims else replace(placement, dims=dims)


def _of_experts(param: Param, found: Loops) -> bool:
    return any(stem(name) == "experts" for names in found.dims[param.value] for name in names)


def _computed(
    graph: Graph, chosen: Mapping[str, Strategy], states: Mapping[str, State], mesh: Mesh
) -> list[tuple[Param, Placement]]:
    """Every trained parameter, with the placement for its operators: as its first reader wants it, never as a partial
    sum."""
    trained = [param for param in graph.params if param.requires_grad and not param.buffer]
    first = {param.value: graph.readers[param.value][:1] for param in trained}
    if any(_expands(graph, index, chosen) for places in first.values() for index, _ in places):
        plan = BodyPlan("storage", "storage", tuple(chosen.items()), tuple(states.items()))
        whole = compute_placements(graph, plan, mesh)
        return [(param, whole[param.path]) for param in trained]
    found = []
    for param in trained:
        state = states.get(param.value) or State.replicated(len(graph.types[param.value].shape))
        for index, slot in () if param.value in states else first[param.value]:
            op = graph.ops[index]
            state = facts_of(graph)[op.name].applied(chosen[op.name], mesh).operands[slot]
        found.append((param, Placement(state.dims)))
    return found


def _expands(graph: Graph, index: int, chosen: Mapping[str, Strategy]) -> bool:
    """Whether an operator is rewritten under its strategy, so that others read its operands."""
    op = graph.ops[index]
    rule = rule_of(op, graph.types)
    split = {name for _, choice in chosen[op.name].choices if isinstance(choice, Split) for name in choice.factors}
    return any(factor.expanded and factor.name in split for factor in rule.factors)


def cut_further(
    placement: Placement, shape: Sequence[int], axes: Sequence[str], mesh: Mesh, *, pads: bool = True
) -> Placement:
    """A placement that adds the axes with copies to the first dimension that all of them divide together; if there is
    none, to the first dimension, padded, as `fully_shard` does. A scalar stays whole; without padding, so does that."""
    dims = list(placement.dims)
    new = tuple(axis for axis in axes if placement.on(axis) is None)
    plain = tuple(map(Shard, new))
    if not new or not dims:
        return placement
    at = next((d for d, extent in enumerate(shape) if fits(extent, (*dims[d], *plain), mesh)), None)
    if at is not None:
        dims[at] = (*dims[at], *plain)
        return Placement(tuple(dims), placement.partial)
    if not pads:
        return placement
    left = placement.local_shape(shape, mesh)[0]
    sizes = [mesh.axis(axis).size for axis in new]
    runs = [ceil(left / prod(sizes)) * prod(sizes[place + 1 :]) for place in range(len(new))]
    dims[0] = (*dims[0], *(Shard(axis, Padded((run,))) for axis, run in zip(new, runs, strict=True)))
    return Placement(tuple(dims), placement.partial)


def fits(extent: int, shards: tuple[Shard, ...], mesh: Mesh) -> bool:
    """Whether these shards, one after another, can cut an extent."""
    try:
        Placement((shards,)).check((extent,), mesh, "")
    except IndivisibleExtent:
        return False
    return True
