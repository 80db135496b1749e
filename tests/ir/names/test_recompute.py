"""What the words for recomputation select, on graphs whose loops are named by hand: inputs have labels of that name."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.analysis.loops import loops
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.graph.text import parse_graph
from meshwright.ir.names.recompute import kind_of, recomputed
from tests.llama_block import model


def again(text: str, kind: str) -> str:
    graph: Graph = parse_graph(f"graph\n{text}")
    return " ".join(recomputed(graph, loops(graph), kind))


SCORES = """
  input %q: f32[2, 4, 8] (b, s, head_dim) grad
  input %kt: f32[2, 8, 4] (b, head_dim, s) grad
  input %v: f32[2, 4, 8] (b, s, head_dim) grad
  %before: f32[2, 4, 8] = neg(%q)
  %scores: f32[2, 4, 4] = matmul(%before, %kt)
  %scaled: f32[2, 4, 4] = mul(%scores) {scalar=0.5}
  %weights: f32[2, 4, 4] = softmax(%scaled) {dim=-1}
  %mixed: f32[2, 4, 8] = matmul(%weights, %v)
  %after: f32[2, 4, 8] = neg(%mixed)
  output %after
"""


def test_written_out_attention_is_what_reads_or_makes_scores() -> None:
    """Scores have the sequence in two dimensions."""
    for kind in ("selective", "selective:core_attn"):
        assert again(SCORES, kind) == "scores scaled weights mixed"
    assert again(SCORES, "none") == ""
    assert again(SCORES, "full") == "q kt v before scores scaled weights mixed after"


NORMS = """
  input %x: f32[2, 4, 8] (b, s, hidden) grad
  input %h: f32[2, 4, 3] (b, s, head_dim) grad
  param %w: f32[8] = "w"
  param %v: f32[3] = "v"
  %whole: f32[2, 4, 8] = rms_norm(%x, %w) {eps=1e-6} @block
  %heads: f32[2, 4, 3] = rms_norm(%h, %v) {eps=1e-6} @block.q_norm
  %square: f32[2, 4, 8] = mul(%whole, %whole) @block.LayerNorm
  %mean: f32[2, 4, 1] = mean(%square) {dim=(2,), keepdim=true} @block.LayerNorm
  %small: f32[2, 4, 3] = neg(%heads) @block.q_norm
  %inside: f32[2, 4, 8] = neg(%whole) @norm.proj
  %plain: f32[2, 4, 8] = neg(%whole) @block
  output %inside, %plain, %small, %mean
"""


def test_norms_are_operators_or_modules_over_the_hidden_width() -> None:
    """All that a norm's module does, also what has lost the width; not norms of heads, nor what lies below a norm."""
    assert again(NORMS, "selective:layernorm") == "whole square mean"


LATENT = """
  input %x: f32[2, 4, 8] (b, s, hidden) grad
  input %like: f32[2, 2, 4, 3] (b, heads, s, head_dim)
  param %wc: f32[5, 8] = "wc"
  param %wk: f32[6, 5] = "wk"
  param %wq: f32[6, 8] = "wq"
  param %wo: f32[8, 6] = "wo"
  %c: f32[2, 4, 5] = linear(%x, %wc)
  %k: f32[2, 4, 6] = linear(%c, %wk)
  %kv: f32[2, 4, 2, 3] = view(%k) {shape=(2, 4, 2, 3)} alias=0
  %kt: f32[2, 2, 4, 3] = permute(%kv) {perm=(0, 2, 1, 3)} alias=0
  %q: f32[2, 4, 6] = linear(%x, %wq)
  %qv: f32[2, 4, 2, 3] = view(%q) {shape=(2, 4, 2, 3)} alias=0
  %qt: f32[2, 2, 4, 3] = permute(%qv) {perm=(0, 2, 1, 3)} alias=0
  %ql: f32[2, 2, 4, 3] = add(%qt, %like)
  %attn: f32[2, 2, 4, 3] = attention(%ql, %kt, %kt) {mask="causal"}
  %at: f32[2, 4, 2, 3] = permute(%attn) {perm=(0, 2, 1, 3)} alias=0
  %av: f32[2, 4, 6] = view(%at) {shape=(2, 4, 6), copy=true}
  %o: f32[2, 4, 8] = linear(%av, %wo)
  output %o
"""


def test_latent_attention_is_computed_again_from_its_latents() -> None:
    """From `c`, which is kept: keys, and all that queries are made of. Not attention itself, nor what follows."""
    assert again(LATENT, "selective:mla_up_proj") == "k kv kt q qv qt ql"
    assert again(LATENT, "selective:core_attn+mla_up_proj") == "k kv kt q qv qt ql attn"
    assert again(LATENT, "selective") == "attn"
    # Where keys come straight from what the body is given, there is no latent.
    direct = LATENT.replace("%k: f32[2, 4, 6] = linear(%c, %wk)", "%k: f32[2, 4, 6] = linear(%x, %wq)")
    assert again(direct, "selective:mla_up_proj") == ""
    # Products without a bias: c, q kept, k and o made again; and attention is kept.
    assert again(LATENT, "selective_op") == "x like k kv kt qv qt ql at av o"


EXPERTS = """
  input %x: f32[4, 3, 8] (experts, slots, ffn) grad
  input %y: f32[3, 8] (slots, ffn) grad
  input %z: f32[4, 3, 5] (experts, slots, hidden) grad
  %act: f32[4, 3, 8] = silu(%x)
  %shared: f32[3, 8] = silu(%y)
  %back: f32[4, 3, 5] = silu(%z)
  output %act, %shared, %back
"""


def test_activations_of_experts_have_experts_and_their_width() -> None:
    assert again(EXPERTS, "selective:moe_act") == "act"


def test_all_is_computed_again_where_nothing_repeats() -> None:
    fold = model()
    glue: Fold = replace(
        fold, segments=tuple(replace(one, glue=True) if not one.glue else one for one in fold.segments)
    )
    names = [body.name for body in fold.bodies]
    assert [kind_of(fold, name, "full") for name in names] == ["none", "full", "none"]
    assert [kind_of(glue, name, "selective") for name in names] == ["selective"] * 3
