"""From a choice of numbers back to a plan, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.placement import State
from meshwright.planner.block.build import Block


def body_plan(block: Block, chosen: Sequence[int], name: str = "") -> BodyPlan:
    """The plan of a body that an assignment of its problem means."""
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
    """The assignment of a problem that means this plan; None if none does."""
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
    """Every assignment in which one variable has another value: of a body all pairs of states are allowed."""
    for at, variable in enumerate(block.problem.variables):
        for other in range(len(variable.costs)):
            if other != chosen[at]:
                yield (*chosen[:at], other, *chosen[at + 1 :])
