"""What graphs keep for the backward pass: eager against autograd's hooks, fused and compiled by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.eager import DTYPES, EAGER
from meshwright.ir.errors import UnknownStyle
from meshwright.ir.graph import Graph
from meshwright.ir.saved import STYLES, saved, saved_bytes
from tests import llama_block
from tests.build import Builder


def gpt2_block(batch: int = 2, seq: int = 16, hidden: int = 32, heads: int = 4, dropout: float = 0.1) -> Graph:
    """Fused q|k|v, biases, dropout, GELU written out (a long elementwise chain)."""
    g = Builder()
    x = g.input((batch, seq, hidden), requires_grad=True)
    width = hidden // heads

    def linear(value: str, features: int, inner: int, name: str) -> str:
        return g.op(
            "linear", value, g.param(f"{name}.w", (features, inner)), g.param(f"{name}.b", (features,)), name=name
        )

    def norm(value: str, name: str) -> str:
        return g.op("layer_norm", value, g.param(f"{name}.w", (hidden,)), g.param(f"{name}.b", (hidden,)), name=name)

    fused = linear(norm(x, "n1"), 3 * hidden, hidden, "qkv")
    parts = g.many("split", fused, dim=-1, sizes=(hidden,) * 3)
    q, k, v = (
        g.op("permute", g.op("view", part, shape=(batch, seq, heads, width)), perm=(0, 2, 1, 3)) for part in parts
    )
    attended = g.op("permute", g.op("attention", q, k, v, mask="causal"), perm=(0, 2, 1, 3))
    out = linear(g.op("view", attended, shape=(batch, seq, hidden)), hidden, hidden, "proj")
    x = g.op("add", x, g.op("dropout", out, p=dropout), name="res1")
    h = linear(norm(x, "n2"), 4 * hidden, hidden, "fc")
    inner = g.op("mul", g.op("add", h, g.op("mul", g.op("pow", h, scalar=3.0), scalar=0.044715)), scalar=0.79788456)
    gate = g.op("add", g.op("tanh", inner), scalar=1.0)
    act = g.op("mul", g.op("mul", h, scalar=0.5), gate, name="act")
    g.output(g.op("add", x, g.op("dropout", linear(act, hidden, 4 * hidden, "out"), p=dropout), name="res2"))
    return g.graph()


def rms_chain() -> Graph:
    """HF's RMS norm in bf16, written out with casts, then a linear."""
    g = Builder()
    x = g.input((2, 8, 32), dtype="bf16", requires_grad=True)
    wide = g.op("cast", x, dtype="f32", name="wide")
    mean = g.op("mean", g.op("pow", wide, scalar=2, name="square"), dim=-1, keepdim=True, name="mean")
    root = g.op("rsqrt", g.op("add", mean, scalar=1e-6, name="shifted"), name="root")
    normal = g.op("cast", g.op("mul", wide, root, name="scaled"), dtype="bf16", name="normal")
    out = g.op("mul", g.param("norm", (32,), dtype="bf16"), normal, name="out")
    g.output(g.op("linear", out, g.param("w", (16, 32), dtype="bf16"), name="y"))
    return g.graph()


GRAPHS = {
    "llama": llama_block.block(llama_block.Sizes(dtype="f32")),
    "llama bf16": llama_block.block(llama_block.Sizes(dtype="bf16")),
    "gpt2": gpt2_block(),
    "rms": rms_chain(),
}


def kept_by_hooks(graph: Graph) -> int:
    """Bytes of unique storages that autograd keeps when torch runs the graph, parameters excluded."""
    env: dict[str, Tensor] = {}
    for value, type_ in graph.types.items():
        if value not in graph.producer:
            env[value] = torch.randn(type_.shape).to(DTYPES[type_.dtype]).requires_grad_(value in graph.differentiable)
    ours = {env[value].untyped_storage().data_ptr() for value in graph.param}
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in ours:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        for op in graph.ops:
            results = EAGER[op.kind](tuple(env[value] for value in op.operands), dict(op.attrs))
            env |= zip(op.results, results, strict=True)
    return sum(storages.values())


@pytest.mark.parametrize("name", GRAPHS)
def test_eager_is_what_hooks_see(name: str) -> None:
    graph = GRAPHS[name]
    assert saved_bytes(graph, "eager", "cpu") == pytest.approx(kept_by_hooks(graph), rel=0.01)


@pytest.mark.parametrize("name", GRAPHS)
def test_compilers_keep_less(name: str) -> None:
    eager, fused, compiled = (saved_bytes(GRAPHS[name], style) for style in ("eager", "fused", "compiled"))
    assert 0 < compiled <= fused < eager


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", GRAPHS)
def test_each_storage_once_and_no_parameters(name: str, style: str) -> None:
    kept = saved(GRAPHS[name], style)
    owners = [one.owner for one in kept if not one.extra]
    assert len(set(owners)) == len(owners)
    assert not {graph_value for graph_value in owners if graph_value in GRAPHS[name].param}
    assert saved(GRAPHS[name], style) == kept


def values(graph: Graph, style: str) -> set[str]:
    return {one.value for one in saved(graph, style) if not one.extra}


def gated() -> Graph:
    """act = silu(gate) * up, into a linear."""
    g = Builder()
    gate, up = (g.input((4, 8), name=name, requires_grad=True) for name in ("gate", "up"))
    act = g.op("mul", g.op("silu", gate, name="silu"), up, name="act")
    g.output(g.op("linear", act, g.param("w", (16, 8)), name="y"))
    return g.graph()


def test_a_gated_activation_by_style() -> None:
    """Eager keeps both factors and the product; a fused kernel its inputs and the product; a compiler only inputs."""
    assert values(gated(), "eager") == {"gate", "silu", "up", "act"}
    assert values(gated(), "fused") == {"gate", "up", "act"}
    assert values(gated(), "compiled") == {"gate", "up"}
    assert values(gated(), "xla") == {"gate", "up"}


def test_an_upcast_norm_by_style() -> None:
    """Eager keeps fp32 copies; a fused norm its bf16 input and the statistics."""
    graph = rms_chain()
    assert values(graph, "eager") == {"wide", "root", "normal", "out"}
    assert values(graph, "fused") == {"x", "mean", "out"}
    assert values(graph, "compiled") == {"x", "root"}  # as small as the mean, and nearer to its readers


def test_the_cut_moves_to_the_narrow_side() -> None:
    """Where a chain narrows, keep what comes after; where it widens, what goes in."""
    g = Builder()
    x = g.input((4, 8), dtype="f32", requires_grad=True)
    narrow = g.op("cast", x, dtype="bf16", name="narrow")
    g.output(g.op("linear", narrow, g.param("w", (4, 8), dtype="bf16"), name="y"))
    assert values(g.graph(), "compiled") == {"narrow"}


def test_a_view_keeps_its_whole_storage_in_eager() -> None:
    """Keeping one third of a fused projection keeps all of it, once."""
    g = Builder()
    x = g.input((4, 24), requires_grad=True)
    a, b, _ = g.many("split", x, dim=1, sizes=(8, 8, 8))
    g.output(g.op("mul", a, b, name="y"))
    assert [(one.owner, one.nbytes) for one in saved(g.graph(), "eager")] == [("x", 4 * 24 * 4)]
    assert saved_bytes(g.graph(), "compiled") == 2 * 4 * 8 * 4


def test_nothing_is_kept_where_no_gradient_flows() -> None:
    g = Builder()
    x, frozen = g.input((4, 8), requires_grad=True), g.param("frozen", (8, 8), requires_grad=False)
    table = g.op("exp", g.input((4, 8), name="t"), name="table")
    hidden = g.op("sigmoid", x, no_grad=True, name="hidden")
    g.output(g.op("mul", g.op("linear", x, frozen, name="h"), table, name="y"), hidden)
    assert values(g.graph(), "eager") == {"table"}


def test_masks_of_dropout_are_drawn_again_by_compilers() -> None:
    g = Builder()
    g.output(g.op("dropout", g.input((4, 8), requires_grad=True), p=0.5, name="y"))
    assert [one.nbytes for one in saved(g.graph(), "eager", "cuda")] == [32]
    assert [one.nbytes for one in saved(g.graph(), "eager", "cpu")] == [128]
    assert [one.nbytes for one in saved(g.graph(), "fused")] == [32]
    assert not saved(g.graph(), "compiled")


def test_unknown_style() -> None:
    with pytest.raises(UnknownStyle):
        saved(gated(), "lazy")
