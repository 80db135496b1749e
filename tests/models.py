"""Small models for tests, written with the builder: parts that add themselves to one, whole graphs, and folds."""

from __future__ import annotations

from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment
from meshwright.ir.graph.graph import Graph, Input, Type
from tests.build import Builder

B, S, H, HEADS, KV, D, F, V = 2, 8, 16, 4, 2, 4, 24, 32


def projected(g: Builder, x: str, prefix: str, name: str, heads: int) -> str:
    """[b, s, h] -> [b, heads, s, d]."""
    b, s, _ = g.types[x].shape
    y = g.op("linear", x, g.param(f"{prefix}{name}.weight", (heads * D, H)), module=f"{prefix}{name}")
    return g.op("permute", g.op("view", y, shape=(b, s, heads, D)), perm=(0, 2, 1, 3))


def attention(g: Builder, x: str, prefix: str, memory: str | None = None, mask: str = "causal") -> str:
    """Grouped attention over x, or from x over the memory."""
    b, s, _ = g.types[x].shape
    q = projected(g, x, prefix, "q", HEADS)
    k, v = (projected(g, memory or x, prefix, name, KV) for name in ("k", "v"))
    o = g.op("attention", q, k, v, mask=mask, width=0, scale=0.5, dropout=0.0, module=f"{prefix}attn")
    o = g.op("view", g.op("permute", o, perm=(0, 2, 1, 3)), shape=(b, s, HEADS * D), copy=True)
    return g.op("linear", o, g.param(f"{prefix}o.weight", (H, HEADS * D)), module=f"{prefix}o")


def feed_forward(g: Builder, x: str, prefix: str) -> str:
    gate = g.op("silu", g.op("linear", x, g.param(f"{prefix}gate.weight", (F, H)), module=f"{prefix}gate"))
    up = g.op("linear", x, g.param(f"{prefix}up.weight", (F, H)), module=f"{prefix}up")
    return g.op("linear", g.op("mul", gate, up), g.param(f"{prefix}down.weight", (H, F)), module=f"{prefix}down")


def norm(g: Builder, x: str, path: str) -> str:
    return g.op("rms_norm", x, g.param(f"{path}.weight", (H,)), eps=1e-5, module=path)


def layer(g: Builder, x: str, prefix: str = "", memory: str | None = None) -> str:
    x = g.op("add", x, attention(g, norm(g, x, f"{prefix}norm1"), prefix))
    if memory:
        x = g.op("add", x, attention(g, norm(g, x, f"{prefix}norm3"), f"{prefix}cross.", memory, mask="full"))
    return g.op("add", x, feed_forward(g, norm(g, x, f"{prefix}norm2"), prefix))


def embed(g: Builder, name: str = "tokens", path: str = "embed.weight") -> str:
    tokens = g.input((B, S), name=name, labels=("b", "s"), dtype="i64")
    return g.op("embedding", g.param(path, (V, H)), tokens, module="embed")


def loss(g: Builder, x: str, labels: str, path: str = "head.weight") -> str:
    """The loss of next tokens, over [b·s, v]."""
    logits = g.op("linear", x, g.param(path, (V, H)), module="head")
    rows = g.op("view", logits, shape=(B * S, V))
    return g.op("cross_entropy", rows, g.op("view", labels, shape=(B * S,)), source="model.py:9")


def llama(layers: int = 2) -> Graph:
    g = Builder()
    x = embed(g)
    labels = g.input((B, S), name="labels", labels=("b", "s"), dtype="i64")
    for index in range(layers):
        x = layer(g, x, f"layers.{index}.")
    g.loss(loss(g, norm(g, x, "norm"), labels))
    return g.graph()


# Folds ----------------------------------------------------------------------------------------------------------------

TOKENS = (Input("tokens", ("b", "s")), Type((B, S), "i64"))
LABELS = (Input("labels", ("b", "s")), Type((B, S), "i64"))


def hidden(g: Builder, name: str = "x") -> str:
    return g.input((B, S, H), name=name, labels=("b", "s", ""), requires_grad=True)


def embed_body(name: str = "embed", path: str = "embed.weight") -> Body:
    g = Builder()
    g.output(embed(g, path=path))
    return Body(name, g.graph())


def layer_body(name: str = "layer", *, memory: bool = False) -> Body:
    g = Builder()
    x = hidden(g)
    g.output(layer(g, x, memory=hidden(g, "memory") if memory else None))
    return Body(name, g.graph(), "DecoderLayer")


def head_body(path: str = "head.weight") -> Body:
    g = Builder()
    x = hidden(g)
    labels = g.input((B, S), name="labels", labels=("b", "s"), dtype="i64")
    g.output(loss(g, norm(g, x, "norm"), labels, path))
    return Body("head", g.graph())


def glue(body: str, *sources: FromInput | FromPrevious | FromSegment) -> Segment:
    return Segment((body,), ("",), sources, (sources,), glue=True)


def stack(
    body: str, path: str, repeats: int, *sources: FromPrevious | FromSegment, entry: tuple[FromSegment, ...] = ()
) -> Segment:
    return Segment((body,), tuple(f"{path}.{index}" for index in range(repeats)), entry or sources, (sources,))


def llama_fold(layers: int = 5) -> Fold:
    return Fold(
        (embed_body(), layer_body(), head_body()),
        (
            glue("embed", FromInput("tokens")),
            stack("layer", "layers", layers, FromPrevious(0)),
            glue("head", FromPrevious(0), FromInput("labels")),
        ),
        (TOKENS, LABELS),
        (FromPrevious(0),),
        loss=0,
    )


def perceptron_fold(layers: int = 3) -> Fold:
    """Layers of which the first is given what a product makes, and the others what a norm does. As in traces of models
    that embed nothing, the first body has no operators."""
    features = (Input("features", ("b", "")), Type((B, F), "f32"))
    wanted = (Input("wanted", ("b", "")), Type((B, H), "f32"))
    first, up, block, head = Builder(), Builder(), Builder(), Builder()
    up.output(up.op("linear", up.input((B, F), labels=("b", "")), up.param("weight", (H, F))))
    x = block.input((B, H), requires_grad=True)
    x = block.op("linear", x, block.param("weight", (H, H)))
    block.output(block.op("layer_norm", x, block.param("norm.weight", (H,)), eps=1e-5))
    x, y = head.input((B, H), requires_grad=True), head.input((B, H), name="y", labels=("b", ""))
    head.loss(head.op("mse_loss", x, y))
    return Fold(
        tuple(Body(n, g.graph()) for n, g in (("embed", first), ("up", up), ("block", block), ("head", head))),
        (
            glue("embed"),
            Segment(("up",), ("up",), (FromInput("features"),), ((FromInput("features"),),)),
            stack("block", "blocks", layers, FromPrevious(0)),
            glue("head", FromPrevious(0), FromInput("wanted")),
        ),
        (features, wanted),
        (FromPrevious(0),),
        loss=0,
    )
