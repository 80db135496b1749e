"""Ways of values: the same steps as the statements of both passes."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.ir.names import Degrees, template
from meshwright.ir.program.program import Move
from meshwright.ir.program.routes import routed
from meshwright.ir.program.spread import spread_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.reshard import MOVES
from tests.llama_block import Sizes, model

FOLD = model(Sizes(layers=2, batch=4))
DEGREES = [
    Degrees(tp=2),
    Degrees(tp=2, sequence_parallel=True),
    Degrees(dp=2, tp=2),
    Degrees(cp=2),
    Degrees(cp=2, context="ulysses"),
    Degrees(cp=2, tp=2, sequence_parallel=True),
]


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_ways_are_the_moves_of_both_passes(degrees: Degrees) -> None:
    decisions = template(FOLD, degrees)
    mesh: Mesh = decisions.stages[0].mesh
    for plan in decisions.plans:
        graph = FOLD.body[plan.body].graph
        way = routed(graph, plan, mesh, MOVES)
        spread = spread_of(Same(graph), plan.strategies, plan.states, mesh, MOVES)
        moves = [(one.reason, one.step) for one in (*spread.forward, *spread.backward) if isinstance(one, Move)]
        there = [("value", step) for hub in way.hubs.values() for one in (hub.leaves, *hub.ways) for step in one.there]
        back = [("gradient", step) for hub in way.hubs.values() for one in (hub.leaves, *hub.ways) for step in one.back]
        assert Counter((*there, *back)) == Counter(moves)


def test_a_state_that_is_the_hubs_has_no_way() -> None:
    decisions = template(FOLD, Degrees(tp=2))
    plan = decisions.plans[0]
    way = routed(FOLD.body[plan.body].graph, plan, decisions.stages[0].mesh, MOVES)
    for hub in way.hubs.values():
        assert hub.way(hub.leaves.state) == -1
        assert [hub.way(one.state) for one in hub.ways] == list(range(len(hub.ways)))
