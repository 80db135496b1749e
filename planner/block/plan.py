"""From a choice of numbers back to a plan."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.adjoint import Strategy
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.placement import State
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
