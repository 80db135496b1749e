"""Rows of experts: what is done to slots is done to each row, or refused."""

from __future__ import annotations

import pytest

from meshwright.backends.printing.rows import merged, renumbered, rows_of, trip_of
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph import Graph, Op, Type
from meshwright.ir.placement import Placement, Shard, State
from meshwright.ir.reshard import Step
from meshwright.ir.routes import Way
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


def test_rows_take_a_trip_to_all_ranks_and_back_or_none() -> None:
    """Experts that are gathered go no way of rows."""
    cut, experts = (Placement((*dims, ())) for dims in (((), (Shard("tp"),)), ((Shard("tp"),), ())))
    whole = Placement.replicated(3)

    def way(starts: Placement, gathered: int) -> Way:
        there, back = (Step(kind, ("tp",), dim=gathered) for kind in ("all_gather", "reduce_scatter"))
        return Way(State(whole.dims), (there,), (back,), starts)

    trip = trip_of(way(cut, 1), "rows", cut)
    assert trip is not None
    assert trip.step.kind == "all_gather"
    assert trip_of(Way(State(whole.dims), (), (), whole), "rows", whole) is None
    with pytest.raises(EmissionPrinted, match="rows of experts take"):
        trip_of(way(experts, 0), "rows", experts)
