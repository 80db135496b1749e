"""Collectives are read from compiled programs: groups in all three ways of writing, loops, kinds."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.backends.jax_.verify.hlo import collectives
from meshwright.ir.errors import HLOUnreadable
from meshwright.ir.sharding.mesh import Mesh

MESH = Mesh.parse("dp=2 tp=4")
PROGRAM = """\
HloModule jit_step

%add (x: f32[], y: f32[]) -> f32[] {{
  ROOT %sum = f32[] add(%x, %y)
}}

%body (given: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {{
  %all-reduce.1 = f32[16,8]{{1,0}} all-reduce(%x), replica_groups={{{{0,4}},{{1,5}},{{2,6}},{{3,7}}}}, to_apply=%add
}}

%condition (given: (s32[], f32[16,8])) -> pred[] {{
  ROOT %less = pred[] compare(%i, %n), direction=LT
}}

ENTRY %main (p: f32[16,8]) -> f32[16,8] {{
  %while.1 = (s32[], /*index=1*/f32[16,8]) while(%tuple), condition=%condition, body=%body{trips}
  {line}
}}
"""
TRIPS = ', backend_config={"known_trip_count":{"n":"3"}}'
INSIDE = {("all_reduce", ("dp",), 512): 3}


def read(line: str, trips: str = TRIPS) -> Counter[tuple[str, tuple[str, ...], int]]:
    return collectives(PROGRAM.format(line=line, trips=trips), MESH)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%a = f32[64]{0} all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}", ("all_gather", ("tp",), 64)),
        ("%a = f32[64]{0} all-gather(%x), replica_groups=[4,2]<=[2,4]T(1,0)", ("all_gather", ("dp",), 128)),
        ("%a = bf16[8]{0} reduce-scatter(%x), replica_groups=mesh['a'=2,'b'=4] {'b'}", ("reduce_scatter", ("tp",), 64)),
        (
            "%a = f32[8]{0} all-reduce(%x), replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}",
            ("all_reduce", ("tp",), 32),
        ),
        ("%a = f32[8]{0} all-reduce(%x), replica_groups={{0,1,2,3,4,5,6,7}}", ("all_reduce", ("dp", "tp"), 32)),
        (
            "%a = (f32[4]{0}, f32[4]{0}) all-to-all(%x, %y), replica_groups={{0,4},{1,5},{2,6},{3,7}}",
            ("all_to_all", ("dp",), 32),
        ),
        ("%a = f32[8]{0} all-reduce-start(%x), replica_groups=[1,8]<=[8]", ("all_reduce", ("dp", "tp"), 32)),
    ],
)  # fmt: skip
def test_groups_and_sizes(line: str, found: tuple[str, tuple[str, ...], int]) -> None:
    assert read(line) == {**INSIDE, found: 1}


def test_one_device_alone_does_not_communicate() -> None:
    assert read("%a = f32[8]{0} all-reduce(%x), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}") == INSIDE


def test_what_cannot_be_read_is_told() -> None:
    with pytest.raises(HLOUnreadable, match="a loop of unknown length"):
        read("", trips="")
    with pytest.raises(HLOUnreadable, match="in no known way"):
        read("%a = f32[8]{0} all-reduce(%x), replica_groups=everyone")
    with pytest.raises(HLOUnreadable, match="groups along"):
        read("%a = f32[8]{0} all-reduce(%x), replica_groups=mesh['a'=8] {'a':(2)4}")
    with pytest.raises(HLOUnreadable, match="no known size"):
        read("%a = c64[8]{0} all-reduce(%x), replica_groups=[1,8]<=[8]")
    with pytest.raises(HLOUnreadable, match="no ENTRY"):
        collectives("HloModule empty", MESH)
