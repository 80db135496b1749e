"""How single cuts become joint layouts: samples first, then the sequence of what is left of them."""

from __future__ import annotations

from meshwright.ir.analysis.loops import loops
from meshwright.ir.graph.graph import Graph
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Nested, Sections
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.block.layouts import Layouts, Tokens
from tests.build import Builder


def flat() -> Graph:
    """Tokens of eight samples as one dimension, and a product that is cut in halves afterwards."""
    g = Builder()
    x = g.input((8, 32, 16), labels=("b", "s", ""), requires_grad=True)
    tokens = g.op("view", x, name="tokens", shape=(256, 16))
    both = g.op("linear", tokens, g.param("both.weight", (48, 16)), name="both")
    first, second = g.many("split", both, dim=1, sizes=(32, 16), name="part")
    g.output(first, second)
    return g.graph()


def test_layouts_of_tokens_and_of_what_is_cut_apart() -> None:
    """Thirty-two positions under eight samples (d0); of the rows of a product (n), thirty-two and sixteen. One axis has
    either a whole number of samples or a part of each."""
    graph = flat()
    own = Layouts(graph, loops(graph), frozenset({"b"}))
    op = next(op for op in graph.ops if op.name == "both")
    assert own.tokens(op, "d0") == Tokens(8, frozenset({"b"}))
    assert [own.tokens(op, name) for name in ("n", "k")] == [None, None]
    assert [own.sections(op, name) for name in ("d0", "n", "k")] == [None, (32, 16), None]
    one, other = Mesh.parse("a=2"), Mesh.parse("b=2")
    for mesh, layout in ((one, Nested(8, CONTIGUOUS)), (other, Nested(8, ZIGZAG))):
        assert own.single(op, Split(("d0",)), mesh) == (Split(("d0",)), Split(("d0",), layout))
    assert own.single(op, Split(("n",)), one) == (Split(("n",), Sections((32, 16))),)
    assert own.single(op, Split(("k",)), one) == (Split(("k",)),)
    assert own.single(op, Split(("d0", "n")), one) == (Split(("d0", "n")),)
    alone = Tokens(1, frozenset({"b"}))
    assert [alone.layout(axis) for axis in "ab"] == [CONTIGUOUS, ZIGZAG]
    # Positions that stand alone in their dimension have no layout of tokens.
    view = next(op for op in graph.ops if op.name == "tokens")
    assert [own.tokens(view, name) for name, loop in own.found.factors["tokens"].items() if loop == ("s",)] == [None]


def test_joint_layouts_follow_from_what_is_left() -> None:
    """Of eight samples four on each rank where the other axis cuts them, and one where sixteen ranks do; sections of
    which the first axis took half."""
    graph = flat()
    own = Layouts(graph, loops(graph), frozenset({"c"}))
    op = next(op for op in graph.ops if op.name == "both")
    samples, positions, wide = Split(("d0",)), Split(("d0",), Nested(8, CONTIGUOUS)), Split(("n",), Sections((32, 16)))
    fewer, fewest = Split(("d0",), Nested(4, CONTIGUOUS)), Split(("d0",), Nested(2, CONTIGUOUS))
    half = Split(("n",), Sections((16, 8)))
    zigzag = Split(("d0",), Nested(8, ZIGZAG))
    for words, made, expected in (
        ("a=2 b=2", (positions, samples), (("b", samples), ("a", fewer))),
        ("a=2 b=2", (samples, positions), (("a", samples), ("b", fewer))),
        ("a=2 b=2", (samples, samples), (("a", samples), ("b", samples))),
        ("a=2 b=2", (positions, None), (("a", positions),)),
        ("a=2 b=2 c=2", (samples, positions, samples), (("a", samples), ("c", samples), ("b", fewest))),
        ("a=16 b=2", (samples, positions), (("a", samples), ("b", Split(("d0",))))),
        ("a=2 c=2", (samples, zigzag), (("a", samples), ("c", Split(("d0",), Nested(4, ZIGZAG))))),
        ("a=8 c=2", (samples, zigzag), (("a", samples), ("c", Split(("d0",), ZIGZAG)))),
        ("a=2 b=2", (wide, wide), (("a", wide), ("b", half))),
        ("a=2 b=2", (wide, Split(("k",))), (("a", wide), ("b", Split(("k",))))),
        ("a=2 b=2", (positions, wide), (("b", wide), ("a", positions))),
    ):
        assert own.joint(op, Mesh.parse(words), made).choices == expected
