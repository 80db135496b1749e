"""A block problem with the meaning of its numbers: from an assignment to a plan, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph, Param
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.planner.block.groups import Parts
from meshwright.planner.block.kernels import Times
from meshwright.planner.block.moves import Moves
from meshwright.planner.block.space import Space
from meshwright.planner.block.storage import Stored, Storing
from meshwright.planner.block.strategies import Options
from meshwright.planner.block_solver.problem import Array, Limit, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Hub:
    """A value, or several in one state, with the states that they may be in."""

    values: tuple[str, ...]
    states: tuple[State, ...]
    inner: bool = False
    """A stop between a fixed boundary and several readers, which share what is alike; no plan names it."""


@dataclass(frozen=True, eq=False)
class Block:
    """A block problem, and the meaning of its numbers: first the variables of groups, then those of hubs."""

    body: str
    graph: Graph
    mesh: Mesh
    parts: Parts
    options: tuple[Options, ...]
    hubs: tuple[Hub, ...]
    storing: Storing
    moves: Moves
    recompute: tuple[str, ...]
    space: Space
    problem: Problem
    times: tuple[tuple[Times, ...], ...]
    saved: tuple[Array, ...]
    """Bytes per micro-batch between its forward and its backward pass, for every state of every variable."""
    state: tuple[Array, ...]
    """Bytes of parameters, gradients and optimizer state."""

    def within(self, capacity_bytes: float, in_flight: int) -> Problem:
        """The problem with a memory limit on the states and on the saved bytes of so many micro-batches."""
        uses = tuple(in_flight * saved + state for saved, state in zip(self.saved, self.state, strict=True))
        return replace(self.problem, limits=(Limit("memory", capacity_bytes, uses),))

    @cached_property
    def hub_of(self) -> Mapping[str, int]:
        return {value: number for number, hub in enumerate(self.hubs) if not hub.inner for value in hub.values}

    def variable_of(self, value: str) -> int:
        """The variable of the hub of a value."""
        return len(self.options) + self.hub_of[value]

    def hub_state(self, value: str, chosen: Sequence[int]) -> State:
        number = self.hub_of[value]
        return self.hubs[number].states[chosen[len(self.options) + number]]

    def stored(self, chosen: Sequence[int]) -> Iterable[tuple[Param, Stored]]:
        """The storage of every parameter under a choice."""
        for number, one in enumerate(self.options):
            for param in one.group.params:
                yield param, self.storing.best(param, one.state(param.value, chosen[number]))
        for param in self.parts.graph.params:
            if param.value in self.hub_of:
                yield param, self.storing.best(param, self.hub_state(param.value, chosen))


def body_plan(block: Block, chosen: Sequence[int], name: str = "") -> BodyPlan:
    """The plan of a body that an assignment of its problem stands for."""
    strategies: dict[str, Strategy] = {}
    for one, option in zip(block.options, chosen, strict=False):
        strategies |= one.strategies(option)
    states: dict[str, State] = {}
    for item in block.graph.inputs:
        if item.value in block.parts.tables:
            states[item.value] = State.replicated(len(block.graph.types[item.value].shape))
    for hub in block.hubs:
        if hub.inner:
            continue
        for value in hub.values:
            states[value] = block.hub_state(value, chosen)
    order = [op.name for op in block.graph.ops if op.name in strategies]
    return BodyPlan(
        name or block.body,
        block.body,
        tuple((op, strategies[op]) for op in order),
        tuple(states.items()),
        tuple(stored.storage for _, stored in block.stored(chosen) if stored.storage is not None),
        block.recompute,
        block.space.regather,
    )


def chosen_of(block: Block, plan: BodyPlan) -> tuple[int, ...] | None:
    """The assignment that stands for a plan; None if there is none."""
    states = dict(plan.states)
    found: list[int] = []
    for number, one in enumerate(block.options):
        wanted = {op: plan.strategy(op) for op in one.strategies(0)}
        options = range(len(block.problem.variables[number].costs))
        found += [at for at in options if one.strategies(at) == wanted][:1]
    for hub in block.hubs:
        known = [states[value] for value in hub.values if value in states]
        found += [at for at, state in enumerate(hub.states) if hub.inner or [state] == known[:1]][:1]
    chosen = tuple(found)
    return chosen if len(chosen) == len(block.problem.variables) else None


def neighbours(block: Block, chosen: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every assignment that differs in one variable: pairs of states of a body are all allowed."""
    for at, variable in enumerate(block.problem.variables):
        for other in range(len(variable.costs)):
            if other != chosen[at]:
                yield (*chosen[:at], other, *chosen[at + 1 :])
