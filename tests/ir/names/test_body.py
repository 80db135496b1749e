"""Plans of a decoder block by the table of names, operator by operator: which loop each axis splits there."""

from __future__ import annotations

from meshwright.ir.analysis.loops import loops
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names import Degrees, template
from meshwright.ir.names.body import computed
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.sharding.adjoint import IDLE, Strategy, apply
from tests.build import Builder
from tests.llama_block import Sizes, model

FOLD = model()

LOOPS: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(("norm1", "norm2", "res1", "res2"), ("d0", "d1", "")),
    **dict.fromkeys(("q", "k", "v", "gate", "up"), ("d0", "d1", "n")),
    **dict.fromkeys(("q_heads", "k_heads", "v_heads", "attn_flat"), ("f0", "f1", "f2")),
    **dict.fromkeys(("q_t", "k_t", "v_t", "act", "prod"), ("d0", "d1", "d2")),
    **dict.fromkeys(("o", "down"), ("d0", "d1", "k")),
    "attn": ("b", "sq", "hk"),
    "attn_t": ("d0", "d2", "d1"),
}
"""For every operator the factors that run over samples, the sequence, and heads or the width of the MLP."""


def strategies(degrees: Degrees, body: str = "block") -> dict[str, str]:
    return {op: str(strategy) for op, strategy in template(FOLD, degrees).plan[body].strategies}


TEMPLATES: list[tuple[Degrees, tuple[str, ...], str]] = [
    (Degrees(dp=2), ("dp",), "dp=b"),
    (Degrees(tp=2), ("tp",), "tp=hk"),
    (Degrees(tp=2, sequence_parallel=True), ("tp+sp",), "tp=hk"),
    (Degrees(cp=2), ("cp",), "cp=sq"),
    (Degrees(cp=2, zigzag=True), ("cp:zigzag",), "cp=sq:zigzag"),
    (Degrees(cp=2, context="ring"), ("cp",), "cp=sq+sk"),
    (Degrees(cp=2, context="ring", zigzag=True), ("cp:zigzag",), "cp=sq+sk:zigzag"),
    (Degrees(cp=2, context="ulysses"), ("cp",), "cp=hk"),
    (Degrees(dp=2, cp=2, tp=2, context="ulysses"), ("dp", "cp", "tp"), "dp=b tp=hk cp=hk"),
    (Degrees(dp=2, cp=2, tp=2, context="ring"), ("dp", "cp", "tp"), "dp=b cp=sq+sk tp=hk"),
    (Degrees(dp=4, zero=3, shard=2), ("dp", "dp_shard"), "dp=b dp_shard=b"),
    (Degrees(dp=2, tp=2, sequence_parallel=True), ("dp", "tp+sp"), "dp=b tp=hk"),
    (Degrees(dp=8), (), ""),  # eight do not divide four samples
    (Degrees(tp=8), ("mlp",), ""),  # nor four key-value heads: of the block the MLP alone is cut
]


def test_every_axis_splits_its_loop_wherever_there_is_one() -> None:
    for degrees, axes, attention in TEMPLATES:
        expected = {}
        for op, (samples, tokens, width) in LOOPS.items():
            words = []
            for axis in axes:
                name, _, layout = axis.partition(":")
                if name.startswith("dp"):
                    words.append(f"{name}={samples}")
                elif name == "cp":
                    words.append(f"cp={tokens}" + (f":{layout}" if layout else ""))
                elif name == "mlp":
                    words += ["tp=" + width] * (op in ("gate", "up", "act", "prod", "down"))
                elif width:
                    words.append(f"tp={width}")
                elif name == "tp+sp":
                    words.append(f"tp={tokens}")
            expected[op] = " ".join(words)
        expected["attn"] = attention
        found = strategies(degrees)
        if axes == ("mlp",):
            # What the products around attention do is not asked.
            found = {op: text for op, text in found.items() if op in ("gate", "up", "act", "prod", "down", "attn")}
        assert found == {op: text for op, text in expected.items() if text}


def test_tokens_are_cut_by_vocabulary_at_both_ends() -> None:
    degrees = Degrees(dp=2, cp=2, tp=2)
    assert strategies(degrees, "embed") == {"embedding": "dp=d0 cp=d1 tp=v"}
    assert strategies(degrees, "head") == {
        "rms_norm": "dp=d0 cp=d1",
        "linear": "dp=d0 cp=d1 tp=n",
        "cross_entropy": "dp=d0 cp=d1 tp=v",
    }
    states = {name: str(state) for name, state in template(FOLD, degrees).plan["head"].states}
    assert states == {"x": "[dp, cp, -]", "labels": "[dp, cp]", "cross_entropy": "[]"}
    inside = template(FOLD, Degrees(tp=2, sequence_parallel=True)).plan["block"]
    assert {name: str(state) for name, state in inside.states} == {"x": "[-, tp, -]", "res2": "[-, tp, -]"}


ZIGZAGS: list[tuple[int, str]] = [(8, "d1:zigzag"), (6, "-"), (2, "-"), (4, "d1:zigzag")]


def test_a_zigzag_wants_two_runs_for_each_rank() -> None:
    for seq, cut in ZIGZAGS:
        plan = template(model(Sizes(seq=seq)), Degrees(cp=2, zigzag=True)).plan["block"]
        assert str(plan.strategy("norm1").of("cp")) == cut
        assert (plan.strategy("norm1") == Strategy()) == (cut == str(IDLE))
        assert [str(state) for _, state in plan.states] == ["[-, cp:zigzag, -]" if cut != "-" else "[-, -, -]"] * 2


def flattened() -> Graph:
    """Four samples of eight tokens as 32 rows."""
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    g.output(g.op("linear", g.op("view", x, shape=(32, 16), name="rows"), g.param("w", (16, 16)), name="y"))
    return g.graph()


def sectioned(gate: int, up: int) -> Graph:
    """A product that is cut in two, each part with its own way back."""
    g = Builder()
    x = g.input((2, 4, 8), labels=("b", "s", ""), requires_grad=True)
    norm = g.op("rms_norm", x, g.param("n", (8,)), eps=1e-6, normalized_shape=(8,), name="norm")
    one, other = g.many(
        "split", g.op("linear", norm, g.param("w", (gate + up, 8)), name="both"), dim=-1, sizes=(gate, up)
    )
    left = g.op("linear", one, g.param("d", (8, gate)), name="left")
    right = g.op("linear", other, g.param("e", (8, up)), name="right")
    g.output(g.op("add", x, g.op("add", left, right, name="sum"), name="res"))
    return g.graph()


def of_three() -> Graph:
    """Queries, keys and values out of one product, which are told apart by a dimension before the heads."""
    g = Builder()
    x = g.input((2, 4, 8), labels=("b", "s", ""), requires_grad=True)
    made = g.op("view", g.op("linear", x, g.param("w", (24, 8)), name="made"), shape=(2, 4, 3, 4, 2), name="apart")
    parts = [g.op("permute", g.op("select", made, dim=2, index=n, name="one"), perm=(0, 2, 1, 3)) for n in range(3)]
    g.output(g.op("attention", *parts, mask="full", width=0, scale=0.5, dropout=0.0, name="attn"))
    return g.graph()


def sequences() -> Graph:
    """Sequences that are cut in halves, each as long as a mask that says so; and a weight over all tokens."""
    g = Builder()
    x = g.input((2, 8, 6), labels=("b", "s", ""), requires_grad=True)
    y = g.input((2, 4, 6), name="y", labels=("b", "s", ""))
    early, late = g.many("split", g.op("neg", x, name="neg"), dim=1, sizes=(4, 4))
    g.output(g.op("add", early, y, name="add"), late, g.op("softmax", x, dim=1, name="over"))
    return g.graph()


def routed(groups: int) -> Graph:
    """One sample of eight tokens to experts and back, in groups with slots of their own."""
    g = Builder()
    x = g.input((8, 16), labels=("s", ""), requires_grad=True)
    idx = g.input((8, 2), name="idx", labels=("s", ""), dtype="i64")
    by = g.input((8, 2), name="by", labels=("s", ""))
    how = {"num_experts": 4, "capacity": 4, "groups": groups}
    rows = g.op("dispatch", x, idx, **how, name="rows")
    g.output(
        g.op("combine", g.op("grouped_linear", rows, g.param("up", (4, 16, 16)), name="up"), idx, by, **how, name="y")
    )
    return g.graph()


SMALL: dict[str, tuple[Graph, Degrees, dict[str, str]]] = {
    # A token's rows are eight apart: one run for each sample that earlier axes left.
    "rows by tokens": (flattened(), Degrees(cp=8), {"rows": "cp=f1", "y": "cp=d0:nested(4)"}),
    "rows by zigzag": (
        flattened(), Degrees(cp=4, zigzag=True), {"rows": "cp=f1:zigzag", "y": "cp=d0:nested(4,zigzag)"},
    ),
    "tokens too few for a zigzag": (flattened(), Degrees(cp=8, zigzag=True), {"rows": "", "y": ""}),
    "rows of half the samples": (
        flattened(), Degrees(dp=2, cp=2, zigzag=True),
        {"rows": "dp=f0 cp=f1:zigzag", "y": "dp=d0 cp=d0:nested(2,zigzag)"},
    ),
    "rows of one sample": (
        flattened(), Degrees(dp=4, cp=4, zigzag=True), {"rows": "dp=f0 cp=f1:zigzag", "y": "dp=d0 cp=d0:zigzag"},
    ),
    "samples too few, rows enough": (flattened(), Degrees(dp=8), {"rows": "", "y": "dp=d0"}),
    # Four ranks divide sections of eight and four, not of six; two of both.
    "sections of two sizes": (
        sectioned(8, 4), Degrees(tp=4),
        {"both": "tp=n:sections(8,4)", "split": "tp=p", "left": "tp=k", "right": "tp=k"},
    ),
    "sections alike": (
        sectioned(6, 6), Degrees(tp=2),
        {"both": "tp=n:sections(6,6)", "split": "tp=p", "left": "tp=k", "right": "tp=k"},
    ),
    "sections that four do not divide": (sectioned(6, 6), Degrees(tp=4), {}),
    "heads of three in one": (
        of_three(), Degrees(tp=2),
        {"made": "tp=n:nested(3)", "apart": "tp=f3", "one": "tp=d3", "one_1": "tp=d3", "one_2": "tp=d3"}
        | {"permute": "tp=d2", "permute_1": "tp=d2", "permute_2": "tp=d2", "attn": "tp=hk"},
    ),
    # Of two samples the second axis has nothing left.
    "samples for one axis": (
        sectioned(6, 6), Degrees(dp=4, zero=1, shard=2),
        dict.fromkeys(("norm", "both", "split", "left", "right", "sum", "res"), "dp=d0"),
    ),
    # Sections are runs: no zigzag cuts each. Nor is a loop cut that must be whole.
    "halves of a sequence": (
        sequences(), Degrees(cp=2), {"neg": "cp=d1", "split": "cp=p", "add": "cp=d1", "over": ""},
    ),
    "halves of a sequence and a zigzag": (
        sequences(), Degrees(cp=2, zigzag=True), {"neg": "cp=d1:zigzag", "add": "cp=d1:zigzag"},
    ),
    # Ranks have whole groups, and of a zigzag two runs of them; what fills slots is laid out as tokens are.
    "groups for two": (routed(2), Degrees(cp=2), {"rows": "cp=t", "up": "cp=c", "y": "cp=t"}),
    "groups too few": (routed(2), Degrees(cp=4), {"up": "cp=c"}),
    "groups too few for a zigzag": (routed(2), Degrees(cp=2, zigzag=True), {"up": "cp=c"}),
    "groups for a zigzag": (
        routed(4), Degrees(cp=2, zigzag=True), {"rows": "cp=t:zigzag", "up": "cp=c:zigzag", "y": "cp=t:zigzag"},
    ),
}  # fmt: skip


def test_small_graphs_by_hand() -> None:
    """And whatever is chosen is legal when it is applied."""
    for name, (graph, degrees, expected) in SMALL.items():
        found, mesh = loops(graph), degrees.mesh()
        chosen, _ = computed(graph, found, mesh, degrees)
        said = {op: str(strategy) for op, strategy in chosen.items() if strategy.choices}
        assert said == {op: text for op, text in expected.items() if text}, name
        for op in graph.ops:
            apply(rule_of(op, graph.types), graph.operand_types(op), chosen[op.name], mesh)
