"""Slices of a product become a split where they tile it, and only there."""

from __future__ import annotations

import pytest

from meshwright.ir.frontends.sections import joined
from tests.build import Builder

CASES: dict[str, tuple[list[tuple[int, int]], list[str]]] = {
    "tiles": ([(0, 4), (4, 6), (6, 8)], ["linear", "split"]),
    "tiles in another order": ([(4, 8), (0, 4)], ["linear", "split"]),
    "a gap": ([(0, 4), (5, 8)], ["linear", "slice", "slice"]),
    "an overlap": ([(0, 5), (4, 8)], ["linear", "slice", "slice"]),
    "a rest that nobody reads": ([(0, 4), (4, 6)], ["linear", "slice", "slice"]),
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


def test_slices_of_other_values_stay() -> None:
    g = Builder()
    x = g.input((2, 8))
    g.output(*(g.op("slice", x, dim=1, start=start, end=start + 4) for start in (0, 4)))
    graph = g.graph()
    assert joined(graph.ops, graph.types) == graph.ops
