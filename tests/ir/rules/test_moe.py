"""Routing: how many slots dropless experts count, and where what fills them may be cut."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent
from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Signature
from meshwright.ir.rules.families.moe import ROUNDED, dropless_capacity
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import Split, Strategy, apply
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested
from meshwright.ir.sharding.mesh import Mesh, MeshAxis

SEQ = 4096


@given(st.integers(1, 256), st.integers(1, 8), st.integers(0, 511))
def test_slots_are_the_mean_and_little_more(experts: int, topk: int, more: int) -> None:
    mean = SEQ * min(topk, experts) / experts
    found = dropless_capacity(SEQ, min(topk, experts), experts)
    assert mean <= found <= max(mean * (1 + ROUNDED), mean + 1)
    assert dropless_capacity(SEQ * (2 * more + 1), min(topk, experts), experts) == (2 * more + 1) * found


@pytest.mark.parametrize(
    ("experts", "topk", "run"), [(256, 8, 32), (8, 2, 4), (64, 6, 32), (160, 6, 128), (160, 8, 256), (384, 8, 512)]
)
def test_tokens_can_be_cut_in_runs(experts: int, topk: int, run: int) -> None:
    """Of published mixtures: 160 and 384 experts divide no power of two."""
    for samples in (1, 3, 8):
        assert gcd(samples * SEQ, dropless_capacity(samples * SEQ, topk, experts)) % (samples * SEQ // run) == 0


@pytest.mark.parametrize(
    ("layout", "parts", "legal"),
    [
        (CONTIGUOUS, 8, True),
        (CONTIGUOUS, 16, False),
        (Nested(2), 4, True),
        (Nested(2), 8, False),
        (ZIGZAG, 4, True),
        (ZIGZAG, 8, False),
        (Nested(2, ZIGZAG), 2, True),
        (Nested(2, ZIGZAG), 4, False),
    ],
    ids=str,
)
def test_tokens_are_cut_where_groups_end(layout: Layout, parts: int, legal: bool) -> None:
    """32 tokens in 8 groups, of two slots each."""
    tokens, chosen = Type((32, 4), "f32"), Type((32, 2), "i64")
    attrs = (("num_experts", 4), ("capacity", 16), ("groups", 8))
    rule = infer(Signature("dispatch", (tokens, chosen), attrs))
    strategy, mesh = Strategy((("a", Split(("t",), layout)),)), Mesh((MeshAxis("a", parts),))
    if not legal:
        with pytest.raises((IllegalStrategy, IndivisibleExtent)):
            apply(rule, (tokens, chosen), strategy, mesh)
        return
    (rows,) = apply(rule, (tokens, chosen), strategy, mesh).results
    assert str(rows.dims[1][0].layout) == str(layout)
