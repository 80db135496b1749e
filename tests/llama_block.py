"""A Llama decoder block and a small whole Llama as hand-written graphs, and tensor parallelism for them as
hand-written plans."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.placement import State
from tests.build import Builder


@dataclass(frozen=True, slots=True)
class Sizes:
    """Every extent divides by 4, so that any two axes of 2 may split it."""

    batch: int = 4
    seq: int = 16
    hidden: int = 32
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 4
    ffn: int = 64
    vocab: int = 64
    layers: int = 4
    dtype: str = "f64"


def block(sizes: Sizes = Sizes()) -> Graph:
    """Pre-norm attention with grouped queries, and a gated MLP; no rotary embedding (it only adds elementwise
    operators)."""
    g, s = Builder(), sizes
    x = g.input((s.batch, s.seq, s.hidden), labels=("b", "s", ""), dtype=s.dtype, requires_grad=True)

    def param(path: str, *shape: int) -> str:
        return g.param(path, shape, dtype=s.dtype)

    def linear(name: str, value: str, features: int, inner: int) -> str:
        return g.op("linear", value, param(f"{name}.weight", features, inner), name=name)

    def heads(name: str, value: str, count: int) -> str:
        split = g.op("view", value, shape=(s.batch, s.seq, count, s.head_dim), name=f"{name}_heads")
        return g.op("permute", split, perm=(0, 2, 1, 3), name=f"{name}_t")

    norm = g.op("rms_norm", x, param("norm1.weight", s.hidden), eps=1e-6, normalized_shape=(s.hidden,), name="norm1")
    q = heads("q", linear("q", norm, s.heads * s.head_dim, s.hidden), s.heads)
    k = heads("k", linear("k", norm, s.kv_heads * s.head_dim, s.hidden), s.kv_heads)
    v = heads("v", linear("v", norm, s.kv_heads * s.head_dim, s.hidden), s.kv_heads)
    attended = g.op("attention", q, k, v, mask="causal", name="attn")
    joined = g.op("permute", attended, perm=(0, 2, 1, 3), name="attn_t")
    flat = g.op("view", joined, shape=(s.batch, s.seq, s.heads * s.head_dim), name="attn_flat")
    x = g.op("add", x, linear("o", flat, s.hidden, s.heads * s.head_dim), name="res1")
    norm = g.op("rms_norm", x, param("norm2.weight", s.hidden), eps=1e-6, normalized_shape=(s.hidden,), name="norm2")
    gate = g.op("silu", linear("gate", norm, s.ffn, s.hidden), name="act")
    product = g.op("mul", gate, linear("up", norm, s.ffn, s.hidden), name="prod")
    g.output(g.op("add", x, linear("down", product, s.hidden, s.ffn), name="res2"))
    return g.graph()


HEADS = {
    **dict.fromkeys(("q", "k", "v", "gate", "up"), "n"),
    **dict.fromkeys(("o", "down"), "k"),
    **dict.fromkeys(("q_heads", "k_heads", "v_heads", "attn_flat"), "f2"),
    **dict.fromkeys(("q_t", "k_t", "v_t"), "d2"),
    "attn": "hk",
    "attn_t": "d1",
    **dict.fromkeys(("act", "prod"), "d2"),
}
"""The factor that heads or ffn go by in every operator between the column-parallel and the row-parallel linears."""


def batch_factor(op: str) -> str:
    return "b" if op == "attn" else ("f0" if op in ("q_heads", "k_heads", "v_heads", "attn_flat") else "d0")


def megatron(axis: str, *, sequence: bool = False, data: str = "", name: str = "block") -> BodyPlan:
    """Column-parallel q, k, v, gate, up; row-parallel o, down; heads and ffn in between; the rest over s if
    `sequence`."""
    rest = "d1" if sequence else "-"

    def strategy(op: str) -> Strategy:
        batch = f"{data}={batch_factor(op)} " if data else ""
        return Strategy.parse(f"{batch}{axis}={HEADS.get(op, rest)}")

    return BodyPlan(
        name=name,
        body="block",
        strategies=tuple((op.name, strategy(op.name)) for op in block().ops),
        states=(("x", residual(axis, data, sequence)), ("res2", residual(axis, data, sequence))),
    )


def residual(axis: str, data: str, sequence: bool) -> State:
    return State.parse(f"[{data or '-'}, {axis if sequence else '-'}, -]")


def model(sizes: Sizes = Sizes(), *, tied: bool = False) -> Fold:
    """Embedding, blocks, final norm, head and loss, as a fold."""
    s = sizes
    embed = Builder()
    tokens = embed.input((s.batch, s.seq), name="tokens", labels=("b", "s"), dtype="i64")
    embed.output(embed.op("embedding", embed.param("embed.weight", (s.vocab, s.hidden), dtype=s.dtype), tokens))
    head = Builder()
    x = head.input((s.batch, s.seq, s.hidden), labels=("b", "s", ""), dtype=s.dtype, requires_grad=True)
    labels = head.input((s.batch, s.seq), name="labels", labels=("b", "s"), dtype="i64")
    norm = head.op("rms_norm", x, head.param("norm.weight", (s.hidden,), dtype=s.dtype), eps=1e-6)
    weight = head.param("embed.weight" if tied else "head.weight", (s.vocab, s.hidden), dtype=s.dtype)
    logits = head.op("linear", norm, weight)
    head.loss(head.op("cross_entropy", logits, labels, ignore_index=-100, reduction="mean"))
    paths = tuple(f"layers.{index}" for index in range(s.layers))
    data = ((embed.inputs[0], embed.types["tokens"]), (head.inputs[1], head.types["labels"]))
    previous = FromPrevious(0)
    return Fold(
        bodies=(Body("embed", embed.graph()), Body("block", block(s)), Body("head", head.graph())),
        segments=(
            Segment(("embed",), ("",), (FromInput("tokens"),), ((FromInput("tokens"),),), glue=True),
            Segment(("block",), paths, (previous,), ((previous,),)),
            Segment(("head",), ("",), (previous, FromInput("labels")), ((previous, FromInput("labels")),), glue=True),
        ),
        inputs=data,
        outputs=(previous,),
        loss=0,
    )
