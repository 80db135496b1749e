"""Routes of a body's values: from where they are made, through their hub, to their readers.

`meshwright.ir.program.spread` lowers a body to statements of both passes. Code whose backward pass is derived by the
framework needs the forward pass alone, and for every change of placement what happens to the gradient on the way back.
A *way* is such a pair: the steps that the value takes, and those that its gradient takes back.

    home --(leaves)--> hub --(ways)--> each state that readers want

A value is moved once for all readers that want it in one state; their gradients are added there, and go back together.
These are the steps of the statements, in order, so what is exchanged is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph, Type
from meshwright.ir.program.kept import extra_bytes, saves_of
from meshwright.ir.program.program import Kernels, Ring
from meshwright.ir.program.spread import Body
from meshwright.ir.rules.base import Engine, Law, Save
from meshwright.ir.sharding import reshard
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.sharding.rewrite import Facts, facts_of, rewritten


@dataclass(frozen=True, slots=True)
class Way:
    """A change of placement: the steps of the value, and those of its gradient, in the order in which they run."""

    state: State
    """The state that is reached."""
    there: tuple[Step, ...]
    back: tuple[Step, ...]
    starts: Placement
    """The placement of the value before."""

    @property
    def stays(self) -> bool:
        """Whether neither the value nor its gradient moves."""
        return not self.there and not self.back


@dataclass(frozen=True, slots=True)
class Hub:
    """A value: its placement where it is made, the way to its hub, and the ways from there to readers, by their
    state."""

    home: State
    leaves: Way
    ways: tuple[Way, ...]

    def way(self, state: State) -> int:
        """The number of the way to a state; -1 where that is the hub itself."""
        return next((number for number, way in enumerate(self.ways) if way.state == state), -1)


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """A body to be printed: its graph, with operators expanded where they are split so, and the ways of its values.

    - `wanted`: for every operator, by name, the state in which it wants each operand.
    """

    graph: Graph
    body: Body
    mesh: Mesh
    hubs: Mapping[str, Hub]
    wanted: Mapping[str, tuple[State, ...]]

    @property
    def facts(self) -> Mapping[str, Facts]:
        return facts_of(self.graph)

    def made(self, op: str) -> tuple[State, ...]:
        """The states in which an operator makes its results."""
        return self.body.applied[op].results

    def derivative(self, op: str, kernels: Kernels) -> tuple[tuple[Save, ...], tuple[int, ...]]:
        """The tensors that kernels save for an operator's derivative, and the operands of which that makes gradients
        that take memory of their own."""
        facts, ring = self.facts[op], isinstance(self.body.ran[op], Ring)
        if not facts.wanted:
            return (), ()
        handed = facts.rule.elementwise or facts.rule.engine is Engine.VIEW
        made = (slot for slot in facts.wanted if not (handed and facts.rule.laws[slot] is Law.ADDITIVE))
        return saves_of(facts.signature, facts.wanted, kernels, in_ring=ring), tuple(made)

    def extra_bytes(self, op: str, save: Save) -> int:
        """Bytes of one of these that is no operand and no result, on one rank."""
        return extra_bytes(save, dict(self.body.applied[op].sizes))

    def local(self, value: str, placement: Placement, rank: int = 0) -> Type:
        """The shard of a value on a rank."""
        type_ = self.graph.types[value]
        return Type(placement.local_shape(type_.shape, self.mesh, rank), type_.dtype)


def routed(graph: Graph, plan: BodyPlan, mesh: Mesh, moves: tuple[str, ...]) -> Routed:
    """The routes of all values of a body under a plan. `moves` are the steps that the target can execute."""
    body = Body(*rewritten(graph, dict(plan.strategies)), plan.states, mesh, moves)
    body.forward_pass()
    whole = body.graph
    wanted = {op.name: tuple(body.required(op, slot) for slot in range(len(op.operands))) for op in whole.ops}
    stored = {update.value: body.home[body.param_of[update.buffer]].without_gradient() for update in whole.updates}
    hubs = {}
    for value in whole.types:
        home, hub = body.home[value], body.hub[value]
        trained = value in whole.differentiable
        readers = [wanted[whole.ops[index].name][slot] for index, slot in whole.readers[value]]
        states = dict.fromkeys([*readers, *([stored[value]] if value in stored else [])])
        hubs[value] = Hub(
            home,
            _way(home, hub, mesh, moves, trained=trained),
            tuple(_way(hub, state, mesh, moves, trained=trained) for state in states if state != hub),
        )
    return Routed(whole, body, mesh, hubs, wanted)


def _way(source: State, target: State, mesh: Mesh, moves: tuple[str, ...], *, trained: bool) -> Way:
    there = reshard.reshard(source.value, target.value, mesh, moves)
    back = reshard.reshard(target.grad, source.grad, mesh, moves) if trained else ()
    return Way(target, there, back, source.value)
