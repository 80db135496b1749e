from collections import Counter
from itertools import pairwise, product
from math import prod
from pickle import dumps, loads

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import (
    AxisUsedTwice,
    BadLayoutSize,
    IndivisibleExtent,
    PlacementRank,
    PlacementSyntax,
    SectionsMismatch,
    UnevenMismatch,
    UnknownAxis,
    UnknownReduction,
)
from meshwright.ir.sharding.layouts import (
    CONTIGUOUS,
    ZIGZAG,
    Layout,
    Nested,
    Padded,
    Sections,
    Span,
    Uneven,
    length,
    merge,
    parse_layout,
    select,
)
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Partial, Placement, Shard, State
from tests.ir.strategies import layouts, states

parts = st.integers(1, 5)
spans = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)).map(lambda pair: (pair[0], sum(pair))), max_size=5)


def indices(runs: tuple[Span, ...] | list[Span]) -> list[int]:
    """The indices that spans stand for, in order: the definition that the arithmetic on spans must agree with."""
    return [index for start, stop in runs for index in range(start, stop)]


# Layouts.


@given(st.data(), parts)
def test_pieces_are_a_partition_of_the_dimension(data: st.DataObject, count: int) -> None:
    layout, extent = data.draw(layouts(count))
    pieces = [layout.pieces(extent, count, part) for part in range(count)]
    assert sorted(index for piece in pieces for index in indices(piece)) == list(range(extent))


@given(st.data(), parts)
def test_pieces_are_in_order_and_joined(data: st.DataObject, count: int) -> None:
    layout, extent = data.draw(layouts(count))
    for part in range(count):
        piece = layout.pieces(extent, count, part)
        assert all(start < stop for start, stop in piece)
        assert all(before[1] < after[0] for before, after in pairwise(piece))


@given(st.data(), parts)
def test_what_is_neither_uneven_nor_padded_is_cut_in_equal_parts(data: st.DataObject, count: int) -> None:
    layout, extent = data.draw(layouts(count).filter(lambda pair: not isinstance(pair[0], Uneven | Padded)))
    assert {length(layout.pieces(extent, count, part)) for part in range(count)} == {extent // count}


@given(st.data(), parts, st.integers(1, 3))
def test_a_scaled_layout_cuts_blocks(data: st.DataObject, count: int, block: int) -> None:
    """When each index becomes a block of indices, the same part holds the same blocks."""
    layout, extent = data.draw(layouts(count))
    for part in range(count):
        scaled = layout.scaled(block).pieces(extent * block, count, part)
        assert scaled == tuple((start * block, stop * block) for start, stop in layout.pieces(extent, count, part))


@given(st.data(), parts)
def test_layouts_round_trip(data: st.DataObject, count: int) -> None:
    layout, _ = data.draw(layouts(count))
    assert parse_layout(str(layout)) == layout


PIECES: list[tuple[Layout, list[tuple[Span, ...]]]] = [
    (CONTIGUOUS, [((0, 6),), ((6, 12),)]),
    (ZIGZAG, [((0, 3), (9, 12)), ((3, 9),)]),
    (Sections((8, 2, 2)), [((0, 4), (8, 9), (10, 11)), ((4, 8), (9, 10), (11, 12))]),
    (Nested(3), [((0, 2), (4, 6), (8, 10)), ((2, 4), (6, 8), (10, 12))]),
    (Nested(3, ZIGZAG), [((0, 1), (3, 5), (7, 9), (11, 12)), ((1, 3), (5, 7), (9, 11))]),
    (Uneven((5, 7)), [((0, 5),), ((5, 12),)]),
    (Padded((7,)), [((0, 7),), ((7, 12),)]),
    (Padded((12,)), [((0, 12),), ()]),
]


def test_what_each_layout_means() -> None:
    for layout, pieces in PIECES:
        assert [layout.pieces(12, 2, part) for part in range(2)] == pieces


@pytest.mark.parametrize(
    "text", ["zag", "sections", "sections()", "uneven(2;3)", "uneven(2,3) ", "nested()", "nested(2,3)"]
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(PlacementSyntax):
        parse_layout(text)


def test_padded_runs_hold_all() -> None:
    assert [Padded((2,)).pieces(5, 4, part) for part in range(4)] == [((0, 2),), ((2, 4),), ((4, 5),), ()]
    with pytest.raises(SectionsMismatch):
        Padded((2,)).pieces(9, 4, 0)


# Spans.


@given(spans)
def test_merge_keeps_indices_and_joins_runs(runs: list[Span]) -> None:
    merged = merge(runs)
    assert indices(merged) == indices(runs)
    assert merge(merged) == merged
    assert length(merged) == length(runs)


@given(spans, st.data())
def test_select_takes_positions(runs: list[Span], data: st.DataObject) -> None:
    size = length(runs)
    bounds = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    local = list(zip(bounds[::2], bounds[1::2], strict=False))
    held = indices(runs)
    assert indices(select(runs, local)) == [held[position] for position in indices(local)]


@given(spans, st.data())
def test_select_composes(runs: list[Span], data: st.DataObject) -> None:
    """Taking from what was taken is taking at once: this is what several axes on one dimension rely on."""
    inner = _some(data, length(runs))
    outer = _some(data, length(inner))
    assert select(select(runs, inner), outer) == select(runs, select(inner, outer))


def _some(data: st.DataObject, size: int) -> tuple[Span, ...]:
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    return ((start, stop),) if start < stop else ()


# Placements and states.


@given(states())
def test_states_round_trip(state: State) -> None:
    assert State.parse(str(state)) == state


@given(states())
def test_placements_round_trip(state: State) -> None:
    for placement in (state.value, state.grad):
        assert Placement.parse(str(placement)) == placement


@given(st.data())
def test_ranks_hold_a_partition_of_the_tensor(data: st.DataObject) -> None:
    """Every element is held by exactly as many ranks as there are copies."""
    mesh = Mesh.parse("a=2 b=3 c=2")
    dims: list[list[Shard]] = [[], []]
    for axis in data.draw(st.lists(st.sampled_from(mesh.names), unique=True)):
        dims[data.draw(st.integers(0, 1))].append(Shard(axis, data.draw(st.sampled_from([CONTIGUOUS, ZIGZAG]))))
    placement, shape = Placement((tuple(dims[0]), tuple(dims[1]))), (96, 96)
    placement.check(shape, mesh, "here")
    held: Counter[tuple[int, int]] = Counter()
    for rank in range(mesh.size):
        held.update(product(*map(indices, placement.spans(shape, mesh, rank))))
    copies = prod(axis.size for axis in mesh.axes if axis.name not in placement.axes)
    assert set(held.values()) == {copies}
    assert len(held) == prod(shape)


def test_axes_on_one_dim_cut_major_to_minor() -> None:
    mesh = Mesh.parse("a=2 b=2")
    placement = Placement.parse("[b.a]")
    assert [placement.spans((8,), mesh, rank)[0] for rank in range(4)] == [((0, 2),), ((4, 6),), ((2, 4),), ((6, 8),)]


def test_a_sectioned_dim_is_cut_in_every_section() -> None:
    mesh = Mesh.parse("tp=2")
    placement = Placement.parse("[-, tp:sections(4,2,2)]")
    assert placement.local_shape((3, 8), mesh) == (3, 4)
    assert placement.spans((3, 8), mesh, 1)[1] == ((2, 4), (5, 6), (7, 8))


def test_an_axis_does_one_thing() -> None:
    placement = Placement.parse("[-, tp]+sum(dp)")
    assert placement.on("tp") == 1
    assert placement.on("dp") == Partial("dp")
    assert placement.on("cp") is None


def test_a_state_is_a_pair_of_placements() -> None:
    state = State.parse("[dp, -]+sum(tp)|sum(cp)")
    assert str(state.value) == "[dp, -]+sum(tp)"
    assert str(state.grad) == "[dp, -]+sum(cp)"
    assert state.without_gradient() == State.parse("[dp, -]+sum(tp)")


def test_partial_axes_have_no_order() -> None:
    assert Placement.parse("[]+sum(b)+max(a)") == Placement.parse("[]+max(a)+sum(b)")


@pytest.mark.parametrize("text", ["", "dp", "[dp", "[dp]+avg(tp)", "[dp]sum(tp)+", "[d p]", "[dp,tp]", "[:zigzag]"])
def test_what_is_no_placement_is_refused(text: str) -> None:
    with pytest.raises(PlacementSyntax):
        Placement.parse(text)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(PlacementSyntax):
        State.parse("[dp]|tp")


def test_a_placement_fits_its_tensor_and_mesh() -> None:
    mesh = Mesh.parse("dp=2")
    with pytest.raises(PlacementRank):
        Placement.parse("[dp]").check((2, 2), mesh, "here")
    with pytest.raises(UnknownAxis):
        Placement.parse("[tp]").check((2,), mesh, "here")


def test_every_part_is_checked() -> None:
    """What one part leaves may be cut further, and what another leaves may not."""
    mesh = Mesh.parse("a=2 b=2")
    Placement.parse("[a:uneven(4,6).b]").check((10,), mesh, "here")
    with pytest.raises(IndivisibleExtent):
        Placement.parse("[a:uneven(4,5).b]").check((9,), mesh, "here")


LAID = [
    ("[a.b]", (12,)),
    ("[a:zigzag.b]", (24,)),
    ("[a.b:zigzag]", (24,)),
    ("[a:uneven(5,7)]", (12,)),
    ("[b:padded(4)]", (9,)),
    ("[a:padded(6).b:padded(2)]", (11,)),
    ("[b:sections(6,12).a:sections(2,4)]", (18,)),
    ("[a:nested(3)]", (12,)),
    ("[b:nested(2,zigzag), a]", (24, 2)),
    ("[-, b.a]", (5, 6)),
    ("[]+sum(a)", ()),
]


def test_a_shard_is_as_large_as_what_its_rank_holds() -> None:
    """Of the first rank too, which is asked most and has a shorter way."""
    mesh = Mesh.parse("a=2 b=3")
    for text, shape in LAID:
        placement = Placement.parse(text)
        placement.check(shape, mesh, "here")
        for rank in range(mesh.size):
            held = tuple(len(indices(runs)) for runs in placement.spans(shape, mesh, rank))
            assert placement.local_shape(shape, mesh, rank) == held, (text, rank)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[a, a]", AxisUsedTwice),
        ("[a.a]", AxisUsedTwice),
        ("[a]+sum(a)", AxisUsedTwice),
        ("[-]+sum(a)+max(a)", AxisUsedTwice),
        ("[a]|sum(a)", AxisUsedTwice),
        ("[-]+sum(a)|sum(a)", AxisUsedTwice),
        ("[a:sections(0,2)]", BadLayoutSize),
        ("[a:uneven(2,0)]", BadLayoutSize),
        ("[a:nested(0)]", BadLayoutSize),
        ("[a:padded(0)]", BadLayoutSize),
    ],
)
def test_an_axis_is_used_once_and_sizes_are_positive(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        State.parse(text)


@pytest.mark.parametrize(
    ("text", "extent", "error"),
    [
        ("[a]", 5, IndivisibleExtent),
        ("[a:zigzag]", 6, IndivisibleExtent),
        ("[a:nested(3)]", 8, IndivisibleExtent),
        ("[a:nested(3)]", 9, IndivisibleExtent),
        ("[a:nested(2,zigzag)]", 4, IndivisibleExtent),
        ("[a:sections(3,3)]", 6, IndivisibleExtent),
        ("[a:sections(2,2)]", 6, SectionsMismatch),
        ("[a:uneven(2,2)]", 5, SectionsMismatch),
        ("[a:uneven(2,2,2)]", 6, UnevenMismatch),
        ("[a:padded(2)]", 5, SectionsMismatch),
        ("[a:padded(2).b:padded(1)]", 6, SectionsMismatch),
    ],
)
def test_extents_that_a_layout_cannot_cut_are_refused(text: str, extent: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        Placement.parse(text).check((extent,), Mesh.parse("a=2 b=2"), "here")


def test_reductions_are_sums_and_maxima() -> None:
    with pytest.raises(UnknownReduction):
        Partial("a", "min")
    assert (str(Partial("a")), str(Partial("a", "max"))) == ("sum(a)", "max(a)")


def test_placements_and_states_are_keys() -> None:
    """Equal ones hash alike, also in another process, and what differs in a part differs."""
    texts = ("[a, -]", "[-, a]", "[a.b, -]", "[b.a, -]", "[a, -]+sum(b)", "[a, -]+max(b)")
    made = [Placement.parse(text) for text in texts]
    assert len(set(made)) == len(texts)
    for one, text in zip(made, texts, strict=True):
        again = loads(dumps(one))
        assert (again, hash(again), again.axes) == (one, hash(Placement.parse(text)), one.axes)
    assert Placement.parse("[a, -]+sum(c)+max(b)").axes == ("a", "b", "c")
    states_ = [State.parse(text) for text in (*texts, "[a, -]|sum(b)", "[a, -]|sum(b)|sum(c)")]
    assert len(set(states_)) == len(states_)
    assert hash(State.parse("[a, -]|sum(c)|sum(b)")) == hash(states_[-1])
    assert State.parse("[a, -]|sum(c)|sum(b)") == states_[-1]
    plain = State.parse("[a, -]+sum(b)")
    assert plain.without_gradient() is plain
    assert (State.replicated(2), Placement.replicated(2).rank) == (State.parse("[-, -]"), 2)
