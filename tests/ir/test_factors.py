from dataclasses import replace

import pytest

from meshwright.ir.analysis.loops import Loop, Loops, atoms_of, body_loops, loops, resized, stem, value_labels
from meshwright.ir.errors import FactorUndeclared
from meshwright.ir.graph.fold import unfolded_short
from meshwright.ir.graph.graph import Graph, Type
from meshwright.ir.same import Same
from tests.build import Builder
from tests.llama_block import Sizes, model
from tests.models import B, F, H, S, llama, perceptron_fold


def names(found: Loops) -> dict[str, int]:
    return {loop.name: loop.size for loop in found.loops}


def test_a_decoder_has_few_loops() -> None:
    assert names(loops(llama())) == {
        "b": 2, "s": 8, "vocab": 32, "hidden": 16, "heads": 2, "group": 2, "head_dim": 4, "ffn": 24,
    }  # fmt: skip


def test_depth_adds_no_loops() -> None:
    assert names(loops(llama(1))) == names(loops(llama(4)))


def test_labelled_loops_come_first() -> None:
    assert [(loop.name, loop.label) for loop in loops(llama()).loops][:3] == [("b", "b"), ("s", "s"), ("vocab", "")]


def test_merged_dims_are_tuples_of_loops() -> None:
    graph = llama(1)
    labels = value_labels(graph)
    assert labels["embedding"] == ("b", "s", "hidden")
    assert labels["p.layers.0.q.weight"] == ("heads·group·head_dim", "hidden")
    assert labels["p.layers.0.k.weight"] == ("heads·head_dim", "hidden")
    assert labels["attention"] == ("b", "heads·group", "s", "head_dim")
    rows = graph.ops[-1].operands[0]
    assert labels[rows] == ("b·s", "vocab")
    assert labels[graph.loss or ""] == ()


def test_where_a_loop_occurs() -> None:
    found = loops(llama(1))
    assert ("attention", "sq") in found.loop("s").occurs
    assert ("attention", "sk") in found.loop("s").occurs
    assert found.factors["attention"]["sq"] == found.factors["attention"]["sk"] == ("s",)
    assert found.factors["cross_entropy"] == {"d0": ("b", "s"), "v": ("vocab",)}


def test_a_role_with_several_sizes_names_them() -> None:
    g = Builder()
    x = g.input((B, S, H), labels=("b", "s", "hidden"))
    for width in (8, 24):
        up = g.op("linear", x, g.param(f"up{width}", (width, H)))
        x = g.op("add", x, g.op("linear", up, g.param(f"down{width}", (H, width))))
    g.output(x)
    assert set(names(loops(g.graph()))) == {"b", "s", "hidden", "ffn", "ffn8"}


def test_a_labelled_dim_may_fall_into_parts() -> None:
    g = Builder()
    x = g.input((6, 4), labels=("b", ""))
    g.output(g.op("view", x, shape=(2, 3, 4)))
    graph = g.graph()
    assert value_labels(graph) == {"x": ("b.0·b.1", "dim4"), "view": ("b.0", "b.1", "dim4")}
    assert [loop.label for loop in loops(graph).loops] == ["b", "b", ""]


def test_refinements_meet_in_the_middle() -> None:
    """Twelve seen as 4·3 and as 2·6 is 2·2·3."""
    g = Builder()
    x = g.input((12,), labels=("x",))
    g.output(g.op("view", x, shape=(4, 3)), g.op("view", x, shape=(2, 6)))
    assert [len(dim) for dim in loops(g.graph()).dims["x"]] == [3]
    assert value_labels(g.graph())["view"] == ("x.0·x.1", "x.2")
    assert value_labels(g.graph())["view_1"] == ("x.0", "x.1·x.2")


def test_what_has_no_common_boundary_stays_apart() -> None:
    g = Builder()
    x = g.input((4, 6), labels=("b", ""))
    g.output(g.op("view", x, shape=(6, 4)))
    assert value_labels(g.graph()) == {"x": ("b", "dim6"), "view": ("dim6", "dim4")}


def test_extent_one_runs_over_nothing() -> None:
    g = Builder()
    x = g.input((1, 4), labels=("b", ""))
    g.output(g.op("neg", x))
    assert value_labels(g.graph())["neg"] == ("", "dim4")


def test_experts_and_their_slots() -> None:
    g = Builder()
    x = g.input((B, S, H), labels=("b", "s", ""))
    idx = g.input((B * S, 2), name="idx", dtype="i64")
    weights = g.input((B * S, 2), name="weights")
    flat = g.op("view", x, shape=(B * S, H))
    rows = g.op("dispatch", flat, idx, num_experts=4, capacity=8)
    up = g.op("grouped_linear", rows, g.param("up", (4, F, H)))
    down = g.op("grouped_linear", up, g.param("down", (4, H, F)))
    y = g.op("combine", down, idx, weights, num_experts=4, capacity=8)
    g.output(y)
    labels = value_labels(g.graph())
    assert labels[rows] == ("experts", "slots", "hidden")
    assert labels[up] == ("experts", "slots", "ffn")
    assert labels[y] == ("b·s", "hidden")


def test_heads_repeated_before_attention_are_heads_and_group() -> None:
    g = Builder()
    q = g.input((B, 4, S, 8), name="q", labels=("b", "", "s", ""))
    k = g.input((B, 2, S, 8), name="k", labels=("b", "", "s", ""))
    wide = g.op("expand", g.op("view", k, shape=(B, 2, 1, S, 8)), shape=(B, 2, 2, S, 8))
    again = g.op("view", wide, shape=(B, 4, S, 8), copy=True)
    g.output(g.op("attention", q, again, again, mask="full"))
    labels = value_labels(g.graph())
    assert labels["k"] == ("b", "heads", "s", "head_dim")
    assert labels["q"] == ("b", "heads·group", "s", "head_dim")


def test_tables_and_fused_projections() -> None:
    g = Builder()
    tokens = g.input((B, S), labels=("b", "s"), dtype="i64")
    labels = g.input((B, S), name="labels", labels=("b", "s"), dtype="i64")
    x = g.op("embedding", g.param("tokens", (50, H)), tokens)
    x = g.op("add", x, g.op("embedding", g.param("positions", (64, H)), tokens))
    gate, up = g.many("split", g.op("linear", x, g.param("gate_up", (2 * F, H))), dim=-1, sizes=(F, F))
    x = g.op("add", x, g.op("linear", g.op("mul", gate, up), g.param("down", (H, F))))
    g.loss(g.op("cross_entropy", g.op("linear", x, g.param("head", (50, H))), labels))
    found = value_labels(g.graph())
    assert found["p.tokens"] == ("vocab", "hidden")
    assert found["p.positions"] == ("table", "hidden")
    assert found["p.gate_up"] == ("fused", "hidden")
    assert found["p.head"] == ("vocab", "hidden")
    assert found[up] == ("b", "s", "ffn")


def test_slots_are_not_tokens() -> None:
    """Even where there are as many of them."""
    g = Builder()
    x = g.input((B, S, H), labels=("b", "s", ""))
    idx = g.input((B, S, 2), name="idx", dtype="i64")
    rows = g.op("dispatch", x, idx, num_experts=4, capacity=B * S)
    y = g.op("combine", rows, idx, g.input((B, S, 2), name="weights"), num_experts=4, capacity=B * S)
    g.output(y)
    labels = value_labels(g.graph())
    assert labels[rows] == ("experts", "slots", "hidden")
    assert labels[y] == ("b", "s", "hidden")


LOOPS_AT_ANOTHER_SIZE_ARE_THOSE_THAT_ARE_FOUND_THERE: list[Sizes] = [
    Sizes(batch=6),
    Sizes(batch=2),
    Sizes(seq=8),
    Sizes(batch=3, seq=32),
]


def test_loops_at_another_size_are_those_that_are_found_there() -> None:
    for sizes in LOOPS_AT_ANOTHER_SIZE_ARE_THOSE_THAT_ARE_FOUND_THERE:
        known, other = body_loops(model()), model(sizes)
        for name, found in body_loops(other).items():
            assert resized(known[name], other.body[name].graph) == found


def test_calls_of_a_body_agree_on_what_enters_and_leaves_it() -> None:
    found = body_loops(perceptron_fold())
    assert found["block"].factors["linear"] == {"d0": ("b",), "n": ("hidden",), "k": ("ffn",)}, "as the first has it"
    assert found["block"].ends == {"x": (("b",), ()), "layer_norm": (("b",), ())}
    assert found["up"].ends == {"linear": (("b",), ())}
    assert not any(loops.ends for loops in body_loops(model()).values())


def test_loops_that_are_gone_or_do_not_agree_are_told() -> None:
    known = body_loops(model())["block"]
    assert resized(known, model(Sizes(batch=1)).body["block"].graph) is None
    alone = body_loops(model(Sizes(batch=1)))["block"]
    assert resized(alone, model().body["block"].graph) is None
    g = Builder()
    x = g.input((4, 6, 2), labels=("b", "s", ""))
    g.output(g.op("view", x, shape=(24, 2), name="rows"))
    graph = g.graph()
    found = loops(graph)
    assert resized(found, graph) == found

    def with_types(**shapes: tuple[int, ...]) -> Graph:
        types = dict(graph.types) | {name: Type(shape, "f32") for name, shape in shapes.items()}
        return replace(graph, types=types)

    twice = resized(found, with_types(x=(8, 6, 2), rows=(48, 2)))
    assert twice is not None
    assert names(twice) == {"b": 8, "s": 6, "dim2": 2}
    assert resized(found, with_types(x=(8, 6, 2), rows=(48, 4))) is None  # one loop of two sizes


def test_a_loop_that_is_not_shown_by_itself_keeps_its_size() -> None:
    """Of rows of four by six no dimension shows either: what they make must stay."""
    g = Builder()
    x = g.input((24, 2), labels=("t", ""))
    g.output(g.op("view", x, shape=(4, 6, 2), name="cut"))
    graph = g.graph()
    found = loops(graph)
    hidden = Loops(found.loops, {"x": found.dims["x"]}, {})
    assert resized(hidden, replace(graph, ops=(), outputs=("x",), types={"x": Type((24, 2), "f32")})) == hidden
    assert resized(hidden, replace(graph, ops=(), outputs=("x",), types={"x": Type((48, 2), "f32")})) is None


def test_names_without_their_sizes() -> None:
    assert [stem(name) for name in ("ffn2048", "ffn", "b", "dim16", "b.0", "d_2", "b.12", "s.10")] == [
        "ffn", "ffn", "b", "dim", "b", "d_", "b.12", "s.10",
    ]  # fmt: skip
    with pytest.raises(FactorUndeclared, match=r"use one of b, s"):
        loops(llama(1)).loop("telepathy")


def test_loops_with_labels_come_first_and_what_no_operator_reads_last() -> None:
    g = Builder()
    g.input((7, 3), name="unread", labels=("", "z"))
    x = g.input((4, 2), labels=("", "b"))
    g.output(g.op("neg", g.op("neg", x)))
    assert loops(g.graph()).loops == (
        Loop("z", 3, "z", ()),
        Loop("b", 2, "b", (("neg", "d1"), ("neg_1", "d1"))),
        Loop("dim4", 4, "", (("neg", "d0"), ("neg_1", "d0"))),
        Loop("dim7", 7, "", ()),
    )


def test_only_what_a_product_makes_is_fused() -> None:
    """Not what is cut without a product, what a product sums, nor what another view shows to be of two loops."""
    g = Builder()
    x = g.input((B, S, 12), labels=("b", "s", ""))
    g.many("split", x, dim=-1, sizes=(8, 4))
    g.output(g.op("linear", x, g.param("w", (20, 12))))
    assert value_labels(g.graph())["x"] == ("b", "s", "dim12")
    assert value_labels(g.graph())["p.w"] == ("dim20", "dim12")
    g = Builder()
    x = g.input((B, S, 10), labels=("b", "s", ""))
    made = g.op("linear", x, g.param("w", (24, 10)))
    g.many("split", made, dim=-1, sizes=(8, 16))
    fused = value_labels(g.graph())
    assert (fused["p.w"], fused[made]) == (("fused", "dim10"), ("b", "s", "fused"))
    g.output(g.op("view", made, shape=(B, S, 2, 12)))
    found = value_labels(g.graph())
    assert (found["p.w"], found[made]) == (("dim2·dim12", "dim10"), ("b", "s", "dim2·dim12"))


def test_hidden_is_what_norms_run_over_if_it_is_one_loop() -> None:
    for kind in ("rms_norm", "layer_norm"):
        for cut, expected in ((False, "hidden"), (True, "dim2·dim12")):
            g = Builder()
            x = g.input((3, 5, 24))
            y = g.op(kind, x, g.param("w", (24,)), eps=1e-6, normalized_shape=(24,))
            g.output(g.op("view", y, shape=(3, 5, 2, 12)) if cut else y)
            assert value_labels(g.graph())["x"] == ("dim3", "dim5", expected)


def test_a_table_is_the_vocabulary_where_nothing_else_is() -> None:
    """Without a loss; its rows alone, not the tokens that are looked up; and only rows that are one loop."""
    g = Builder()
    tokens = g.input((3, 5), dtype="i64")
    g.output(g.op("embedding", g.param("w", (50, H)), tokens))
    assert value_labels(g.graph())["p.w"] == ("vocab", "hidden")
    assert value_labels(g.graph())["x"] == ("dim3", "dim5")
    g = Builder()
    table = g.op("view", g.param("w", (2, 25, H)), shape=(50, H))
    g.output(g.op("embedding", table, g.input((3, 5), dtype="i64")))
    assert value_labels(g.graph())["p.w"] == ("dim2", "dim25", "hidden")


def test_only_heads_of_two_loops_are_heads_and_group() -> None:
    """A head's width of two loops (halves that are rotated) has no name; that of values is one."""
    g = Builder()
    q, k = (g.input((B, 4, S, 2, 3), name=name, labels=("b", "", "s")) for name in "qk")
    v = g.input((B, 4, S, 7), name="v", labels=("b", "", "s", ""))
    flat = [g.op("view", value, shape=(B, 4, S, 6)) for value in (q, k)]
    g.output(g.op("attention", *flat, v, mask="full"))
    labels = value_labels(g.graph())
    assert labels["q"] == ("b", "heads", "s", "dim2", "dim3")
    assert labels["v"] == ("b", "heads", "s", "head_dim")


def test_what_leads_back_to_hidden_is_ffn_and_nothing_else() -> None:
    """`down` sums what `up` makes on its way to hidden; what `out` sums is hidden itself, and what it makes no name."""
    g = Builder()
    x = g.input((3, 5, H))
    norm = g.op("rms_norm", x, g.param("n", (H,)), eps=1e-6, normalized_shape=(H,))
    up = g.op("linear", norm, g.param("up", (F, H)))
    down = g.op("add", x, g.op("linear", up, g.param("down", (H, F))))
    side = g.op("linear", down, g.param("side", (9, H)))
    g.output(g.op("linear", side, g.param("out", (11, 9))))
    labels = value_labels(g.graph())
    assert [labels[f"p.{name}"] for name in ("up", "down", "side", "out")] == [
        ("ffn", "hidden"), ("hidden", "ffn"), ("dim9", "hidden"), ("dim11", "dim9"),
    ]  # fmt: skip


def test_dimensions_of_no_extent_are_not_taken_apart() -> None:
    for before, after in (((4, 0), (0, 2)), ((0, 4), (2, 0))):
        g = Builder()
        g.output(g.op("view", g.input(before), shape=after))
        labels = value_labels(g.graph())
        assert labels["x"] == tuple(f"dim{extent}" for extent in before)
        assert labels["view"] == tuple(f"dim{extent}" for extent in after)


def test_a_value_that_passes_through_may_have_loops_of_its_own() -> None:
    """Of a body that runs over x alone, a second input of two merged loops: their sizes are not known there."""
    found = Loops((Loop("d0", 4, "", (("y", "d0"),)),), {"x": (("d0",),), "y": (("d0",),), "z": (("a", "c"),)}, {})
    g = Builder()
    x, z = g.input((4,), name="x"), g.input((12,), name="z")
    g.output(g.op("neg", x, name="y"), z)
    assert resized(found, g.graph()) is None


def test_a_graph_is_followed_once() -> None:
    """Its loops, its batch and the weights of its loss are read off the same atoms."""
    graph = llama()
    assert loops(graph) is loops(graph)
    assert atoms_of(Same(graph)) is atoms_of(Same(graph))
    fold = perceptron_fold()
    assert unfolded_short(Same(fold)).graph is unfolded_short(Same(fold)).graph
