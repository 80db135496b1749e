"""What is said of single operators, worked out on graphs of a few: the words for their cuts, what is computed again by
name, and where gradients stay sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from meshwright.ir.analysis.loops import body_loops, loops
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names.gradients import from_weights, leave_sums, pass_weight_gradients
from meshwright.ir.names.pinned import NOTHING_PINNED, Allowed, Pinned, Words, of_weights, recomputing, refused
from meshwright.ir.names.recompute import is_loss, kind_of, recomputed
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from tests.build import Builder
from tests.llama_block import model

FOLD = model()
LOOPS = body_loops(FOLD)
GRAPHS = {body.name: body.graph for body in FOLD.bodies}
MESH = Mesh.parse("a=2 c=4")


def words(body: str) -> Words:
    return Words(GRAPHS[body], LOOPS[body])


def experts() -> Graph:
    """Tokens to experts and back, each of two products."""
    g = Builder()
    x = g.input((8, 16), labels=("b", ""), requires_grad=True)
    idx, by = g.input((8, 2), name="idx", dtype="i64"), g.input((8, 2), name="by")
    rows = g.op("dispatch", x, idx, num_experts=4, capacity=4, name="rows")
    up = g.op("grouped_linear", rows, g.param("up", (4, 32, 16)), name="up")
    act = g.op("silu", up, name="act")
    down = g.op("grouped_linear", act, g.param("down", (4, 16, 32)), name="down")
    g.output(g.op("combine", down, idx, by, num_experts=4, capacity=4, name="y"))
    return g.graph()


def flattened() -> Graph:
    """Four samples of eight tokens as 32 rows."""
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    g.output(g.op("linear", g.op("view", x, shape=(32, 16)), g.param("w", (16, 16)), name="y"))
    return g.graph()


# Words ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "op", "what", "known"),
    [
        ("block", "q", "sharding", "column row replicate"),
        ("block", "q", "split", "b s heads hidden none"),
        ("block", "norm1", "sharding", ""),
        ("block", "norm1", "split", "b s none"),
        ("block", "attn", "sharding", ""),
        ("block", "attn", "split", "b heads group s head_dim none"),
        ("block", "down", "split", "b s hidden ffn none"),
        ("block", "q", "recompute", "on off"),
        ("embed", "embedding", "sharding", "row column replicate"),
        ("embed", "embedding", "split", "b s vocab hidden none"),
    ],
)
def test_an_operator_has_words_for_all_that_can_be_cut(body: str, op: str, what: str, known: str) -> None:
    found = words(body)
    assert " ".join(found.known(found.graph.producer[op], what)) == known


def test_experts_have_a_word_of_their_own() -> None:
    graph = experts()
    found = Words(graph, loops(graph))
    assert found.known(graph.producer["up"], "sharding") == ("expert", "column", "row", "replicate")
    assert found.known(graph.producer["rows"], "sharding") == ()


def test_copies_of_a_weight_for_every_sample_are_no_cut_of_it() -> None:
    """A token that a model learns stands before those of every sample."""
    g = Builder()
    x = g.input((4, 2, 8), labels=("b", "s", ""))
    learned = g.op("expand", g.param("token", (1, 1, 8)), shape=(4, 1, 8))
    g.output(g.op("cat", learned, x, dim=1))
    graph = g.graph()
    op = graph.producer["cat"]
    assert Words(graph, loops(graph)).of_cuts(op, "sharding", Strategy.parse("a=d0"), Mesh.parse("a=2")) == set()


@pytest.mark.parametrize(
    ("strategy", "split", "sharding"),
    [
        ("a=d0", {"b"}, set[str]()),
        ("a=d0 c=d0", {"b"}, set[str]()),  # two of four samples are left, then one: no axis has come to tokens
        ("c=d0 a=d0", {"b", "s"}, set[str]()),  # four take all samples, two more the tokens of each
        ("a=d0:nested(4)", {"s"}, set[str]()),
        ("a=n", {"dim"}, {"column"}),
        ("a=k", {"dim"}, {"row"}),
        ("a=k c=n", {"dim"}, {"row", "column"}),
        ("a=-|P", set[str](), set[str]()),
        ("", set[str](), set[str]()),
    ],
)
def test_cuts_of_tokens_in_one_dimension_are_of_samples_first(
    strategy: str, split: set[str], sharding: set[str]
) -> None:
    graph = flattened()
    found, op = Words(graph, loops(graph)), graph.producer["y"]
    made = Strategy.parse(strategy)
    assert found.of_cuts(op, "split", made, MESH) == split
    assert found.of_cuts(op, "sharding", made, MESH) == sharding


@pytest.mark.parametrize(
    ("allowed", "strategy", "granted", "partly"),
    [
        (Allowed(), "a=n", True, True),
        (Allowed(sharding=frozenset({"column"})), "a=n", True, True),
        (Allowed(sharding=frozenset({"column"})), "a=k", False, False),
        (Allowed(sharding=frozenset({"column"})), "a=n c=k", False, False),
        (Allowed(sharding=frozenset({"column", "row"})), "a=n c=k", True, True),
        (Allowed(sharding=frozenset({"column"})), "a=d0", False, True),
        (Allowed(sharding=frozenset({"column"})), "", False, True),
        (Allowed(sharding=frozenset({"replicate"})), "", True, True),
        (Allowed(sharding=frozenset({"replicate"})), "a=d0", True, True),
        (Allowed(sharding=frozenset({"replicate"})), "a=n", False, False),
        (Allowed(split=frozenset({"b", "none"})), "", True, True),
        (Allowed(split=frozenset({"b"})), "a=d0", True, True),
        (Allowed(split=frozenset({"b"})), "a=d1", False, False),
        (Allowed(split=frozenset({"b"}), sharding=frozenset({"column"})), "a=d0", False, True),
        (Allowed(split=frozenset({"b", "heads"}), sharding=frozenset({"column"})), "a=d0 c=n", True, True),
        (Allowed(recompute=frozenset({"on"})), "a=n", True, True),
    ],
    ids=str,
)
def test_all_words_of_an_operator_must_be_allowed(allowed: Allowed, strategy: str, granted: bool, partly: bool) -> None:
    found = words("block")
    op, made = found.graph.producer["q"], Strategy.parse(strategy)
    assert found.grants(op, allowed, made, MESH) is granted
    assert found.grants(op, allowed, made, MESH, partly=True) is partly


def test_what_is_asked_reads_as_words() -> None:
    asked = Allowed(sharding=frozenset({"row", "column"}), recompute=frozenset({"on"}))
    assert str(asked) == "sharding=column|row, recompute=on"
    assert str(Allowed()) == ""
    pinned = Pinned({"block": {"q": asked}})
    assert (pinned.of("block"), pinned.of("head"), NOTHING_PINNED.of("block")) == ({"q": asked}, {}, {})


def test_a_plan_that_does_what_it_may_not_is_told_by_operator() -> None:
    plan = BodyPlan(
        "block", "block", (("q", Strategy.parse("a=n")), ("k", Strategy.parse("a=k"))), recompute=("norm1", "attn")
    )
    column, on, off = (
        Allowed(sharding=frozenset({"column"})),
        *(Allowed(recompute=frozenset({w})) for w in ("on", "off")),
    )

    def told(pins: Mapping[str, Allowed]) -> list[str]:
        return [op.name for op in refused(plan, GRAPHS["block"], LOOPS["block"], pins, MESH)]

    assert told({"q": column, "k": column, "v": column}) == ["k", "v"]
    assert told({"norm1": on, "attn": off, "norm2": on, "act": off}) == ["attn", "norm2"]
    assert told({"norm1": Allowed(recompute=frozenset({"on", "off"}))}) == []
    assert told({}) == []


def test_values_computed_again_follow_what_is_asked_of_their_operators() -> None:
    both = Allowed(recompute=frozenset({"on", "off"}))
    on, off, free = Allowed(recompute=frozenset({"on"})), Allowed(recompute=frozenset({"off"})), Allowed()
    pins = {"norm1": off, "attn": on, "act": both, "q": free, "down": on}
    values = ("x", "norm1", "act", "q", "down")
    assert recomputing(GRAPHS["block"], pins, values) == ("x", "act", "q", "down", "attn")
    assert recomputing(GRAPHS["block"], {}, values) == values


def test_weights_are_parameters_and_what_is_made_of_nothing_else() -> None:
    g = Builder()
    w, seen = g.param("w", (4,)), g.buffer("seen", (4,))
    own = g.op("mul", g.op("exp", w, name="own"), w, name="twice")
    ones, mixed = g.op("ones", shape=(4,), name="ones"), g.op("mul", w, seen, name="mixed")
    g.output(own, ones, mixed)
    assert of_weights(Same(g.graph())) == {"p.w", "own", "twice"}


# What is computed again ----------------------------------------------------------------------------------------------


def written_out() -> Graph:
    """Attention of two products and a softmax, between a norm written out and one of heads."""
    g = Builder()
    x = g.input((2, 8, 16), labels=("b", "s", "hidden"), requires_grad=True)
    square = g.op("pow", x, scalar=2, module="m.PreNorm", name="square")
    mean = g.op("mean", square, dim=-1, keepdim=True, module="m.PreNorm", name="mean")
    root = g.op("rsqrt", mean, module="m.PreNorm", name="root")
    normed = g.op("mul", x, root, module="m.PreNorm", name="normed")
    made = g.op("linear", normed, g.param("w", (32, 16)), module="normal.proj", name="made")
    heads = g.op("permute", g.op("view", made, shape=(2, 8, 4, 8), name="cut"), perm=(0, 2, 1, 3), name="heads")
    own = g.op("neg", heads, module="m.q_norm", name="own")
    turned = g.op("permute", own, perm=(0, 1, 3, 2), name="turned")
    scores = g.op("matmul", own, turned, name="scores")
    seen = g.op("softmax", scores, dim=-1, name="seen")
    mixed = g.op("matmul", seen, heads, name="mixed")
    last = g.op("layer_norm", g.op("relu", x, module="normal.act", name="other"), g.param("l", (16,)), name="last")
    g.output(g.op("view", g.op("permute", mixed, perm=(0, 2, 1, 3)), shape=(2, 8, 32)), last)
    return g.graph()


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("selective", ("scores", "seen", "mixed")),
        ("selective:core_attn", ("scores", "seen", "mixed")),
        ("selective:layernorm", ("square", "mean", "root", "normed", "last")),
        ("selective:moe_act", ()),
        ("none", ()),
    ],
)
def test_parts_of_a_block_are_found_where_they_are_written_out(kind: str, again: tuple[str, ...]) -> None:
    graph = written_out()
    assert recomputed(graph, loops(graph), kind) == again


def test_activations_of_experts_lie_between_their_products() -> None:
    graph = experts()
    assert recomputed(graph, loops(graph), "selective:moe_act") == ("act",)


def test_every_other_product_without_a_bias_is_kept() -> None:
    g = Builder()
    x = g.input((2, 8), labels=("b", ""), requires_grad=True)
    for name in ("one", "two", "three", "four"):
        x = g.op("linear", x, g.param(name, (8, 8)), name=name)
    x = g.op("linear", x, g.param("w", (8, 8)), g.param("b", (8,)), name="biased")
    x = g.op("relu", g.op("linear", x, g.param("five", (8, 8)), name="five"), name="act")
    g.loss(g.op("mean", x, name="loss"))
    graph = g.graph()
    found = loops(graph)
    assert recomputed(graph, found, "selective_op") == ("x", "two", "four", "biased", "act")
    assert recomputed(graph, found, "full") == ("x", "one", "two", "three", "four", "biased", "five", "act")


def test_a_loss_is_a_number_that_an_operator_makes_and_a_body_gives_alone() -> None:
    """A sum that blocks hand on beside their hidden states is none."""
    g = Builder()
    given, count = g.input((), name="given"), g.input((), name="count", dtype="i64")
    x = g.input((4,), requires_grad=True)
    loss, row = g.op("mean", x, name="loss"), g.op("relu", x, name="row")
    where = g.op("argmax", x, name="where")
    g.output(given, count, loss, row, where)
    graph = g.graph()
    for value in graph.outputs:
        assert is_loss(replace(graph, outputs=(value,)), value) == (value == loss)
        assert not is_loss(graph, value)


def test_glue_is_not_computed_again_beside_blocks() -> None:
    assert [kind_of(FOLD, body, "full") for body in ("embed", "block", "head")] == ["none", "full", "none"]


# Gradients that stay sums --------------------------------------------------------------------------------------------


def strategies(graph: Graph, **given: str) -> dict[str, Strategy]:
    return {op.name: Strategy.parse(given.get(op.name, "")) for op in graph.ops}


def passed(graph: Graph, ends: Mapping[str, str], shared: set[str], **given: str) -> dict[str, str]:
    """What else operators do after gradients of weights were passed through."""
    chosen = strategies(graph, **given)
    before = dict(chosen)
    rules = {op.name: rule_of(op, graph.types) for op in graph.ops}
    states = {value: State.replicated(len(graph.types[value].shape)) for value in graph.types}
    states |= {value: State.parse(text) for value, text in ends.items()}
    pass_weight_gradients(graph, rules, shared.__contains__, chosen, states, MESH)
    return {name: str(made) for name, made in chosen.items() if made != before[name]}


def scaled(*, twice: bool = False, out: bool = False) -> Graph:
    """(1 + w) · x, and perhaps once more."""
    g = Builder()
    x = g.input((8, 16), labels=("b", ""), requires_grad=True)
    scale = g.op("add", g.op("exp", g.param("w", (16,)), name="grown"), scalar=1.0, name="scale")
    y = g.op("mul", x, scale, name="y")
    g.output(g.op("mul", y, scale, name="z") if twice else y)
    if out:
        g.output(scale)
    return g.graph()


@pytest.mark.parametrize(
    ("graph", "ends", "given", "found"),
    [
        (scaled(), {}, {"y": "a=d0"}, {"scale": "a=-|P", "grown": "a=-|P"}),
        (scaled(), {}, {"y": "a=d0 c=d0"}, {"scale": "a=-|P c=-|P", "grown": "a=-|P c=-|P"}),
        (scaled(), {}, {"y": "a=d1"}, {}),
        (scaled(), {}, {"y": "a=d0", "scale": "a=d0"}, {}),
        (scaled(), {}, {"y": "a=d0", "grown": "a=d0"}, {"scale": "a=-|P"}),
        (scaled(twice=True), {}, {"y": "a=d0", "z": "a=d0"}, {"scale": "a=-|P", "grown": "a=-|P"}),
        (scaled(twice=True), {}, {"y": "a=d0"}, {}),
        (scaled(out=True), {}, {"y": "a=d0"}, {}),
        (scaled(out=True), {"scale": "[-]|sum(a)"}, {"y": "a=d0"}, {"scale": "a=-|P", "grown": "a=-|P"}),
    ],
)
def test_what_is_made_of_weights_passes_on_the_sums_that_all_readers_leave(
    graph: Graph, ends: dict[str, str], given: dict[str, str], found: dict[str, str]
) -> None:
    assert passed(graph, ends, set(), **given) == found


def test_places_that_no_batch_says_leave_rows_of_a_table_weights() -> None:
    g = Builder()
    x, at = g.input((8, 4, 16), labels=("b", "s", ""), requires_grad=True), g.input((4,), name="at", dtype="i64")
    rows = g.op("embedding", g.param("table", (32, 16)), at, name="rows")
    g.output(g.op("add", x, rows, name="y"))
    graph = g.graph()
    assert passed(graph, {}, {"at"}, y="a=d0") == {"rows": "a=-|P"}
    assert passed(graph, {}, set(), y="a=d0") == {}
    assert [op.name for op in from_weights(graph, {"at"}.__contains__)] == ["rows"]
    assert [op.name for op in from_weights(graph, {"at"}.__contains__, ["x"])] == ["rows", "y"]


def adapter(*, beside: bool = True) -> Graph:
    """A product beside one of low rank; what both read is cut further on."""
    g = Builder()
    x = g.input((8, 16), labels=("b", ""), requires_grad=True)
    low = g.op("linear", x, g.param("A", (4, 16)), name="low")
    high = g.op("linear", low, g.param("B", (32, 4)), name="high")
    g.output(g.op("add", g.op("linear", x, g.param("W", (32, 16)), name="wide"), high, name="y") if beside else high)
    return g.graph()


def left(graph: Graph, **given: str) -> dict[str, str]:
    rules = {op.name: rule_of(op, graph.types) for op in graph.ops}
    return {name: str(made) for name, made in leave_sums(graph, rules, strategies(graph, **given), MESH, "a").items()}


@pytest.mark.parametrize(
    ("graph", "given", "found"),
    [
        (adapter(), {"wide": "a=n", "high": "a=n", "y": "a=d1"}, {"low": "a=-|P"}),
        (adapter(), {"wide": "c=d0 a=n", "high": "c=d0 a=n", "y": "c=d0 a=d1", "low": "c=d0"}, {"low": "c=d0 a=-|P"}),
        (adapter(), {"wide": "a=k", "high": "a=n"}, {}),  # nothing else that x is read by leaves a sum
        (adapter(), {"wide": "a=n", "high": "a=k"}, {}),
        (adapter(), {"wide": "a=n", "high": "a=n", "low": "a=n"}, {}),  # the weight is cut
        (adapter(beside=False), {"high": "a=n"}, {}),
    ],
)
def test_adapters_of_low_rank_pass_on_the_sums_of_products_that_are_cut(
    graph: Graph, given: dict[str, str], found: dict[str, str]
) -> None:
    assert left(graph, **given) == found


def copied(*, reader: bool = False, reduce: bool = False) -> Graph:
    """One head of keys, turned and then copied for four."""
    g = Builder()
    k = g.input((2, 1, 8, 4), labels=("b", "", "s", ""), requires_grad=True)
    turn = g.op("mul", k, g.input((8, 4), name="cos"), name="turn")
    turn = g.op("softmax", turn, dim=-1, name="soft") if reduce else turn
    neg = g.op("neg", turn, name="neg")
    g.output(g.op("expand", neg, shape=(2, 4, 8, 4), name="many"))
    if reader:
        g.output(g.op("exp", neg, name="other"))
    return g.graph()


@pytest.mark.parametrize(
    ("graph", "given", "found"),
    [
        (copied(), {"many": "a=d1"}, {"neg": "a=-|P", "turn": "a=-|P"}),
        (copied(), {"many": "a=d0"}, {}),
        (copied(), {"many": "a=d1", "neg": "c=d2"}, {"neg": "c=d2 a=-|P", "turn": "a=-|P"}),
        (copied(reader=True), {"many": "a=d1"}, {}),
        (copied(reduce=True), {"many": "a=d1"}, {"neg": "a=-|P", "soft": "a=-|P", "turn": "a=-|P"}),
        (copied(), {}, {}),
    ],
)
def test_what_is_copied_for_all_heads_leaves_sums_before_it_is_copied(
    graph: Graph, given: dict[str, str], found: dict[str, str]
) -> None:
    assert left(graph, **given) == found
