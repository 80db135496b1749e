"""Plans of a decoder block by the table of names, operator by operator: which loop each axis splits there."""

from __future__ import annotations

from meshwright.ir.adjoint import IDLE, Strategy
from meshwright.ir.names import Degrees, template
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
