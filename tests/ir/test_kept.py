"""What a lowered body keeps on one rank: against published formulas, against the graph's own account, and complete.

The formulas are those of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198, for one layer of a GPT at s positions, b sequences, hidden size h, a heads, in 16-bit: their equations 1
(s b h (34 + 5 a s / h) bytes), 2 (tensor parallel over t) and 4 (sequence parallel too), and section 5 (full
recomputation: 2 s b h, the input of the layer). Of the 34, two are masks of dropout, one byte an element each, and of
the 5 a s / h one is a mask and two the probabilities after it: a model without dropout has 32 and 2 a s / h.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from meshwright.ir.analysis.saved import saved_bytes
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import UnknownStyle, WrongKept
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.shape import Shape
from meshwright.ir.frontends.torch_.sources.shape_toml import build
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import ATTENTION, STACKS, STYLES
from meshwright.ir.verify.meaning import verify_body_meaning, verify_meaning
from tests.e2e.spine import BY_NAME
from tests.ir.test_saved import GRAPHS

S, B, H, A, T = 2048, 2, 6144, 64, 8
"""A layer of the 22B model of that paper (table 3), under its tensor parallelism."""

UNIT = S * B * H
TOLERANCE = 0.03


@cache
def gpt() -> Fold:
    shape = Shape(layers=2, hidden=H, ffn_hidden=4 * H, heads=A, vocab=51_200, glu=False)
    return capture(build(shape, "22B"), batch=B, seq=S).fold


def lowered(degrees: Degrees, style: str = "fused", **kernels: Any) -> Program:
    decisions = replace(template(gpt(), degrees), style=style)
    return lower(gpt(), decisions, Lowering(**{"attention": "math"} | kernels))


def layer(program: Program) -> BodyProgram:
    return max(program.bodies, key=lambda body: len(body.forward))


def units(degrees: Degrees, **kernels: Any) -> float:
    """Bytes kept by a layer on one rank, in s b h."""
    return sum(kept.nbytes for kept in layer(lowered(degrees, **kernels)).kept) / UNIT


def test_a_layer_on_one_rank() -> None:
    assert units(Degrees()) == pytest.approx(32 + 2 * A * S / H, rel=TOLERANCE)


def test_a_layer_under_tensor_parallelism() -> None:
    assert units(Degrees(tp=T)) == pytest.approx(8 + (24 + 2 * A * S / H) / T, rel=TOLERANCE)


def test_a_layer_under_sequence_parallelism() -> None:
    """Its two inputs gathered again in the backward pass, as in the paper; or kept gathered."""
    degrees, expected = Degrees(tp=T, sequence_parallel=True), (32 + 2 * A * S / H) / T
    assert units(degrees, regathers=True) == pytest.approx(expected, rel=TOLERANCE)
    assert units(degrees) == pytest.approx(expected + 2 * 2 * (1 - 1 / T), rel=TOLERANCE)


def test_flash_attention_keeps_no_probabilities() -> None:
    assert units(Degrees(), attention="flash2") == pytest.approx(32, rel=TOLERANCE)


@pytest.mark.parametrize(("copied", "each"), [("fp8_tensorwise", 1), ("fp8_blockwise", 33 / 32), ("nvfp4", 9 / 16)])
def test_products_keep_copies_of_their_inputs(copied: str, each: float) -> None:
    """Of the 32: inputs of the layer and of its second norm 4, queries, keys and values 6, what attention made 2, what
    the activation reads 8; beside them copies of four inputs of products, 1 + 1 + 1 + 4 elements."""
    kernels = {"attention": "flash2", "copied": copied}
    assert units(Degrees(), **kernels) == pytest.approx(4 + 6 + 2 + 8 + 7 * each, rel=TOLERANCE)
    degrees = Degrees(tp=T, sequence_parallel=True)
    assert units(degrees, regathers=True, **kernels) == pytest.approx((20 + 7 * each) / T, rel=TOLERANCE)
    assert units(Degrees(recompute="full"), **kernels) == pytest.approx(2, rel=TOLERANCE)


def test_only_products_inside_blocks_keep_copies() -> None:
    plain, low = (lowered(Degrees(), attention="flash2", copied=copied) for copied in ("", "mxfp8"))
    for one, other in zip(plain.bodies, low.bodies, strict=True):
        changed = one.body == layer(plain).body
        assert (one.kept != other.kept) == changed
        assert any(kept.name.endswith("~") for kept in other.kept) == changed


def test_copies_are_verified() -> None:
    fold = gpt()
    program = lowered(Degrees(tp=T, sequence_parallel=True), regathers=True, attention="flash2", copied="mxfp8")
    verify_meaning(program, fold)
    body = layer(program)
    for changed in (
        tuple(kept for kept in body.kept if not kept.name.endswith("~")),
        tuple(replace(kept, nbytes=2 * kept.nbytes) if kept.name.endswith("~") else kept for kept in body.kept),
    ):
        with pytest.raises(WrongKept):
            verify_body_meaning(replace(body, kept=changed), fold.body[body.body].graph)


def test_copies_in_sixteen_bits_are_refused() -> None:
    with pytest.raises(UnknownStyle, match="mxfp8"):
        Lowering(copied="bf16")


def test_full_recomputation_keeps_the_input() -> None:
    """And the rotary tables, which are as large as two heads of one sequence."""
    tables = 2 * 2 * S * (H // A) / UNIT
    assert units(Degrees(recompute="full")) == pytest.approx(2 + tables, rel=TOLERANCE)


def test_with_dropout() -> None:
    """GPT-2 of Hugging Face, its GELU written out, dropout everywhere."""
    hidden, heads, seq = 768, 12, 1024
    fold = capture(load_model(BY_NAME["gpt2"].reference, dtype="bf16"), batch=B, seq=seq).fold
    block = max((body.graph for body in fold.bodies), key=lambda graph: len(graph.ops))
    kept = saved_bytes(block, "fused", attention="math") / (seq * B * hidden)
    assert kept == pytest.approx(34 + 5 * heads * seq / hidden, rel=TOLERANCE)


@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("tp", [1, T])
def test_what_the_loss_keeps(tp: int, fused_loss: bool) -> None:
    """Cut by vocabulary, 4 s b v / t bytes (section 4.3): it is computed in f32. Fused, the bf16 logits as they are."""
    body = next(body for body in lowered(Degrees(tp=tp), fused_loss=fused_loss).bodies if body.body == "head")
    logits = (2 if fused_loss else 4) * S * B * 51_200 // tp
    wide = {name for name, local in body.locals.items() if local.type.shape[-1:] == (51_200,)}
    large = [kept.nbytes for kept in body.kept if kept.name in wide or kept.name.startswith("cross_entropy!")]
    assert sum(large) == pytest.approx(logits, rel=0.01)  # labels are shifted: one position has none


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", GRAPHS)
def test_one_rank_keeps_what_the_graph_keeps(name: str, style: str, attention: str) -> None:
    """Lowered for one rank, a body is its graph."""
    graph: Graph = GRAPHS[name]
    body = lower_body(graph, BodyPlan("p", "b"), Mesh(), Lowering(style=style, attention=attention))
    assert sum(kept.nbytes for kept in body.kept) == saved_bytes(graph, style, attention=attention)


DEGREES = (
    Degrees(tp=4, sequence_parallel=True),
    Degrees(dp=2, tp=2, zero=3),
    Degrees(dp=2, recompute="full"),
    Degrees(cp=2),
)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_all_that_is_kept_is_missed(degrees: Degrees, style: str) -> None:
    """The verifier takes what the lowering keeps under any style, and nothing less."""
    program = lowered(degrees, style, fused_loss=style == "fused")
    verify_meaning(program, gpt())
    for body in program.bodies:
        graph = gpt().body[body.body].graph
        for index, kept in enumerate(body.kept):
            with pytest.raises(WrongKept):
                verify_body_meaning(replace(body, kept=body.kept[:index] + body.kept[index + 1 :]), graph)
            larger = replace(kept, nbytes=kept.nbytes + 1)
            with pytest.raises(WrongKept):
                verify_body_meaning(replace(body, kept=(*body.kept[:index], larger, *body.kept[index + 1 :])), graph)


def test_a_kept_tensor_that_nothing_reads() -> None:
    body = layer(lowered(Degrees()))
    more = replace(body, kept=(*body.kept, replace(body.kept[0], name="attention!9")))
    with pytest.raises(WrongKept, match="nothing reads it"):
        verify_body_meaning(more, gpt().body[body.body].graph)


def test_recomputation_needs_no_extra_tensors() -> None:
    body = layer(lowered(Degrees(recompute="full"), "eager"))
    assert not any("!" in kept.name for kept in body.kept)


def test_stacks_name_their_kernels() -> None:
    """The stack of the paper keeps what the paper says."""
    lowering = Lowering().for_stack(STACKS["megatron-2022"])
    assert (lowering.attention, lowering.fused_loss, lowering.regathers) == ("math", False, True)
    assert Lowering().for_stack(STACKS["megatron"]).fused_loss


@pytest.mark.parametrize("wrong", [{"style": "lazy"}, {"attention": "sparse"}])
def test_kernels_that_do_not_exist(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnknownStyle):
        Lowering(**wrong)
