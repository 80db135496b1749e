"""Rules of small signatures, written out whole: loops, their sizes and roles, laws, work, and what is kept on which
device. Expected texts follow from what each operator is defined to do; shapes of windows are torch's own."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn import functional

from meshwright.ir.errors import BadOperand
from meshwright.ir.rules import Role, Rule, Save, Signature, expand, infer
from meshwright.ir.rules.dims import promoted, refine
from meshwright.ir.rules.families.moe import dropless_capacity, routing_groups
from meshwright.ir.rules.families.reduction import count
from tests.samples import sample


def dims_text(dims: tuple[tuple[str, ...], ...]) -> str:
    return " ".join("·".join(dim) or "1" for dim in dims)


def save_text(save: Save) -> str:
    """operand 1, result 0, or [dims]dtype; !needs, +given, -unless, @device."""
    name = f"[{dims_text(save.dims)}]{save.dtype}" if save.what == "extra" else f"{save.what[0]}{save.index}"
    marks = (("!", save.needs), ("+", save.given), ("-", save.unless))
    marked = "".join(f"{mark}{','.join(map(str, slots))}" for mark, slots in marks if slots)
    return name + marked + "".join(f"@{device}" for device in save.devices)


def sizes_text(rule: Rule) -> str:
    """A star stands for loops that are split by an expansion."""
    return " ".join(f"{factor.name}{'*' * factor.expanded}={factor.size}" for factor in rule.factors)


def laws_text(rule: Rule) -> str:
    return " ".join(law.value for law in rule.laws)


def saves_text(rule: Rule) -> str:
    return " ".join(map(save_text, rule.saves))


# Loops and their sizes -----------------------------------------------------------------------------------------------

LOOPS = [
    (
        sample(
            "conv2d",
            "f32[2, 6, 11, 9] f32[4, 3, 3, 2] f32[4]",
            groups=2,
            stride=(2, 3),
            padding=(1, 2),
            dilation=(2, 1),
        ),
        (
            "(n g·ci i0 i1), (g·co ci k0 k1), (g·co) -> (n g·co o0 o1); "
            "ci:sum, i0:halo, i1:halo, o0:halo, o1:halo, k0:whole, k1:whole"
        ),
        "n=2 g=2 ci=3 co=2 i0=11 i1=9 o0=5 o1=4 k0=3 k1=2",
    ),
    (
        sample(
            "conv_transpose2d",
            "f32[2, 4, 5, 3] f32[4, 3, 3, 2]",
            groups=2,
            stride=(2, 3),
            padding=(1, 0),
            output_padding=(1, 2),
            dilation=(1, 2),
        ),
        (
            "(n g·ci i0 i1), (g·ci co k0 k1) -> (n g·co o0 o1); "
            "ci:sum, i0:halo, i1:halo, o0:halo, o1:halo, k0:whole, k1:whole"
        ),
        "n=2 g=2 ci=2 co=3 i0=5 i1=3 o0=10 o1=11 k0=3 k1=2",
    ),
    (
        sample("conv1d", "f32[2, 3, 7] f32[5, 3, 1]"),
        "(n ci i0), (co ci k0) -> (n co i0); ci:sum, k0:whole",
        "n=2 ci=3 co=5 i0=7 k0=1",
    ),
    (
        sample("conv1d", "f32[2, 3, 7] f32[5, 3, 1]", padding=1),
        "(n ci i0), (co ci k0) -> (n co o0); ci:sum, i0:halo, o0:halo, k0:whole",
        "n=2 ci=3 co=5 i0=7 o0=9 k0=1",
    ),
    (
        sample("conv1d", "f32[2, 3, 7] f32[5, 3, 1]", stride=2),
        "(n ci i0), (co ci k0) -> (n co o0); ci:sum, i0:halo, o0:halo, k0:whole",
        "n=2 ci=3 co=5 i0=7 o0=4 k0=1",
    ),
    (
        sample("conv_transpose1d", "f32[2, 3, 7] f32[3, 5, 1]", dilation=2, output_padding=1),
        "(n ci i0), (ci co k0) -> (n co o0); ci:sum, i0:halo, o0:halo, k0:whole",
        "n=2 ci=3 co=5 i0=7 o0=8 k0=1",
    ),
    (
        sample("max_pool2d", "f32[2, 3, 9, 8]", kernel=(3, 2)),
        "(d0 d1 i0 i1) -> (d0 d1 o0 o1); i0:halo, i1:halo, o0:halo, o1:halo",
        "d0=2 d1=3 i0=9 i1=8 o0=3 o1=4",
    ),
    (
        sample("adaptive_avg_pool2d", "f32[5, 9, 8]", output_size=3),
        "(d0 i0 i1) -> (d0 o0 o1); i0:halo, i1:halo, o0:halo, o1:halo",
        "d0=5 i0=9 i1=8 o0=3 o1=3",
    ),
    (
        sample("upsample", "f32[5, 6, 9]", size=18),
        "(d0 d1 i0) -> (d0 d1 o0); i0:halo, o0:halo",
        "d0=5 d1=6 i0=9 o0=18",
    ),
    (
        sample("attention", "f32[2, 6, 5, 4] f32[2, 2, 7, 4] f32[2, 2, 7, 3] f32[1, 6, 1, 7]"),
        "(b hk·g sq d), (b hk sk d), (b hk sk dv), (1 hk·g 1 sk) -> (b hk·g sq dv); sk:whole, d:whole",
        "b=2 hk=2 g=3 sq=5 sk=7 d=4 dv=3",
    ),
    (
        sample("linear", "f32[2, 3, 4] f32[4, 5] f32[5]", transposed=True),
        "(d0 d1 k), (k n), (n) -> (d0 d1 n); k:sum",
        "d0=2 d1=3 n=5 k=4",
    ),
    (
        sample("grouped_linear", "f32[3, 2, 4] f32[3, 5, 4] f32[3, 5]"),
        "(e c k), (e n k), (e n) -> (e c n); k:sum",
        "e=3 c=2 n=5 k=4",
    ),
    (
        sample("matmul", "f32[6, 1, 4, 5] f32[3, 5, 7]"),
        "(d0 1 m k), (d1 k n) -> (d0 d1 m n); k:sum",
        "d0=6 d1=3 m=4 n=7 k=5",
    ),
    (sample("matmul", "f32[5] f32[5, 7]"), "(k), (k n) -> (n); k:sum", "n=7 k=5"),
    (sample("matmul", "f32[4, 5] f32[5]"), "(m k), (k) -> (m); k:sum", "m=4 k=5"),
    (
        sample("einsum", "f32[2, 3] f32[4, 3, 2]", equation="ab, cba -> c"),
        "(a b), (c b a) -> (c); a:sum, b:sum",
        "c=4 a=2 b=3",
    ),
    (
        sample("grouped_mm", "f32[6, 3] f32[2, 3, 5] i32[2]"),
        "(t k), (e k n), (e) -> (t n); t:whole, e:whole, k:sum",
        "t=6 e=2 k=3 n=5",
    ),
    (
        sample("layer_norm", "f32[2, 3, 4] f32[3, 4] f32[3, 4]"),
        "(d0 d1 d2), (d1 d2), (d1 d2) -> (d0 d1 d2); d1:whole, d2:whole",
        "d0=2 d1=3 d2=4",
    ),
    (
        sample("group_norm", "f32[2, 6, 5] f32[6] f32[6]", groups=2),
        "(n g·c s0), (g·c), (g·c) -> (n g·c s0); c:whole, s0:whole",
        "n=2 g=2 c=3 s0=5",
    ),
    (
        sample("batch_norm", "f32[2, 3, 5] f32[3] f32[3] f32[3] f32[3]"),
        "(n c s0), (c), (c), (c), (c) -> (n c s0), (c), (c)",
        "n*=2 c=3 s0*=5",
    ),
    (
        sample("batch_norm", "f32[2, 3, 5] f32[3] f32[3] f32[3] f32[3]", training=False),
        "(n c s0), (c), (c), (c), (c) -> (n c s0)",
        "n=2 c=3 s0=5",
    ),
    (
        sample("batch_moments", "f32[2, 3, 5, 7]"),
        "(n c s0 s1) -> (m c); n:sum, s0:sum, s1:sum, m:whole",
        "n=2 c=3 s0=5 s1=7 m=2",
    ),
    (
        sample("batch_normalize", "f32[2, 3, 5] f64[2, 3] f32[3] f32[3]"),
        "(n c s0), (m c), (c), (c) -> (n c s0); m:whole",
        "n=2 c=3 s0=5 m=2",
    ),
    (sample("cross_entropy", "f32[2, 3, 5] i64[2, 3]"), "(d0 d1 v), (d0 d1) -> (); d0:sum, d1:sum", "d0*=2 d1*=3 v*=5"),
    (
        sample("cross_entropy", "f32[2, 5] i64[2]", reduction="none"),
        "(d0 v), (d0) -> (d0)",
        "d0=2 v*=5",
    ),
    (sample("nll_loss", "f32[2, 5] i64[2]", reduction="sum"), "(d0 v), (d0) -> (); d0:sum, v:sum", "d0=2 v=5"),
    (
        sample("slice", "f32[2, 7]", dim=-1, start=1, end=6, step=2),
        "(d0 w) -> (d0 r); w:whole, r:whole",
        "d0=2 w=7 r=3",
    ),
    (sample("slice", "f32[2, 7]", dim=1, end=99), "(d0 d1) -> (d0 d1)", "d0=2 d1=7"),
    (sample("select", "f32[2, 7, 3]", dim=-2, index=0), "(d0 w d2) -> (d0 d2); w:whole", "d0=2 w=7 d2=3"),
    (sample("split", "f32[2, 10, 3]", dim=1, sizes=(4, 6)), "(d0 p d2) -> (d0 p d2), (d0 p d2)", "d0=2 d2=3 p=2"),
    (sample("cat", "f32[2, 4, 3] f32[2, 6, 3]", dim=1), "(d0 p d2), (d0 p d2) -> (d0 p d2)", "d0=2 d2=3 p=2"),
    (sample("cat", "f32[2, 0] f32[2, 6]", dim=1), "(d0 p), (d0 p) -> (d0 p); p:whole", "d0=2 p=6"),
    (
        sample("stack", "f32[2, 3] f32[2, 3] f32[2, 3]", dim=1),
        "(d0 d1), (d0 d1), (d0 d1) -> (d0 i d1); i:whole",
        "d0=2 d1=3 i=3",
    ),
    (sample("flip", "f32[2, 3, 4]", dims=(-1, 0)), "(d0 d1 d2) -> (d0 d1 d2); d0:whole, d2:whole", "d0=2 d1=3 d2=4"),
    (
        sample("pad", "f32[2, 3, 4]", pad=(0, 1, 0, 0, 2, 0)),
        "(i0 d1 i2) -> (o0 d1 o2); i0:whole, i2:whole, o0:whole, o2:whole",
        "i0=2 d1=3 i2=4 o0=4 o2=5",
    ),
    (
        sample("gather", "f32[5, 8, 4] i64[3, 6, 4]", dim=1),
        "(x0 v d2), (i0 k d2) -> (i0 k d2); i0:whole, x0:whole, v:sum",
        "i0=3 k=6 d2=4 x0=5 v=8",
    ),
    (sample("index_select", "f32[5, 8, 4] i64[3]", dim=1), "(d0 v d2), (k) -> (d0 k d2); v:sum", "d0=5 k=3 d2=4 v=8"),
    (
        sample("scatter_add", "f32[5, 8] i64[5, 3] f32[5, 3]", dim=1),
        "(d0 v), (d0 k), (d0 k) -> (d0 v); k:sum",
        "d0=5 v=8 k=3",
    ),
    (
        sample("scatter_add", "f32[5, 8] i64[5, 3]", dim=1, scalar=1),
        "(d0 v), (d0 k) -> (d0 v); k:whole",
        "d0=5 v=8 k=3",
    ),
    (
        sample("scatter", "f32[5, 8] i64[4, 3] f32[4, 3]", dim=1),
        "(x0 v), (i0 k), (i0 k) -> (x0 v); x0:whole, i0:whole, k:whole",
        "x0=5 v=8 i0=4 k=3",
    ),
    (
        sample("sum", "f32[2, 3, 4]", dim=(0, -1), keepdim=True),
        "(d0 d1 d2) -> (1 d1 1); d0:sum, d2:sum",
        "d0=2 d1=3 d2=4",
    ),
    (sample("amax", "f32[2, 3, 4]", dim=1), "(d0 d1 d2) -> (d0 d2); d1:max", "d0=2 d1=3 d2=4"),
    (sample("argmax", "f32[2, 3]"), "(d0 d1) -> (); d0:whole, d1:whole", "d0=2 d1=3"),
    (sample("softmax", "f32[2, 3]"), "(d0 d1) -> (d0 d1); d1:whole", "d0=2 d1=3"),
    (sample("topk", "f32[7, 3]", dim=0, k=2), "(d0 d1) -> (k d1), (k d1); d0:whole, k:whole", "d0=7 d1=3 k=2"),
    (sample("one_hot", "i64[2, 3]", num_classes=5), "(d0 d1) -> (d0 d1 v)", "d0=2 d1=3 v=5"),
    (sample("embedding", "f32[9, 4] i64[2, 3]"), "(v d), (d0 d1) -> (d0 d1 d); v:sum", "d0=2 d1=3 v=9 d=4"),
    (
        sample("dispatch", "f32[2, 6, 4] i64[2, 6, 3]", num_experts=5, capacity=8, groups=(2, 1)),
        "(t0 t1 d), (t0 t1 k) -> (e t0·t1 d); k:whole",
        "t0=2 t1=6 k=3 e=5 d=4",
    ),
    (
        sample("combine", "f32[5, 8, 4] i64[6, 3] f32[6, 3]", groups=2),
        "(e t d), (t k), (t k) -> (t d); k:whole, e:sum",
        "t=6 k=3 e=5 d=4",
    ),
    (sample("mse_loss", "f32[2, 3] f32[2, 3]"), "(d0 d1), (d0 d1) -> (); d0:sum, d1:sum", "d0=2 d1=3"),
    (
        sample("opaque", "f32[2] i64[3, 4]", types=("f32[5]",), target="x::y"),
        "(i0_0), (i1_0 i1_1) -> (o0_0); i0_0:whole, i1_0:whole, i1_1:whole, o0_0:whole",
        "i0_0=2 i1_0=3 i1_1=4 o0_0=5",
    ),
]


def test_loops_are_those_of_the_definition() -> None:
    found = [(str(infer(signature)), sizes_text(infer(signature))) for signature, _, _ in LOOPS]
    assert found == [(loops, sizes) for _, loops, sizes in LOOPS]


@pytest.mark.parametrize(
    ("signature", "forward", "backward"),
    [
        # 2 · batch · groups · channels in a group · channels out of it · positions · taps
        (LOOPS[0][0], 2 * 2 * 2 * 3 * 2 * (5 * 4) * (3 * 2), 2),
        # every position of the operand meets every tap
        (LOOPS[1][0], 2 * 2 * 2 * 2 * 3 * (5 * 3) * (3 * 2), 2),
        (LOOPS[12][0], 2 * 6 * 3 * 4 * 7 * 5, 2),
        (LOOPS[16][0], 2 * 6 * 3 * 5, 2),
    ],
    ids=str,
)
def test_a_product_costs_two_per_point_and_as_much_for_each_gradient(
    signature: Signature, forward: int, backward: int
) -> None:
    rule = infer(signature)
    assert rule.flops() == forward
    assert [rule.flops(needs=(slot,)) for slot in (0, 1)] == [forward, forward]
    assert rule.flops(needs=(0, 1)) == backward * forward


def test_attention_costs_scores_and_output_and_the_gradient_of_probabilities_once() -> None:
    """2 batch · 6 heads · 5 queries · 7 keys = 420 scores, each of 4 products for keys and 3 for values."""
    rule = infer(LOOPS[9][0])
    scores, output = 2 * 420 * 4, 2 * 420 * 3
    assert rule.flops() == scores + output
    found = {needs: rule.flops(needs=needs) for needs in ((0,), (1,), (2,), (0, 1), (0, 1, 2))}
    assert found == {
        (0,): output + scores,
        (1,): output + scores,
        (2,): output,
        (0, 1): output + 2 * scores,
        (0, 1, 2): 2 * output + 2 * scores,
    }


def test_sections_slots_and_pairs_stand_where_their_dimensions_do() -> None:
    assert infer(sample("split", "f32[2, 10, 3]", dim=-2, sizes=(4, 6))).sections == (("operand", 0, 1, (4, 6)),)
    assert infer(sample("cat", "f32[2, 4] f32[2, 6]", dim=1)).sections == (("result", 0, 1, (4, 6)),)
    assert infer(sample("cat", "f32[2, 0] f32[2, 6]", dim=1)).sections == ()
    dispatch = sample("dispatch", "f32[2, 6, 4] i64[2, 6, 3]", num_experts=5, capacity=8, groups=(2, 1))
    assert infer(dispatch).slots == (("result", 0, 1, (2, 1)),)
    combine = sample("combine", "f32[5, 8, 4] i64[6, 3] f32[6, 3]", groups=2)
    assert infer(combine).slots == (("operand", 0, 1, (2,)),)
    assert infer(combine).section_sizes("operand", 0, 1) is None
    assert infer(combine).slot_groups("operand", 0, 1) == (2,)
    assert infer(combine).slot_groups("result", 0, 1) is None


LAWS: list[tuple[Signature, str]] = [
    (LOOPS[0][0], "linear linear additive"),
    (LOOPS[1][0], "linear linear"),
    (LOOPS[9][0], "nonlinear nonlinear linear nonlinear"),
    (sample("max_pool1d", "f32[2, 8]", kernel=2), "nonlinear"),
    (sample("avg_pool1d", "f32[2, 8]", kernel=2), "linear"),
    (sample("group_norm", "f32[2, 6, 5] f32[6] f32[6]", groups=2), "nonlinear linear additive"),
    (sample("batch_norm", "f32[2, 3] f32[3] f32[3] f32[3] f32[3]"), "nonlinear nonlinear nonlinear index index"),
    (
        sample("batch_norm", "f32[2, 3] f32[3] f32[3] f32[3] f32[3]", training=False),
        "nonlinear linear additive index index",
    ),
    (sample("scatter", "f32[5, 8] i64[5, 3]", dim=1, scalar=0), "linear index"),
    (sample("scatter", "f32[5, 8] i64[5, 3]", dim=1, scalar=2), "nonlinear index"),
    (sample("scatter", "f32[5, 8] i64[5, 3] f32[5, 3]", dim=1), "additive index additive"),
    (sample("scatter_add", "f32[5, 8] i64[5, 3] f32[5, 3]", dim=1), "additive index linear"),
    (sample("pad", "f32[5]", pad=(1, 0)), "linear"),
    (sample("pad", "f32[5]", pad=(1, 0), value=1.0), "nonlinear"),
    (sample("softmax", "f32[5]"), "nonlinear"),
    (sample("argsort", "f32[5]"), "index"),
    (sample("sum", "i64[5]"), "index"),
    (sample("div", "f32[4]", scalar=2.0, rounding="floor"), "nonlinear"),
    (sample("sub", "f32[4]", scalar=2.0), "nonlinear"),
    (sample("sub", "f32[4] f32[4]"), "additive additive"),
    (sample("nll_loss", "f32[2, 5] i64[2]"), "linear index"),
    (sample("combine", "f32[5, 8, 4] i64[6, 3] f32[6, 3]", groups=2), "linear index linear"),
]


def test_laws_of_every_form() -> None:
    for signature, laws in LAWS:
        assert laws_text(infer(signature)) == laws


# What is kept --------------------------------------------------------------------------------------------------------

Q, K, V = "f32[2, 6, 5, 4]", "f32[2, 2, 7, 4]", "f32[2, 2, 7, 4]"
HALF = "bf16[1, 2, 5, 4] bf16[1, 2, 5, 4] bf16[1, 2, 5, 4]"


KEPT: list[tuple[Signature, str]] = [
    (sample("attention", f"{Q} {K} {V}"), "o0 o1 o2 r0 [b hk·g sq]f32"),
    (sample("attention", HALF, mask="window", width=2), "o0 o1 o2 r0 [b hk sq]f32 [1 1 sq sk]bf16"),
    (sample("attention", HALF, mask="causal", mask_shape=(5, 5)), "o0 o1 o2 r0 [b hk sq]f32 [1 1 sq sk]bf16"),
    (
        sample("attention", f"{Q} {K} {V}", mask="band", mask_shape=(2, 1, 5, 7)),
        "o0 o1 o2 r0 [b hk·g sq]f32 [b 1 sq sk]f32",
    ),
    (
        sample("attention", HALF, dropout=0.5),
        (
            "o0@cuda o1@cuda o2@cuda r0@cuda [b hk sq]f32@cuda "
            "[b hk sk d]f32!0@cpu [b hk sq d]f32!1@cpu "
            "[b hk sq sk]f32!0,1@cpu [b hk sq sk]f32!0,1@cpu [b hk sq sk]f32!2@cpu [b hk sk dv]f32!0,1@cpu"
        ),
    ),
    (
        sample("attention", "f64[1, 2, 5, 4] f64[1, 2, 5, 4] f64[1, 2, 5, 3]"),
        (
            "o0@cuda o1@cuda o2@cuda r0@cuda [b hk sq]f32@cuda "
            "[b hk sk d]f64!0@cpu [b hk sq d]f64!1@cpu [b hk sq sk]f64@cpu o2!0,1@cpu"
        ),
    ),
    (
        sample("attention", f"{Q} {K} {V} f32[1, 6, 5, 7]"),
        (
            "o0@cuda o1@cuda o2@cuda o3@cuda r0@cuda [b hk·g sq]f32@cuda "
            "o0-3@cpu o1-3@cpu o2-3@cpu o3-3@cpu r0-3@cpu [b hk·g sq]f32-3@cpu "
            "[b hk·g sk d]f32!0+3@cpu [b hk·g sq d]f32!1+3@cpu [b hk·g sq sk]f32+3@cpu "
            "[b hk·g sk dv]f32!0,1,3+3@cpu"
        ),
    ),
    (
        sample("rms_norm", "bf16[2, 3, 4] bf16[4]"),
        "o0@cuda o1@cuda [d0 d1]f32@cuda [d0 d1 d2]f32!0@cpu o1!0@cpu [d0 d1]f32!0@cpu [d0 d1 d2]f32!1@cpu",
    ),
    (sample("rms_norm", "f64[2, 4]"), "o0@cuda [d0]f64@cuda o0!0@cpu [d0]f64!0@cpu"),
    (
        sample("layer_norm", "bf16[2, 3, 4] bf16[4] bf16[4]"),
        "o0 o1 o2 [d0 d1]bf16@cpu [d0 d1]f32@cuda [d0 d1]bf16@cpu [d0 d1]f32@cuda",
    ),
    (
        sample("layer_norm", "bf16[2, 3, 4]", normalized_shape=(3, 4)),
        "o0 [d0]bf16@cpu [d0]f32@cuda [d0]bf16@cpu [d0]f32@cuda",
    ),
    (
        sample("group_norm", "bf16[2, 6, 5] f32[6] f32[6]", groups=2),
        "o0 o1 [n g]f32@cpu [n g]f32@cuda [n g]f32@cpu [n g]f32@cuda",
    ),
    (
        sample("batch_norm", "f64[2, 3] f64[3] f64[3] f64[3] f64[3]"),
        "o0 o1 o3 o4 [c]f64@cpu [c]f64@cuda [c]f64@cpu [c]f64@cuda",
    ),
    (sample("batch_normalize", "f32[2, 3] f64[2, 3] f32[3] f32[3]"), "o0 o1 o2"),
    (sample("log_sigmoid", "bf16[2, 3]"), "o0 [d0 d1]bf16@cpu"),
    (sample("dropout", "bf16[2, 3]", p=0.1), "[d0 d1]bf16@cpu [d0 d1]bool@cuda"),
    (sample("cross_entropy", "bf16[2, 3, 5] i64[2, 3]", label_smoothing=0.1), "[d0 d1 v]bf16 o1 [d0 d1]bool"),
    (sample("l1_loss", "bf16[2, 3] f32[2, 3]"), "[d0 d1]f32"),
    (sample("kl_div", "f32[2] f32[2]"), "o1 o0!1"),
    (sample("max_pool1d", "f32[2, 3, 8]", kernel=2), "o0 [d0 d1 o0]i64"),
    (sample("avg_pool1d", "f32[2, 3, 8]", kernel=2), "o0"),
    (sample("upsample", "f32[2, 3, 8]", size=16), ""),
    (sample("conv1d", "f32[2, 3, 7] f32[5, 3, 1]"), "o0 o1"),
    (sample("linear", "f32[2, 3] f32[4, 3] f32[4]"), "o0!1 o1!0"),
    (sample("grouped_mm", "f32[6, 3] f32[2, 3, 5] i32[2]"), "o0!1 o1!0 o2"),
    (sample("gather", "f32[4, 8] i64[4, 4]", dim=1), "o0 o1"),
    (sample("scatter_add", "f32[5, 8] i64[5, 3] f32[5, 3]", dim=1), "o1!2"),
    (sample("scatter", "f32[5, 8] i64[5, 3] f32[5, 3]", dim=1), "o1"),
    (sample("dispatch", "f32[6, 4] i64[6, 3]", num_experts=5, capacity=8), "o1 [t k]i64"),
    (sample("combine", "f32[5, 8, 4] i64[6, 3] f32[6, 3]"), "o0 o1 o2 [t k]i64"),
    (sample("embedding", "f32[9, 4] i64[2]"), "o1"),
    (sample("topk", "f32[7]", k=2), "r1"),
    (sample("std", "f32[7]"), "o0 r0"),
    (sample("argmax", "f32[7]"), ""),
    (sample("div", "f32[4] f32[4]"), "o0!1 o1"),
    (sample("div", "f32[4]", scalar=2.0, reverse=True), "r0"),
    (sample("pow", "f32[4]", scalar=2.0, reverse=True), "o0 r0"),
    (sample("pow", "f32[4] f32[4]"), "o0 o1 r0"),
    (sample("fmod", "f32[4] f32[4]"), "o1!1 o0!1"),
    (sample("fmod", "f32[4]", scalar=2.0), ""),
    (sample("maximum", "f32[4] f32[4]"), "o0 o1"),
    (sample("mul", "f32[4] f32[4]"), "o0!1 o1!0"),
]


def test_what_is_kept_on_every_device() -> None:
    for signature, saves in KEPT:
        assert saves_text(infer(signature)) == saves


BYTES: list[tuple[Signature, int]] = [
    (sample("embedding", "f32[9, 4] i64[2]"), 2 * 16 + 2 * 8 + 2 * 16),  # two rows read, their ids, two written
    (sample("embedding", "f32[2, 4] i64[9]"), 2 * 16 + 9 * 8 + 9 * 16),  # no more than the table has
    (sample("gather", "f32[100] i64[2]", dim=0), 2 * 4 + 2 * 8 + 2 * 4),
    (sample("index_select", "f32[100] i64[2]", dim=0), 2 * 4 + 2 * 8 + 2 * 4),
    (sample("add", "f32[4] f32[4]"), 3 * 16),
    (sample("view", "f32[4]", shape=(2, 2)), 0),
    (sample("view", "f32[4]", shape=(2, 2), copy=True), 2 * 16),
    (sample("split", "f32[4]", dim=0, sizes=(2, 2)), 0),
    (sample("cat", "f32[4] f32[4]", dim=0), 2 * 16 + 32),
]


def test_bytes_are_those_that_are_read_and_written() -> None:
    for signature, nbytes in BYTES:
        assert infer(signature).nbytes(signature) == nbytes


@pytest.mark.parametrize(
    ("signature", "fuses"),
    [
        (sample("add", "f32[4] f32[4]"), True),
        (sample("zeros_like", "f32[4]"), True),
        (sample("mse_loss", "f32[4] f32[4]", reduction="none"), True),
        (sample("mse_loss", "f32[4] f32[4]"), False),
        (sample("softmax", "f32[4]"), False),
        (sample("linear", "f32[2, 3] f32[4, 3]"), False),
    ],
    ids=str,
)
def test_what_reads_one_element_for_each_fuses(signature: Signature, fuses: bool) -> None:
    assert infer(signature).elementwise is fuses


def test_derivatives_read_what_is_kept_somewhere() -> None:
    """A product reads the other operand; a norm keeps a statistic of its own, so that all operands are read again."""
    product_, norm = infer(sample("linear", "f32[2, 3] f32[4, 3]")), infer(sample("layer_norm", "f32[2, 3] f32[3]"))
    assert [product_.reads(needs) for needs in ((), (0,), (1,), (0, 1))] == [(), (1,), (0,), (0, 1)]
    assert not product_.reruns((0, 1))
    assert norm.reruns((1,))
    assert norm.reads((1,)) == (0, 1)
    relu = infer(sample("relu", "f32[2]"))
    assert (relu.reruns((0,)), relu.reads((0,)), relu.reruns(())) == (True, (0,), False)


# Windows -------------------------------------------------------------------------------------------------------------


def test_pools_have_as_many_windows_as_torchs() -> None:
    """Rounded up or down, with and without margins, of one to nine positions."""
    tried = 0
    for extent, kernel, stride, padding, dilation, up in product(
        range(1, 10, 2), (1, 2, 3), (1, 2, 4), (0, 1), (1, 2), (False, True)
    ):
        reach = dilation * (kernel - 1) + 1
        if 2 * padding > kernel or reach > extent + 2 * padding:
            continue
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": up}
        (found,) = infer(sample("max_pool1d", f"f32[1, {extent}]", **attrs)).types
        x = torch.zeros(1, extent, device="meta")
        assert found.shape == functional.max_pool1d(x, kernel, stride, padding, dilation, up).shape, (extent, attrs)
        tried += 1
    assert tried > 100


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_have_as_many_positions_as_torchs(transposed: bool) -> None:
    kind, made = ("conv_transpose1d", functional.conv_transpose1d) if transposed else ("conv1d", functional.conv1d)
    for taps, stride, padding, dilation in product((1, 2, 3), (1, 2, 3), (0, 1), (1, 2)):
        attrs = {"stride": stride, "padding": padding, "dilation": dilation}
        (found,) = infer(sample(kind, f"f32[2, 3, 8] f32[3, 3, {taps}]", **attrs)).types
        x, w = torch.zeros(2, 3, 8, device="meta"), torch.zeros(3, 3, taps, device="meta")
        assert found.shape == made(x, w, **attrs).shape, (taps, attrs)


# Views ---------------------------------------------------------------------------------------------------------------


REFINED: list[tuple[tuple[int, ...], tuple[int, ...], str, str, str]] = [
    # 4 and 6 do not divide: 9·4 against 6·6 stay whole, the 2 before them is shared.
    ((2, 9, 4), (2, 6, 6), "f0 f4 f3", "f0 f2 f1", "f0=2 f1=6w f2=6w f3=4w f4=9w"),
    # A 2 is shared on the right; of what is left 9·2 stands against 6·3.
    ((9, 4), (6, 3, 2), "f3 f2·f4", "f1 f0 f4", "f0=3w f1=6w f2=2w f3=9w f4=2"),
    ((12,), (1, 3, 1, 4), "f0·f1", "1 f0 1 f1", "f0=3 f1=4"),
    ((1, 3, 1, 4), (12,), "1 f0 1 f1", "f0·f1", "f0=3 f1=4"),
    ((1, 1), (1,), "1 1", "1", ""),
    ((2, 0), (0, 5), "f3 f2", "f1 f0", "f0=5w f1=0w f2=0w f3=2w"),
    ((), (1,), "", "1", ""),
    ((24,), (2, 3, 4), "f0·f1·f2", "f0 f1 f2", "f0=2 f1=3 f2=4"),
    ((6, 4), (4, 6), "f3 f2", "f1 f0", "f0=6w f1=4w f2=4w f3=6w"),
]


def test_shapes_are_written_over_common_loops() -> None:
    for source, target, before, after, factors in REFINED:
        both = refine(source, target)
        assert (dims_text(both.source), dims_text(both.target)) == (before, after)
        assert " ".join(f"{one.name}={one.size}{'w' * (one.role is Role.WHOLE)}" for one in both.factors) == factors


# Counts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "topk", "experts", "slots"),
    [
        (16, 2, 4, 8),  # 2 tokens fill one slot of each
        (16, 1, 1, 16),
        (15, 2, 4, 8),  # 7.5: no even run, so that all 15 are rounded up once
        (12, 2, 8, 3),  # runs of 4 tokens take one slot each
        (6, 2, 8, 2),  # 1.5 rounded up: runs of 2 would take 3 slots, which is too many
        (64, 3, 64, 3),
        (32, 16, 17, 32),  # 32·16/17 and a sixteenth more: just what may be rounded up, token by token
        (32, 15, 16, 30),  # a little too much for one token: runs of 16 take 15
    ],
)
def test_experts_take_the_mean_rounded_up_in_runs(tokens: int, topk: int, experts: int, slots: int) -> None:
    assert dropless_capacity(tokens, topk, experts) == slots


@pytest.mark.parametrize(
    ("attrs", "lead", "capacity", "groups"),
    [
        ({}, (4, 6), 8, (1, 1)),
        ({"groups": 2}, (4, 6), 8, (2, 1)),
        ({"groups": (2, 3)}, (4, 6), 12, (2, 3)),
        ({"groups": 2, "dropless": True}, (4, 6), 8, (2, 1)),
        ({"dropless": True}, (4, 6), 12, (4, 3)),  # 12 slots: four runs of three, and three of one in each
        ({"dropless": True}, (6,), 4, (2,)),
    ],
)
def test_runs_of_tokens_share_slots(
    attrs: dict[str, object], lead: tuple[int, ...], capacity: int, groups: tuple[int, ...]
) -> None:
    assert routing_groups(attrs, lead, capacity) == groups  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "attrs", "elements"),
    [("sum", {}, 24), ("sum", {"dim": 1}, 3), ("mean", {"dim": (0, -1)}, 8), ("sum", {"dim": -3}, 2)],
)
def test_elements_behind_one_result_are_counted(kind: str, attrs: dict[str, int], elements: int) -> None:
    assert count(sample(kind, "f32[2, 3, 4]", **attrs)) == elements


def test_dtypes_without_operands_are_those_of_numbers() -> None:
    assert [promoted((), *scalars) for scalars in ((), (True,), (2,), (2.5,), (2, 2.5), ("x",))] == [
        "f32", "f32", "i64", "f32", "f32", "f32",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "end", "step", "extent"),
    [(0, 5, 1, 5), (1, 6, 2, 3), (6, 1, -2, 3), (5, 5, 1, 0), (5, 1, 1, 0), (0.0, 1.0, 0.3, 4)],
)
def test_a_range_is_as_long_as_pythons(start: float, end: float, step: float, extent: int) -> None:
    assert infer(sample("arange", "", start=start, end=end, step=step)).types[0].shape == (extent,)


def test_a_range_starts_at_zero_by_ones() -> None:
    (found,) = infer(sample("arange", "", end=5)).types
    assert (found.shape, found.dtype) == ((5,), "i64")
    assert infer(sample("arange", "")).types[0].shape == (0,)


# Refused -------------------------------------------------------------------------------------------------------------

QKV = ("f32[2, 6, 5, 4]", "f32[2, 2, 7, 4]", "f32[2, 2, 7, 3]")


@pytest.mark.parametrize(
    "signature",
    [
        sample("attention", f"{QKV[0]} {QKV[1]} f32[2, 2, 8, 3]"),  # other positions of values
        sample("attention", f"{QKV[0]} f32[3, 2, 7, 4] f32[3, 2, 7, 3]"),  # another batch
        sample("attention", f"{QKV[0]} f32[2, 2, 7, 5] {QKV[2]}"),  # another width
        sample("attention", f"{QKV[0]} f32[2, 4, 7, 4] f32[2, 4, 7, 3]"),  # 4 heads do not divide 6
        sample("attention", f"{' '.join(QKV)} f32[6, 5, 7]"),
        sample("attention", f"{' '.join(QKV)} f32[2, 6, 5, 5]"),
        sample("conv1d", "f32[2, 4, 7] f32[4, 4, 1]", groups=2),
        sample("conv_transpose1d", "f32[2, 4, 7] f32[6, 4, 1]"),
        sample("slice", "f32[4]", dim=1, end=2),
        sample("slice", "f32[4]", dim=-2, end=2),
        sample("slice", "f32[4]", dim=0),
        sample("sum", "f32[4]", dim=1),
        sample("sum", "f32[4]", dim=-2),
        sample("sum", "f32[4]", dim=(0, 5)),
        sample("expand", "f32[4, 2]", shape=(2,)),
        sample("expand", "f32[4, 2]", shape=(4, 4)),
        sample("split", "f32[4]", dim=0, sizes=(4, 0)),
        sample("split", "f32[4]", dim=0, sizes=(2, 3)),
        sample("permute", "f32[4, 2]", perm=(0, 2)),
        sample("cat", "f32[4, 2] f32[4, 3]", dim=0),
        sample("add", "f32[2, 3] f32[3, 3]"),
        sample("grouped_linear", "f32[3, 2, 4] f32[2, 5, 4]"),
        sample("grouped_linear", "f32[3, 2, 4] f32[3, 5, 3]"),
        sample("grouped_mm", "f32[6, 3] f32[2, 3, 5] i32[3]"),
        sample("grouped_mm", "f32[6, 3] f32[2, 4, 5] i32[2]"),
        sample("einsum", "f32[2, 3] f32[3, 2]", equation="ab,bc"),
        sample("einsum", "f32[2, 3]", equation="ab->a"),
        sample("einsum", "f32[2, 3] f32[3, 2]", equation="ab,bcd->ac"),
        sample("einsum", "f32[2, 3] f32[3, 2]", equation="ab,bβ->aβ"),
        sample("dispatch", "f32[6, 4] i64[6, 3]", num_experts=5, capacity=8, groups=4),  # tokens do not divide
        sample("dispatch", "f32[6, 4] i64[6, 3]", num_experts=5, capacity=8, groups=3),  # slots do not divide
        sample("dispatch", "f32[6, 4] i64[6, 3]", num_experts=5, capacity=8, groups=(2, 1)),
        sample("nll_loss", "f32[2, 3, 5] i64[2]"),
        sample("layer_norm", "f32[2, 3] f32[2]"),
        sample("layer_norm", "f32[2, 3] f32[3] f32[2]"),
        sample("matmul", "f32[2, 3] f32[2, 3]"),
    ],
    ids=str,
)
def test_operands_that_do_not_meet_are_refused(signature: Signature) -> None:
    with pytest.raises(BadOperand) as caught:
        infer(signature)
    assert "its rule cannot take" not in str(caught.value)
    assert caught.value.fix


# Expansions ----------------------------------------------------------------------------------------------------------


def written(signature: Signature) -> list[str]:
    """Every operator of an expansion: its name, operands, attributes, and the loops that are carried over."""
    made = expand(signature)
    return [
        f"{op.name}({', '.join(op.operands)}{''.join(f', {key}={value}' for key, value in op.attrs)})"
        f"{' no_grad' * op.no_grad} {' '.join(f'{outer}>{inner}' for outer, inner in chosen)}".rstrip()
        for op, chosen in zip(made.graph.ops, made.choices, strict=True)
    ]


def test_cross_entropy_is_written_as_a_maximum_a_sum_and_the_score_of_the_label() -> None:
    """As Megatron's over a vocabulary that is cut: three reductions over v, then the mean over labels that count."""
    signature = sample("cross_entropy", "f32[4, 8] i64[4]")
    assert written(signature) == [
        "amax0(0, dim=1, keepdim=True) no_grad d0>d0 v>d1",
        "sub1(0, amax0) d0>d0 v>d1",
        "exp2(sub1) d0>d0 v>d1",
        "sum3(exp2, dim=1) d0>d0 v>d1",
        "log4(sum3) d0>d0",
        "eq5(1, scalar=-100) no_grad d0>d0",
        "masked_fill6(1, eq5, scalar=0) no_grad d0>d0",
        "view7(masked_fill6, shape=(4, 1)) no_grad d0>f0",
        "gather8(sub1, view7, dim=1) d0>d0 v>v",
        "view9(gather8, shape=(4,)) d0>f0",
        "sub10(log4, view9) d0>d0",
        "ne11(1, scalar=-100) no_grad d0>d0",
        "cast12(ne11, dtype=f32) no_grad d0>d0",
        "sum13(cast12) no_grad d0>d0",
        "div14(cast12, sum13) no_grad d0>d0",
        "mul15(sub10, div14) d0>d0",
        "sum16(mul15) d0>d0",
    ]


def test_a_sum_of_negative_scores_divides_by_nothing() -> None:
    assert written(sample("nll_loss", "f32[2, 3, 8] i64[2, 3]", reduction="sum", ignore_index=7))[-6:] == [
        "view4(gather3, shape=(2, 3)) d0>f0 d1>f1",
        "neg5(view4) d0>d0 d1>d1",
        "ne6(1, scalar=7) no_grad d0>d0 d1>d1",
        "cast7(ne6, dtype=f32) no_grad d0>d0 d1>d1",
        "mul8(neg5, cast7) d0>d0 d1>d1",
        "sum9(mul8) d0>d0 d1>d1",
    ]
    each = expand(sample("nll_loss", "f32[2, 8] i64[2]", reduction="none")).graph
    assert each.outputs == ("mul8",)


def test_batch_norm_is_written_with_its_moments_and_running_statistics() -> None:
    """Of 2·5 = 10 values a channel: the running variance is the one without bias, 10/9 as large; a tenth is new."""
    signature = sample("batch_norm", "f32[2, 3, 5] f32[3] f32[3] f32[3] f32[3]", momentum=0.25, eps=0.5)
    assert written(signature) == [
        "batch_moments0(0) n>n c>c s0>s0",
        "batch_normalize1(0, batch_moments0, 1, 2, eps=0.5) n>n c>c s0>s0",
        "select2(batch_moments0, dim=0, index=0) no_grad c>d1",
        "select3(batch_moments0, dim=0, index=1) no_grad c>d1",
        "mul4(select2, select2) no_grad c>d0",
        "sub5(select3, mul4) no_grad c>d0",
        "cast6(select2, dtype=f32) no_grad c>d0",
        "mul7(3, scalar=0.75) no_grad c>d0",
        "mul8(cast6, scalar=0.25) no_grad c>d0",
        "add9(mul7, mul8) no_grad c>d0",
        "cast10(sub5, dtype=f32) no_grad c>d0",
        "mul11(4, scalar=0.75) no_grad c>d0",
        f"mul12(cast10, scalar={0.25 * (10 / 9)}) no_grad c>d0",
        "add13(mul11, mul12) no_grad c>d0",
    ]
    assert expand(signature).graph.outputs == ("batch_normalize1", "add9", "add13")
    usual = written(sample("batch_norm", "f32[1, 3] f32[3] f32[3] f32[3] f32[3]"))
    assert usual[1] == "batch_normalize1(0, batch_moments0, 1, 2, eps=1e-05) n>n c>c"
    # Of a single value there is no variance to put right: the factor stays 1.
    assert [line.split(" ")[1] for line in usual if line.startswith("mul") and "scalar" in line] == [
        "scalar=0.9)", "scalar=0.1)", "scalar=0.9)", "scalar=0.1)",
    ]  # fmt: skip
