"""The parts of a body plan that stay when its operators are chosen anew: storage, recomputation, interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.ir.decisions.decisions import BodyPlan, StagePlan, Storage
from meshwright.ir.decisions.sharding import ZERO, Sharding, level_of
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names.pinned import Allowed
from meshwright.ir.names.storage import cut_further, in_shards
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import ZIGZAG
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.planner.block import Space


@dataclass(frozen=True, slots=True)
class Kept:
    """The parts of a body plan that stay when its operators are chosen anew, as the block solver takes them."""

    plan: BodyPlan
    graph: Graph
    stage: StagePlan
    """The first one that uses the plan."""
    space: Space
    interface: Mapping[str, State]

    @property
    def inputs(self) -> set[str]:
        return {item.value for item in self.graph.inputs}

    def unsplit(self, *, sharded: bool) -> BodyPlan:
        """The plan with nothing split, and with parameters stored in shards as before, or whole as well."""
        states = tuple((value, State.replicated(len(state.dims))) for value, state in self.plan.states)
        storage = tuple(self._in_shards()) if sharded else ()
        return replace(self.plan, strategies=(), states=states, storage=storage)

    def _in_shards(self) -> Iterator[Storage]:
        """Storage of parameters that operators read whole, at the level and over the axes of the space."""
        sharding, over = ZERO[self.space.zero or 0], self.space.storing or ()
        for param in self.graph.params if sharding.kinds and over else ():
            if param.requires_grad and not param.buffer:
                shape = self.graph.types[param.value].shape
                compute = Placement.replicated(len(shape))
                yield in_shards(param.path, sharding, compute, cut_further(compute, shape, over, self.stage.mesh))

    @staticmethod
    def of(
        plan: BodyPlan,
        graph: Graph,
        stage: StagePlan,
        pins: Mapping[str, Allowed],
        usual: Space | None = None,
    ) -> Kept:
        """`usual` is the space of the other bodies on this mesh: a body of which nothing can be stored otherwise does
        not show what its plan would store."""
        level, storing = _storage(plan, graph, stage.mesh)
        if not level and usual is not None:
            level, storing = usual.zero or 0, usual.storing or ()
        states = dict(plan.states)
        interface = {item.value: State.replicated(len(graph.types[item.value].shape)) for item in graph.inputs}
        space = Space(
            zero=level,
            storing=storing,
            regather=plan.regather,
            recompute=plan.recompute,
            zigzag=_zigzag(plan, stage.mesh),
            pins=pins,
        )
        interface |= {value: states[value] for value in interface_of(graph) if value in states}
        return Kept(plan, graph, stage, space, interface)


def _storage(plan: BodyPlan, graph: Graph, mesh: Mesh) -> tuple[int, tuple[str, ...]]:
    """The ZeRO level of a plan, and the axes that it shards over."""
    compute = compute_placements(graph, plan, mesh) if plan.storage else {}
    level, axes = 0, set[str]()
    for item in plan.storage:
        at = compute[item.path]
        cut = Sharding(*(kind != at for kind in (item.optimizer, item.grads, item.params)))
        level = max(level, level_of(cut))
        axes.update(axis for axis in mesh.names if at.on(axis) is None and item.optimizer.on(axis) is not None)
    return level, tuple(axis for axis in mesh.names if axis in axes)


def _zigzag(plan: BodyPlan, mesh: Mesh) -> tuple[str, ...]:
    """The axes that cut anything in a zigzag."""
    made = [pair for _, strategy in plan.strategies for pair in strategy.choices]
    found = {axis for axis, choice in made if isinstance(choice, Split) and choice.layout == ZIGZAG}
    dims = [dim for _, state in plan.states for dim in state.dims]
    found |= {shard.axis for dim in dims for shard in dim if shard.layout == ZIGZAG}
    return tuple(axis for axis in mesh.names if axis in found)


def interface_of(graph: Graph) -> tuple[str, ...]:
    """The inputs and outputs of a body."""
    return (*(item.value for item in graph.inputs), *graph.outputs)
