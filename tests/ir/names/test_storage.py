"""What is stored in shards is cut further than operators want it: along the first dimension that all axes divide."""

from __future__ import annotations

import pytest

from meshwright.ir.names.storage import cut_further, fits
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, Shard

MESH = Mesh.parse("a=2 b=3")


CUT: list[tuple[str, tuple[int, ...], str, str]] = [
    ("[-, -]", (6, 4), "a b", "[a.b, -]"),
    ("[-, -]", (6, 4), "b a", "[b.a, -]"),
    ("[-, -]", (4, 6), "a b", "[-, a.b]"),
    ("[-, -]", (4, 3), "a", "[a, -]"),
    ("[a, -]", (12, 4), "a b", "[a.b, -]"),
    ("[a, -]", (4, 3), "a b", "[a, b]"),
    ("[a, b]", (4, 3), "a b", "[a, b]"),
    # Seven over six ranks: two each, of which three make a run of the outer axis.
    ("[-, -]", (7, 5), "a b", "[a:padded(6).b:padded(2), -]"),
    ("[-, -]", (13, 5), "b a", "[b:padded(6).a:padded(3), -]"),
    ("[a, -]", (2, 5), "b", "[a.b:padded(1), -]"),
    ("[-]+sum(b)", (4,), "a", "[a]+sum(b)"),
    ("[-]+sum(b)", (4,), "b", "[-]+sum(b)"),
    ("[]", (), "a", "[]"),
    ("[-]", (6,), "", "[-]"),
]


def test_axes_that_hold_copies_cut_what_is_stored() -> None:
    for placement, shape, axes, stored in CUT:
        assert str(cut_further(Placement.parse(placement), shape, axes.split(), MESH)) == stored


@pytest.mark.parametrize(
    ("extent", "axes", "fit"), [(6, "ab", True), (3, "b", True), (3, "ab", False), (4, "b", False)]
)
def test_an_extent_fits_what_cuts_it_in_equal_parts(extent: int, axes: str, fit: bool) -> None:
    assert fits(extent, tuple(map(Shard, axes)), MESH) is fit
