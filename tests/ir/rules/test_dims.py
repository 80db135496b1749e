"""Helpers of rules: common factors of two shapes, dtypes, laws; and rules written by users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES
from meshwright.backends.torch_.verify.interpreted.layers import position_mask
from meshwright.ir.errors import (
    BadOperand,
    FactorUndeclared,
    MeshwrightError,
    NoExpansion,
    RuleBook,
    RuleRegistered,
    UnknownOp,
)
from meshwright.ir.graph.graph import Type
from meshwright.ir.rules import (
    Law,
    Role,
    Save,
    Signature,
    Work,
    expand,
    infer,
    register_rule,
    unregister_rule,
)
from meshwright.ir.rules.dims import promoted, refine
from meshwright.ir.rules.families.attention import visible
from meshwright.ir.sharding.adjoint import Pass, choices
from meshwright.ir.verify.graphs import verify_rule
from tests.samples import sample, types

# Views ---------------------------------------------------------------------------------------------------------------


def rule_text(kind: str, operands: str, **attrs: object) -> str:
    return str(infer(sample(kind, operands, **attrs)))  # type: ignore[arg-type]


def test_heads_split_from_a_hidden_dimension() -> None:
    assert rule_text("view", "f32[2, 8, 12]", shape=(2, 8, 4, 3)) == "(f0 f1 f2·f3) -> (f0 f1 f2 f3)"


def test_dimensions_merge() -> None:
    assert rule_text("view", "f32[2, 8, 12]", shape=(16, 12)) == "(f0 f1 f2) -> (f0·f1 f2)"


def test_extents_of_one_have_no_loop() -> None:
    assert rule_text("view", "f32[4, 1, 8]", shape=(1, 4, 8)) == "(f0 1 f1) -> (1 f0 f1)"


def test_what_does_not_refine_is_whole_on_its_side() -> None:
    both = refine((8, 6), (12, 4))
    assert {factor.role for factor in both.factors} == {Role.WHOLE}
    assert not {name for dim in both.source for name in dim} & {name for dim in both.target for name in dim}


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), max_size=5)


@given(shapes, st.randoms(use_true_random=False))
def test_refinement_makes_both_shapes(source: list[int], random: object) -> None:
    """Regrouping prime factors at random gives another shape of the same tensor; factors must multiply to both."""
    target = _regrouped(source, random)
    both = refine(tuple(source), tuple(target))
    size = {factor.name: factor.size for factor in both.factors}
    for dims, shape in ((both.source, source), (both.target, target)):
        assert [prod(size[name] for name in dim) for dim in dims] == shape
    shared = {factor.name for factor in both.factors if factor.role is not Role.WHOLE}
    order = [[name for dim in dims for name in dim if name in shared] for dims in (both.source, both.target)]
    assert order[0] == order[1]


def _regrouped(shape: list[int], random: object) -> list[int]:
    primes = [p for extent in shape for p in {4: [2, 2], 6: [2, 3], 8: [2, 2, 2]}.get(extent, [extent])]
    target = [1]
    for prime in primes:
        if random.random() < 0.5:  # type: ignore[attr-defined]
            target.append(1)
        target[-1] *= prime
    return target


# Dtypes --------------------------------------------------------------------------------------------------------------

PROMOTED = ("bool", "u8", "i8", "i32", "i64", "bf16", "f16", "f32", "f64")


@pytest.mark.parametrize("one", PROMOTED)
@pytest.mark.parametrize("other", PROMOTED)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_promotion_is_torchs(one: str, other: str, shape: tuple[int, ...]) -> None:
    found = promoted((Type((2,), one), Type(shape, other)))
    operands = torch.zeros(2, dtype=DTYPES[one]), torch.zeros(shape, dtype=DTYPES[other])
    assert DTYPES[found] == torch.result_type(*operands)


@pytest.mark.parametrize("one", PROMOTED)
@pytest.mark.parametrize("scalar", [True, 2, 2.5])
def test_promotion_with_numbers_is_torchs(one: str, scalar: bool | int | float) -> None:
    assert DTYPES[promoted((Type((2,), one),), scalar)] == torch.result_type(torch.zeros(2, dtype=DTYPES[one]), scalar)


# Laws ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "laws"),
    [
        (sample("add", "f32[4] f32[4]"), "additive additive"),
        (sample("add", "f32[4]", scalar=1.0), "nonlinear"),
        (sample("mul", "f32[4]", scalar=2.0), "linear"),
        (sample("mul", "f32[4] f32[4]"), "linear linear"),
        (sample("div", "f32[4] f32[4]"), "linear nonlinear"),
        (sample("div", "f32[4]", scalar=2.0), "linear"),
        (sample("div", "f32[4]", scalar=2.0, reverse=True), "nonlinear"),
        (sample("pow", "f32[4]", scalar=2), "nonlinear"),
        (sample("where", "bool[4] f32[4] f32[4]"), "index additive additive"),
        (sample("masked_fill", "f32[4] bool[4]", scalar=0), "linear index"),
        (sample("masked_fill", "f32[4] bool[4]", scalar=-1.0), "nonlinear index"),
        (sample("cast", "i64[4]", dtype="f32"), "index"),
        (sample("cat", "f32[4] f32[4]", dim=0), "additive additive"),
        (sample("linear", "f32[4, 4] f32[8, 4] f32[8]"), "linear linear additive"),
        (sample("attention", "f32[1, 4, 8, 4] f32[1, 4, 8, 4] f32[1, 4, 8, 4]"), "nonlinear nonlinear linear"),
        (sample("layer_norm", "f32[4, 8] f32[8] f32[8]"), "nonlinear linear additive"),
    ],
    ids=str,
)
def test_laws(signature: Signature, laws: str) -> None:
    assert " ".join(law.value for law in infer(signature).laws) == laws


def test_partial_bias_may_not_pass_where_something_nonlinear_is_added() -> None:
    for signature in (sample("batch_norm", "f32[4, 4] f32[4] f32[4] f32[4] f32[4]", training=True),):
        assert not [choice for choice in choices(infer(signature)) if isinstance(choice, Pass)]


def test_grouped_heads_are_key_value_head_major() -> None:
    text = rule_text("attention", "f32[2, 8, 16, 4] f32[2, 2, 16, 4] f32[2, 2, 16, 4]")
    assert text == "(b hk·g sq d), (b hk sk d), (b hk sk dv) -> (b hk·g sq dv); sk:whole, d:whole"


def test_ring_needs_equal_lengths_and_no_bias() -> None:
    operands = "f32[2, 4, 8, 4] f32[2, 4, 8, 4] f32[2, 4, 8, 4]"
    assert [pair.algorithm for pair in infer(sample("attention", operands)).pairs] == ["ring"]
    assert not infer(sample("attention", operands + " f32[1, 4, 8, 8]")).pairs
    assert not infer(sample("attention", "f32[2, 4, 8, 4] f32[2, 4, 16, 4] f32[2, 4, 16, 4]")).pairs


@pytest.mark.parametrize(("mask", "width"), [("full", 0), ("causal", 0), ("window", 3), ("band", 2), ("chunk", 4)])
def test_masks_by_position(mask: str, width: int) -> None:
    table = position_mask(mask, width, torch.arange(6), torch.arange(8), 2)
    for query, key in ((q, k) for q in range(6) for k in range(8)):
        assert visible(mask, width, query, key, queries=6, keys=8) == bool(table[query, key])


# Errors --------------------------------------------------------------------------------------------------------------

REFUSED = [
    sample("linear", "f32[4, 8] f32[4, 9]"),
    sample("matmul", "f32[4, 8] f32[9, 4]"),
    sample("matmul", "f32[3, 4, 8] f32[2, 8, 4]"),
    sample("einsum", "f32[4, 8] f32[8, 4]", equation="ab,bc"),
    sample("add", "f32[4] f32[3]"),
    sample("view", "f32[4]", shape=(5,)),
    sample("permute", "f32[4, 8]", perm=(0, 0)),
    sample("expand", "f32[4]", shape=(8,)),
    sample("split", "f32[8]", dim=0, sizes=(4, 3)),
    sample("cat", "f32[4, 8] f32[5, 9]", dim=0),
    sample("gather", "f32[4, 8] i64[4]", dim=1),
    sample("sum", "f32[4]", dim=3),
    sample("layer_norm", "f32[4, 8] f32[4]"),
    sample("group_norm", "f32[4, 6, 4]", groups=4),
    sample("attention", "f32[4, 8, 8] f32[4, 8, 8] f32[4, 8, 8]"),
    sample("attention", "f32[1, 3, 8, 8] f32[1, 2, 8, 8] f32[1, 2, 8, 8]"),
    sample("attention", "f32[1, 2, 8, 8] f32[1, 2, 8, 8] f32[1, 2, 8, 8]", mask="odd"),
    sample("attention", "f32[1, 2, 8, 8] f32[1, 2, 8, 8] f32[1, 2, 8, 8] f32[1, 1, 8, 4]"),
    sample("dispatch", "f32[16, 4] i64[16, 2]", num_experts=4, capacity=8, groups=3),
    sample("mse_loss", "f32[4] f32[3]"),
    sample("cross_entropy", "f32[4, 8] i64[3]"),
    sample("conv2d", "f32[4, 4, 8, 8] f32[8, 3, 3, 3]"),
    sample("arange", "", start=0, end=4, step=0),
    sample("arange", "", start="zero", end=4),
    sample("opaque", "f32[4]"),
    sample("opaque", "f32[4]", types=("f32(4)",)),
    sample("topk", "f32[4]", dim=0),
]


@pytest.mark.parametrize("signature", REFUSED, ids=lambda signature: f"{signature} {signature.attrs}")
def test_refused_with_place_and_fix(signature: Signature) -> None:
    with pytest.raises(BadOperand) as caught:
        infer(signature)
    assert caught.value.place == str(signature)
    assert caught.value.fix


def test_unknown_kind_and_expansion() -> None:
    with pytest.raises(UnknownOp):
        infer(sample("transmogrify", "f32[4]"))
    with pytest.raises(NoExpansion):
        expand(sample("relu", "f32[4]"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": (("result", 0, 7, (1,)),)},
        {"saves": (Save("operand", 0, given=(5,)),)},
        {"work": (Work(1, ("k",), grad_of=0, shared_with=5),)},
    ],
    ids=str,
)
def test_what_a_rule_says_must_exist(wrong: dict[str, Any]) -> None:
    signature = sample("linear", "f32[4, 8] f32[16, 8]")
    with pytest.raises(RuleBook):
        verify_rule(replace(infer(signature), **wrong), signature)


def test_loops_of_what_is_kept_must_exist() -> None:
    signature = sample("linear", "f32[4, 8] f32[16, 8]")
    with pytest.raises(FactorUndeclared):
        verify_rule(replace(infer(signature), saves=(Save("extra", dims=(("telepathy",),)),)), signature)


# Rules of users ------------------------------------------------------------------------------------------------------

TARGET = "mylib::rotary"
OPERATOR = sample("opaque", "bf16[2, 8, 12] f32[8, 3]", types=("bf16[2, 8, 12]",), target=TARGET)


@pytest.fixture
def rotary() -> Iterator[None]:
    register_rule(TARGET, "b s (h d), s d -> b s (h d)", whole=("d",), linear=(0,), saved=(1,), flops=4)
    yield
    unregister_rule(TARGET)


def test_opaque_is_whole() -> None:
    rule = infer(OPERATOR)
    assert {factor.role for factor in rule.factors} == {Role.WHOLE}
    assert rule.types == types("bf16[2, 8, 12]")
    assert not rule.work
    assert [(save.what, save.index) for save in rule.saved("cpu", (0,))] == [
        ("operand", 0),
        ("operand", 1),
        ("result", 0),
    ]


def test_opaque_work_is_told_by_an_attribute() -> None:
    rule = infer(sample("opaque", "f32[4] i64[4] f32[4]", types=("f32[4]",), target="x::y", flops=100))
    assert (rule.flops(), rule.flops(needs=(0, 2)), rule.flops(needs=(0,))) == (100, 200, 100)


@pytest.mark.usefixtures("rotary")
def test_a_user_says_more() -> None:
    rule = infer(OPERATOR)
    assert str(rule) == "(b s h·d), (s d) -> (b s h·d); d:whole"
    assert rule.factor("h").size == 4
    assert rule.laws == (Law.LINEAR, Law.NONLINEAR)
    assert rule.flops() == 4 * 2 * 8 * 12
    assert rule.flops(needs=(0, 1)) == 2 * rule.flops()
    assert [(save.what, save.index) for save in rule.saved("cpu", (0,))] == [("operand", 1)]
    with pytest.raises(RuleRegistered):
        register_rule(TARGET, "a -> a")


@pytest.mark.usefixtures("rotary")
def test_a_users_rule_must_fit() -> None:
    with pytest.raises(BadOperand):
        infer(sample("opaque", "bf16[2, 8, 13] f32[8, 3]", types=("bf16[2, 8, 13]",), target=TARGET))
    with pytest.raises(BadOperand):
        infer(sample("opaque", "bf16[2, 8, 12]", types=("bf16[2, 8, 12]",), target=TARGET))


def test_a_users_rule_must_have_two_sides() -> None:
    with pytest.raises(BadOperand):
        register_rule("mylib::odd", "b s d")


@pytest.mark.parametrize("spec", ["b d -> b", "a (b c) -> a (b c)"])
def test_a_users_rule_must_make_sense(spec: str) -> None:
    register_rule("mylib::odd", spec)
    try:
        with pytest.raises(MeshwrightError):
            infer(sample("opaque", "f32[2, 4]", types=("f32[2, 4]",), target="mylib::odd"))
    finally:
        unregister_rule("mylib::odd")
