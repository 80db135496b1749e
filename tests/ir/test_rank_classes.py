"""Which ranks are alike where shards are not, on stages of two bodies whose only values say how they are cut."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Type
from meshwright.ir.graph.text import parse_graph
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, Local, Run, Stage
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.rank_classes import At, rank_classes, seen

GRAPH = parse_graph("graph\n  input %x: f32[12, 12]\n  %y: f32[12, 12] = neg(%x)\n  output %y\n")
MESH = Mesh.parse("dp=2 tp=3")
EMPTY = lower_body(GRAPH, BodyPlan("a", "a"), MESH, Lowering())


def body(name: str, *placements: str) -> BodyProgram:
    """A body that holds a matrix in each of these placements."""
    held = {f"v{at}": Local(Type((12, 12), "f32"), Placement.parse(text)) for at, text in enumerate(placements)}
    return replace(EMPTY, name=name, locals={**EMPTY.locals, **held})


def stage(*names: str) -> Stage:
    return Stage(MESH, (10, 11, 12, 13, 14, 15), (Run(names, 1, 0),), 0, len(names))


def alike(device: Callable[[int], Hashable] | None, **bodies: tuple[str, ...]) -> list[tuple[tuple[int, ...], At]]:
    made = {name: body(name, *placements) for name, placements in bodies.items()}
    return [(own.ranks, own.at) for own in rank_classes([stage(*made)], made, device)]


ALL = (10, 11, 12, 13, 14, 15)
DP, TP = "[dp:uneven(8,4), -]", "[-, tp:uneven(2,5,5)]"


def by_host(rank: int) -> int:
    return rank // 13


def test_ranks_are_alike_if_they_hold_the_same_sizes_on_the_same_device() -> None:
    """Ranks are dp-major: 10, 11, 12 have the first part of dp. By host, these are on one device, the others on
    another."""
    assert alike(by_host, a=("[dp, tp]",)) == [(ALL, ())], "even shards: devices are not asked for"
    assert alike(None, a=(DP,)) == [(ALL, ())], "the first has most"
    assert alike(lambda rank: 0, a=(DP,)) == [((10, 11, 12), (("dp", 0),))], "less of everything on the same device"
    assert alike(by_host, a=(DP,)) == [((10, 11, 12), (("dp", 0),)), ((13, 14, 15), (("dp", 1),))]
    # Of (2, 5, 5) the second and third have most, and are alike: both go by the second part.
    assert alike(None, a=(TP,)) == [((11, 12, 14, 15), (("tp", 1),))]
    assert alike(None, a=(DP, TP)) == [((11, 12), (("dp", 0), ("tp", 1)))]
    both = [((11, 12), (("dp", 0), ("tp", 1))), ((14, 15), (("dp", 1), ("tp", 1)))]
    assert alike(by_host, a=(DP, TP)) == both
    assert alike(by_host, a=(DP,), b=(TP,)) == both, "over all bodies of a stage"


def test_who_has_more_of_one_thing_and_less_of_another_is_no_less() -> None:
    """One axis, two cuts of it: the first part is larger in one and smaller in the other."""
    parts = [((10, 11, 12), (("dp", 0),)), ((13, 14, 15), (("dp", 1),))]
    assert alike(None, a=(DP, "[-, dp:uneven(3,9)]")) == parts
    assert alike(None, a=(DP,), b=("[-, dp:uneven(3,9)]",)) == parts
    assert alike(None, a=(DP, "[-, dp:uneven(7,5)]")) == [(ALL, ())]
    assert alike(None, a=("[-, dp:uneven(5,7)]", "[dp:uneven(4,8), -]")) == [((13, 14, 15), (("dp", 1),))]


def test_parts_change_places_along_their_axes() -> None:
    """The first part with the one that is looked at; other axes, and what is cut evenly, stay."""
    made = body("a", DP, TP, "[dp, tp:uneven(6,4,2)]", "[tp.dp:uneven(1,3), -]")
    assert seen(made, ()) is made
    assert seen(made, (("dp", 0), ("tp", 0))) is made

    def placed(at: At) -> list[str]:
        found = seen(made, at).locals
        return [str(found[f"v{number}"].placement) for number in range(4)]

    assert placed((("dp", 1), ("tp", 0))) == [
        "[dp:uneven(4,8), -]", TP, "[dp, tp:uneven(6,4,2)]", "[tp.dp:uneven(3,1), -]",
    ]  # fmt: skip
    assert placed((("dp", 0), ("tp", 2))) == [
        DP, "[-, tp:uneven(5,5,2)]", "[dp, tp:uneven(2,4,6)]", "[tp.dp:uneven(1,3), -]",
    ]  # fmt: skip
    assert placed((("dp", 1), ("tp", 1))) == [
        "[dp:uneven(4,8), -]", "[-, tp:uneven(5,2,5)]", "[dp, tp:uneven(4,6,2)]", "[tp.dp:uneven(3,1), -]",
    ]  # fmt: skip
