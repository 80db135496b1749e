"""What graphs keep for the backward pass: eager against autograd's hooks, fused and compiled by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, EAGER
from meshwright.ir.analysis.saved import STYLES, SavedTensor, Step, made_again, reads, saved, saved_bytes
from meshwright.ir.errors import UnknownStyle
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.program import Kernels
from meshwright.ir.rules.base import Signature
from meshwright.ir.rules.registry import infer, rule_of, signature_of
from tests import llama_block
from tests.build import Builder
from tests.samples import sample


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


# What derivatives read -----------------------------------------------------------------------------------------------

HEADS = "bf16[2, 4, 8, 4] bf16[2, 2, 8, 4] bf16[2, 2, 8, 4]"
PLAIN, FUSED, COMPILED = (Kernels(style, "cpu") for style in ("eager", "fused", "compiled"))
MATH = Kernels("eager", "cpu", "math")
PROBABILITIES, MASK = "[b hk·g sq sk]bf16", "[b hk·g sq sk]bool"


def read_text(signature: Signature, wanted: tuple[int, ...], kernels: Kernels) -> str:
    """operand 1, result 0, or [dims]dtype."""
    return " ".join(
        f"[{' '.join('·'.join(dim) for dim in save.dims)}]{save.dtype}"
        if save.what == "extra"
        else f"{save.what[0]}{save.index}"
        for save in reads(infer(signature), signature, wanted, kernels)
    )


READ: list[tuple[Signature, tuple[int, ...], Kernels, str]] = [
    (sample("attention", HEADS), (0, 1, 2), MATH, f"o0 o1 o2 {PROBABILITIES}"),
    (sample("attention", HEADS), (0,), MATH, f"o1 o2 {PROBABILITIES}"),
    (sample("attention", HEADS), (1,), MATH, f"o0 o2 {PROBABILITIES}"),
    (sample("attention", HEADS), (2,), MATH, PROBABILITIES),
    (sample("attention", HEADS, dropout=0.1), (0,), MATH, f"o1 o2 {PROBABILITIES} {MASK}"),
    (sample("attention", HEADS, dropout=0.1), (2,), MATH, f"{MASK} {PROBABILITIES}"),
    (
        sample("attention", HEADS, dropout=0.1),
        (0, 1, 2),
        MATH,
        f"o0 o1 o2 {PROBABILITIES} {MASK} {PROBABILITIES}",
    ),
    (sample("attention", f"{HEADS} bf16[1, 4, 8, 8]"), (3,), MATH, f"o2 {PROBABILITIES}"),
    # Fused kernels keep what CUDA's do, on any device.
    (sample("dropout", "f32[4, 8]", p=0.5), (0,), PLAIN, "[d0 d1]f32"),
    (sample("dropout", "f32[4, 8]", p=0.5), (0,), FUSED, "[d0 d1]bool"),
    (sample("dropout", "f32[4, 8]", p=0.5), (0,), COMPILED, ""),
    (sample("cross_entropy", "f32[4, 8] i64[4]"), (0,), PLAIN, "[d0 v]f32 o1"),
    (sample("cross_entropy", "f32[4, 8] i64[4]"), (0,), FUSED, "[d0 v]f32 o1"),
    (sample("cross_entropy", "f32[4, 8] i64[4]"), (0,), Kernels("fused", fused_loss=True), "o0 o1"),
    (sample("cross_entropy", "f32[4, 8] i64[4]"), (0,), COMPILED, "o0 o1"),
    (sample("cross_entropy", "f32[4, 8] i64[4]"), (0,), Kernels("eager", fused_loss=True), "[d0 v]f32 o1"),
    # Who is linear in the only number that has a gradient reads where it is, and not what it is.
    (sample("gather", "f32[4, 8] i64[4, 2]", dim=1), (0,), PLAIN, "o0 o1"),
    (sample("gather", "f32[4, 8] i64[4, 2]", dim=1), (0,), FUSED, "o1"),
    (sample("gather", "f32[4, 8] i64[4, 2]", dim=1), (0,), COMPILED, "o1"),
    (sample("linear", "f32[4, 8] f32[2, 8]"), (0, 1), COMPILED, "o0 o1"),
    (sample("relu", "f32[4]"), (0,), COMPILED, "r0"),
    (sample("layer_norm", "bf16[4, 8]"), (0,), COMPILED, "o0 [d0]f32 [d0]f32"),
    (sample("layer_norm", "bf16[4, 8]"), (0,), PLAIN, "o0 [d0]bf16 [d0]bf16"),
]


def test_kernels_decide_what_derivatives_read() -> None:
    for signature, wanted, kernels, found in READ:
        assert read_text(signature, wanted, kernels) == found


def chain(*, into: str = "linear") -> Graph:
    """exp, a view, cast to f32; then a product, a mean or nothing."""
    g = Builder()
    x = g.input((4, 8), dtype="bf16", requires_grad=True)
    y = g.op("view", g.op("exp", x, name="grown"), shape=(32,), name="flat")
    y = g.op("cast", y, dtype="f32", name="wide")
    y = g.op("mul", y, y, name="square")
    if into == "mean":
        y = g.op("mean", y, name="mean")
    elif into == "softmax":
        y = g.op("softmax", y, dim=0, name="seen")
    g.output(y)
    return g.graph()


CHAINS: list[tuple[Graph, Kernels, str]] = [
    (chain(), Kernels("eager"), ""),
    (chain(), Kernels("compiled"), "grown flat wide square"),
    (chain(), Kernels("xla"), "grown flat wide square"),
    (chain(), Kernels("fused"), "grown flat wide"),  # the last one leaves
    (chain(into="softmax"), Kernels("fused"), "grown flat wide"),
    (chain(into="softmax"), Kernels("fused", fused_loss=True), "grown flat wide"),
    (chain(into="mean"), Kernels("fused"), "grown flat wide"),
    (chain(into="mean"), Kernels("fused", fused_loss=True), "grown flat wide square"),
]


def test_chains_are_made_again_as_far_as_kernels_take_them_in() -> None:
    for graph, kernels, again in CHAINS:
        steps = [
            Step.of(rule_of(op, graph.types), signature_of(op, graph.types), op.operands, op.results)
            for op in graph.ops
        ]
        assert made_again(steps, graph.outputs, kernels) == set(again.split())


def test_what_is_kept_is_told_with_its_storage_and_its_operator() -> None:
    graph = chain()
    assert saved(graph, "eager") == (
        SavedTensor("grown", "grown", 64, "grown"),
        SavedTensor("wide", "wide", 128, "square"),
    )
    assert saved(graph, "fused") == (SavedTensor("x", "x", 64, "grown"),)
    assert saved(graph, "compiled") == (SavedTensor("grown", "grown", 64, "grown"),)  # as small as x, and nearer
    assert saved_bytes(graph, "eager") == 192


def test_equal_constants_are_kept_once() -> None:
    g = Builder()
    x = g.input((4, 8), requires_grad=True)
    for name, law in (("one", "cos"), ("two", "cos"), ("three", "sin")):
        x = g.op("mul", x, g.op("constant", shape=(4, 8), dtype="f32", law=law, name=name))
    g.output(x)
    assert [(kept.value, kept.owner) for kept in saved(g.graph(), "eager")] == [("one", "one"), ("three", "three")]
