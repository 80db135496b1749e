"""Rows of experts: what is done to slots is done to each row, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.backends.printing.rows import along_rows, merged, renumbered, rows_of, travelled
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Graph, Op, Type
from meshwright.ir.program.routes import Way
from meshwright.ir.sharding.placement import Placement, Shard, State
from meshwright.ir.sharding.reshard import Step
from tests.build import Builder

CAPACITY = {"num_experts": 4, "capacity": 4, "dropless": True}


def routed(kind: str, *others: str, **attrs: object) -> Graph:
    """Experts of which the rows go through one operator."""
    made = Builder()
    x, idx = made.input((8, 6)), made.input((8, 2), name="idx", dtype="i64")
    weights = made.input((8, 2), name="weights")
    given = {"bias": made.input((4, 1, 6), name="bias"), "slots": made.input((1, 4, 6), name="slots")}
    rows = made.op("dispatch", x, idx, **CAPACITY)
    found = made.op(kind, rows, *(given[one] for one in others), **attrs)
    if len(made.types[found].shape) == 3:
        made.op("combine", found, idx, weights, **CAPACITY)
    return made.graph()


@pytest.mark.parametrize(("kind", "others"), [("relu", ()), ("add", ("bias",))])
def test_what_is_done_to_each_row_or_with_what_its_expert_has_makes_rows(kind: str, others: tuple[str, ...]) -> None:
    found = rows_of(routed(kind, *others))
    assert len(found) == 2
    assert len(set(found.values())) == 1


@pytest.mark.parametrize(("kind", "others", "attrs"), [("add", ("slots",), {}), ("sum", (), {"dims": (1,)})])
def test_what_mixes_slots_or_tells_them_apart_is_refused(
    kind: str, others: tuple[str, ...], attrs: dict[str, object]
) -> None:
    with pytest.raises(EmissionPrinted, match="it mixes rows of experts"):
        rows_of(routed(kind, *others, **attrs))


def test_two_dimensions_are_one() -> None:
    assert merged(Type((4, 5, 6, 7), "f32")) == Type((20, 6, 7), "f32")
    op = Op("permute", ("x",), ("y",), (("perm", (0, 1, 3, 2)),))
    assert renumbered(op).attr("perm") == (0, 2, 1)
    assert renumbered(Op("split", ("x",), ("y",), (("dim", -1),))).attr("dim") == -1


GATHERED = (Step("all_gather", ("tp",), dim=1), Step("reduce_scatter", ("tp",), dim=1))
SENT = (Step("all_to_all", ("ep",), dim=1, target=0), Step("all_to_all", ("ep",), dim=0, target=1))
IN_PARTS = (Step("all_to_all", ("ep",), dim=2, target=0), Step("all_to_all", ("ep",), dim=0, target=2))


def test_rows_take_trips_one_after_another_and_come_back_by_the_last_one_first() -> None:
    trips = travelled("rows", (), (GATHERED[0], SENT[0]))
    assert [trip.step for trip in trips] == [GATHERED[0], SENT[0]]
    assert [trip.behind for trip in trips] == ["rows", trips[0].name]
    assert travelled("rows", trips, (SENT[1],)) == trips[:1]
    assert travelled("rows", trips, (SENT[1], GATHERED[1])) == ()
    assert travelled("rows", trips[:1], (Step("slice", ("tp",), dim=1),)) == ()
    assert travelled("rows", trips, (Step("all_reduce", ("tp",)), Step("all_gather", ("tp",), dim=2))) == trips


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ((), Step("all_gather", ("tp",), dim=0)),
        ((), SENT[1]),
        (GATHERED[:1] + SENT[:1], GATHERED[1]),
        (SENT[:1], GATHERED[0]),
        (SENT[:1], IN_PARTS[1]),
        (IN_PARTS[:1], SENT[1]),
    ],
    ids=[
        "experts are gathered",
        "none is to be taken back",
        "not the last one",
        "rows are not as many on all ranks",
        "rows came whole",
        "rows came in parts",
    ],
)
def test_what_is_no_trip_of_rows_is_refused(before: tuple[Step, ...], step: Step) -> None:
    with pytest.raises(EmissionPrinted, match="rows of experts take"):
        travelled("rows", travelled("rows", (), before), (step,))


def test_steps_of_rows_name_their_trips_by_number() -> None:
    """Beside them stand those that do to each row what they did to each slot."""
    cut = Placement(((), (Shard("ep"), Shard("tp")), ()))
    way = Way(State(Placement.replicated(3).dims), (GATHERED[0], SENT[0]), (SENT[1], GATHERED[1]), cut)
    trips = travelled("rows", (), way.there)
    found = along_rows(way, "rows", (), {trips[0]: 1, trips[1]: 2})
    assert [(step.kind, step.dim) for step in found.there] == [("arrive", 1), ("arrive", 2)]
    assert [(step.kind, step.dim) for step in found.back] == [("leave", 2), ("leave", 1)]
    whole = replace(way, there=IN_PARTS[:1], back=IN_PARTS[1:])
    trips = travelled("rows", (), whole.there)
    assert travelled("rows", trips, whole.back) == ()
    found = along_rows(whole, "rows", (), {trips[0]: 1})
    assert found.there == (Step("arrive_whole", ("ep",), dim=1, target=1),)
    assert found.back == (Step("leave_in_parts", ("ep",), dim=1, target=1),)
    scattered = replace(way, there=(Step("all_gather", ("tp",), dim=2),), back=())
    assert along_rows(scattered, "rows", (), {}).there == (Step("all_gather", ("tp",), dim=1),)
