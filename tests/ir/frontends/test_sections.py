"""Slices of a product become a split where they tile it, and only there."""

from __future__ import annotations

import pytest

from meshwright.ir.frontends.folding.sections import joined
from tests.build import Builder

CASES: dict[str, tuple[list[tuple[int, int]], list[str]]] = {
    "tiles": ([(0, 4), (4, 6), (6, 8)], ["linear", "split"]),
    "tiles in another order": ([(4, 8), (0, 4)], ["linear", "split"]),
    "a gap": ([(0, 4), (5, 8)], ["linear", "slice", "slice"]),
    "an overlap": ([(0, 5), (4, 8)], ["linear", "slice", "slice"]),
    "a rest that nobody reads": ([(0, 4), (4, 6)], ["linear", "slice", "slice"]),
    "a rest before them": ([(2, 4), (4, 8)], ["linear", "slice", "slice"]),
    "all in one": ([(0, 8)], ["linear", "slice"]),
}


@pytest.mark.parametrize("case", CASES)
def test_tiling_slices_are_a_split(case: str) -> None:
    bounds, kinds = CASES[case]
    g = Builder()
    fused = g.op("linear", g.input((2, 4)), g.param("w", (8, 4)))
    parts = [g.op("slice", fused, dim=1, start=start, end=end) for start, end in bounds]
    g.output(*parts)
    graph = g.graph()
    ops = joined(graph.ops, graph.types)
    assert [op.kind for op in ops] == kinds
    assert {value for op in ops for value in op.results} == {fused, *parts}
    if kinds[-1] == "split":
        in_order = [part for _, part in sorted(zip(bounds, parts, strict=True))]
        assert list(ops[-1].results) == in_order
        assert ops[-1].attr("sizes") == tuple(graph.types[part].shape[1] for part in in_order)


def test_slices_are_joined_by_value_dimension_and_side_of_differentiation() -> None:
    """Two products, of which one is cut along either dimension; other operators stay where they stood. Slices by steps
    of two and those on different sides tile nothing."""
    g = Builder()
    x, w = g.input((4, 2)), g.param("w", (8, 2))
    first, second, third = (g.op("linear", x, w) for _ in range(3))
    parts = [
        g.op("slice", first, dim=1, start=0, end=4),
        g.op("slice", first, dim=0, start=2, end=4),
        g.op("slice", second, dim=1, start=4, end=8),
        g.op("neg", first),
        g.op("slice", second, dim=1, start=0, end=4),
        g.op("slice", first, dim=0, start=0, end=2),
        g.op("slice", third, dim=1, start=0, end=4, step=2),
        g.op("slice", third, dim=1, start=4, end=8, step=2),
        g.op("slice", third, dim=1, start=0, end=4, no_grad=True),
        g.op("slice", third, dim=1, start=4, end=8),
    ]
    g.output(*parts)
    graph = g.graph()
    found = joined(graph.ops, graph.types)
    assert [(op.kind, op.results, op.attr("dim"), op.attr("sizes")) for op in found[3:]] == [
        ("slice", (parts[0],), 1, None),
        ("split", (parts[5], parts[1]), 0, (2, 2)),
        ("split", (parts[4], parts[2]), 1, (4, 4)),
        ("neg", (parts[3],), None, None),
        *(("slice", (part,), 1, None) for part in parts[6:]),
    ]


def test_slices_of_other_values_stay() -> None:
    g = Builder()
    x = g.input((2, 8))
    g.output(*(g.op("slice", x, dim=1, start=start, end=start + 4) for start in (0, 4)))
    graph = g.graph()
    assert joined(graph.ops, graph.types) == graph.ops
