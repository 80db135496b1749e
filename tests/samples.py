"""One or more small signatures of every kind, and tensors for them.

Extents that a mesh axis may split divide by four, the positions of ring attention by eight. `SAMPLES[kind]` is the list
that tests run over: a new kind without a sample fails the completeness test.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, prod

import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, OPAQUE
from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules import Signature

_TYPE = re.compile(r"(\w+)\[([\d, ]*)\]")

OPAQUE["test::turn"] = lambda operands, attrs: (operands[0].flip(-1) * 2,)
OPAQUE["test::mix"] = lambda operands, attrs: (operands[0] * operands[1].repeat(2), operands[0].sum(0))


def types(text: str) -> tuple[Type, ...]:
    """Types from text: "f32[4, 8] i64[4]"."""
    return tuple(
        Type(tuple(int(extent) for extent in shape.split(",") if extent.strip()), dtype)
        for dtype, shape in _TYPE.findall(text)
    )


def sample(kind: str, operands: str, **attrs: Attr) -> Signature:
    return Signature(kind, types(operands), tuple(sorted(attrs.items())))


def _each(kinds: str, *operands: str, **attrs: Attr) -> list[Signature]:
    return [sample(kind, text, **attrs) for kind in kinds.split() for text in operands]


def _named(name: str, *arguments: Attr) -> dict[str, Attr]:
    """An elementwise operator of the framework, called with these arguments."""
    call = tuple(("", argument) for argument in arguments)
    return {"target": f"aten::{name}", "overload": "default", "call": call, "dtypes": ("f32",)}


_LIST = [
    *_each(
        "neg copy abs relu relu6 silu gelu elu leaky_relu hardswish hardsigmoid mish softplus log_sigmoid exp expm1 "
        "sqrt rsqrt reciprocal tanh sigmoid log log2 log1p sin cos erf sign floor ceil round logical_not isnan isinf "
        "tril triu zeros_like ones_like",
        "f32[4, 8]",
    ),
    sample("gelu", "bf16[4, 1, 8]", approximate="tanh"),
    sample("elu", "f32[4, 8]", alpha=0.5),
    sample("leaky_relu", "f32[8]", negative_slope=0.2),
    sample("clamp", "f32[4, 8]", min=-0.5, max=0.5),
    sample("clamp", "f32[4, 8]", min=0.0),
    sample("tril", "f32[2, 4, 8]", diagonal=1),
    sample("triu", "f32[4, 4]", diagonal=-1),
    sample("bitwise_not", "bool[4, 8]"),
    sample("cast", "f32[4, 8]", dtype="bf16"),
    sample("cast", "bool[4, 8]", dtype="f32"),
    sample("cast", "f32[4]", dtype="i64"),
    sample("dropout", "f32[4, 8]", p=0.0),
    sample("full_like", "f32[4, 8]", value=3.0),
    sample("zeros_like", "f32[4]", dtype="i64"),
    *_each("add sub mul div maximum minimum atan2", "f32[4, 8] f32[4, 8]", "f32[4, 1, 8] f32[4, 8]", "f32[4, 8] f32[]"),
    *_each("add sub mul div", "f32[4, 8] f32[8]", "bf16[4, 8] f32[4, 1]"),
    *_each("add sub mul div pow maximum", "f32[4, 8]", scalar=1.5),
    *_each("sub div pow", "f32[4, 8]", scalar=2.0, reverse=True),
    *_each("add sub", "f32[4, 8] f32[4, 8]", alpha=0.5),
    sample("add", "i64[4, 8]", scalar=1),
    sample("add", "i64[]", scalar=1),
    sample("div", "i64[4, 8]", scalar=2),
    sample("div", "f32[4, 8] f32[8]", rounding="floor"),
    sample("pow", "f32[4, 8]", scalar=2),
    sample("pow", "f32[4, 8]", scalar=3.0),
    sample("pow", "f32[4, 8] f32[4, 8]"),
    *_each("remainder fmod", "f32[4, 8]", scalar=0.7),
    *_each("remainder fmod", "f32[4, 8] f32[8]"),
    *_each("eq ne lt le gt ge", "i64[4, 8] i64[8]", "f32[4, 8] f32[4, 1]"),
    *_each("eq ne lt le gt ge", "f32[4, 8]", scalar=0.5),
    *_each("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", "bool[4, 8] bool[8]"),
    sample("where", "bool[4, 8] f32[4, 8] f32[8]"),
    sample("where", "bool[4, 1] f32[4, 8]", scalar=0.0),
    sample("where", "bool[4, 8] f32[4, 8]", scalar=-2.0, reverse=True),
    sample("where", "bool[4, 8]", scalar=0.0, other=-1.0),
    sample("masked_fill", "f32[4, 8] bool[4, 8]", scalar=0),
    sample("masked_fill", "f32[4, 8] bool[8]", scalar=-2.0),
    sample("masked_fill", "f32[4, 8] bool[4, 1] f32[]"),
    # movement
    sample("view", "f32[4, 8, 8]", shape=(4, 8, 4, 2)),
    sample("view", "f32[4, 8, 4, 4]", shape=(4, 8, 16)),
    sample("view", "f32[4, 8]", shape=(1, 4, 1, 8)),
    sample("view", "f32[4, 8, 8]", shape=(32, 8)),
    sample("view", "f32[8, 6]", shape=(12, 4)),
    sample("view", "f32[4, 6]", shape=(8, 3)),
    sample("view", "f32[16, 4]", shape=(4, 16)),
    sample("view", "f32[1]", shape=()),
    sample("permute", "f32[4, 8, 1]", perm=(2, 0, 1)),
    sample("expand", "f32[4, 1, 8]", shape=(4, 4, 8)),
    sample("expand", "f32[8]", shape=(4, 1, 8)),
    sample("slice", "f32[4, 8]", dim=-1, start=0, end=4),
    sample("slice", "f32[4, 8]", dim=1, start=1, end=8, step=2),
    sample("slice", "f32[4, 8]", dim=0, start=0, end=4),
    sample("select", "f32[4, 8]", dim=1, index=-1),
    sample("split", "f32[4, 24]", dim=-1, sizes=(8, 8, 8)),
    sample("split", "f32[16, 4]", dim=0, sizes=(8, 4, 4)),
    sample("cat", "f32[4, 8] f32[4, 8]", dim=-1),
    sample("cat", "f32[4, 8, 4] f32[4, 4, 4]", dim=1),
    sample("stack", "f32[4, 8] f32[4, 8]", dim=-1),
    sample("flip", "f32[4, 8]", dims=(1,)),
    sample("roll", "f32[4, 8]", dims=(0,), shifts=(1,)),
    sample("pad", "f32[4, 8]", pad=(1, 2)),
    sample("pad", "f32[4, 8, 4]", pad=(0, 0, 2, 1), value=1.5),
    sample("gather", "f32[4, 8] i64[4, 4]", dim=1),
    sample("gather", "f32[4, 8, 4] i64[4, 1, 2]", dim=1),
    sample("index_select", "f32[4, 8] i64[4]", dim=1),
    sample("scatter", "f32[4, 8] i64[4, 2]", dim=1, scalar=1.0),
    sample("scatter", "f32[4, 8] i64[4, 2]", dim=1, scalar=0),
    sample("scatter", "f32[4, 8] i64[4, 4] f32[4, 4]", dim=1),
    sample("scatter_add", "f32[4, 8] i64[4, 4] f32[4, 4]", dim=1),
    # reductions
    *_each("sum mean amax amin var std logsumexp norm", "f32[4, 8]", "f32[4, 1, 8]", dim=-1),
    *_each("sum mean amax amin var std logsumexp norm", "f32[4, 8, 4]", dim=(0, 2), keepdim=True),
    *_each("sum mean amax", "f32[4, 8]", "f32[]"),
    sample("sum", "bool[4, 8]", dim=0),
    sample("sum", "bf16[4, 8]", dim=0, dtype="f32"),
    *_each("prod any all argmax argmin max min", "f32[4, 8]", dim=1, keepdim=True),
    *_each("prod argmax", "f32[4, 8]"),
    *_each("any all", "bool[4, 8]", dim=0),
    *_each("norm", "f32[4, 8, 4]", dim=(0, 2), p=1),
    *_each("norm", "f32[4, 8, 4]", dim=(1,), p=3.0),
    *_each("norm", "f32[4, 8, 4]", dim=(1,), p=inf),
    *_each("softmax log_softmax cumsum cumprod logcumsumexp", "f32[4, 8]", dim=-1),
    *_each("softmax log_softmax", "bf16[4, 8]", dim=0, dtype="f32"),
    sample("topk", "f32[4, 8]", k=2, dim=-1),
    *_each("sort argsort", "f32[4, 8]", dim=-1, descending=True),
    # products
    sample("linear", "f32[4, 8, 16] f32[4, 16]"),
    sample("linear", "f32[4, 8, 16] f32[4, 16] f32[4]"),
    sample("linear", "f32[8, 4] f32[4, 16] f32[16]", transposed=True),
    sample("grouped_linear", "f32[4, 8, 4] f32[4, 8, 4]"),
    sample("grouped_linear", "f32[4, 8, 4] f32[4, 4, 8] f32[4, 8]", transposed=True),
    sample("matmul", "f32[4, 8, 4] f32[4, 4, 8]"),
    sample("matmul", "f32[4, 8, 4] f32[4, 8]"),
    sample("matmul", "f32[4, 4, 8, 4] f32[4, 4, 4, 8]"),
    sample("matmul", "f32[4, 8] f32[8]"),
    sample("bmm", "f32[4, 8, 4] f32[4, 4, 8]"),
    sample("einsum", "f32[4, 8, 4] f32[4, 4, 8]", equation="bsk,bkn->bns"),
    sample("einsum", "f32[4, 8, 4] f32[8, 4]", equation="bsk,nk->bsn"),
    sample("grouped_mm", "f32[8, 8] f32[4, 8, 8] i32[4]"),
    # norms
    sample("layer_norm", "f32[4, 8, 16] f32[16] f32[16]", eps=1e-5),
    sample("layer_norm", "f32[4, 8, 16] f32[16]", eps=1e-5),
    sample("layer_norm", "f32[4, 8, 16]", normalized_shape=(8, 16)),
    sample("rms_norm", "f32[4, 8, 16] f32[16]", eps=1e-6),
    sample("rms_norm", "f32[4, 8, 16]", eps=1e-6),
    sample("group_norm", "f32[4, 16, 4, 2] f32[16] f32[16]", groups=4),
    sample("group_norm", "f32[4, 16, 8]", groups=4),
    sample("batch_norm", "f32[4, 4, 4, 4] f32[4] f32[4] f32[4] f32[4]", training=True, momentum=0.1, eps=1e-5),
    sample("batch_norm", "f32[4, 8] f32[8] f32[8] f32[8] f32[8]", training=True),
    sample("batch_norm", "f32[4, 4, 8] f32[4] f32[4] f32[4] f32[4]", training=False),
    sample("batch_moments", "f32[4, 4, 4, 4]"),
    sample("batch_normalize", "f32[4, 4, 4, 4] f64[2, 4] f32[4] f32[4]", eps=1e-5),
    # attention
    *(
        sample("attention", "f32[4, 4, 8, 8] f32[4, 4, 8, 8] f32[4, 4, 8, 8]", mask=mask, width=width, scale=0.3)
        for mask, width in (("full", 0), ("causal", 0), ("window", 3), ("band", 3), ("chunk", 4))
    ),
    sample("attention", "f32[4, 16, 8, 8] f32[4, 4, 8, 8] f32[4, 4, 8, 8]", mask="causal", width=0, scale=0.3),
    sample("attention", "f32[4, 4, 8, 12] f32[4, 4, 8, 12] f32[4, 4, 8, 8]", mask="causal", width=0, scale=0.3),
    sample("attention", "f32[4, 4, 8, 8] f32[4, 4, 16, 8] f32[4, 4, 16, 8]", mask="full", width=0, scale=0.3),
    sample("attention", "f32[4, 4, 8, 8] f32[4, 4, 8, 8] f32[4, 4, 8, 8] f32[1, 4, 8, 8]", mask="full", scale=1.0),
    sample("attention", "f32[4, 4, 8, 8] f32[4, 4, 8, 8] f32[4, 4, 8, 8] f32[1, 4, 8, 8]", mask="causal", scale=1.0),
    # tables, experts
    sample("embedding", "f32[16, 8] i64[4, 8]"),
    sample("embedding", "f32[16, 8] i64[4]", padding_idx=0),
    sample("dispatch", "f32[16, 4] i64[16, 2]", num_experts=4, capacity=16, groups=4),
    sample("dispatch", "f32[16, 4] i64[16, 2]", num_experts=4, capacity=8, groups=4),
    sample("dispatch", "f32[16, 4] i64[16, 2]", num_experts=4, capacity=8, dropless=True),
    sample("dispatch", "f32[4, 8, 4] i64[4, 8, 2]", num_experts=4, capacity=32, groups=(4, 4)),
    sample("dispatch", "f32[4, 8, 4] i64[4, 8, 2]", num_experts=4, capacity=16, groups=(4, 4)),
    sample("combine", "f32[4, 16, 4] i64[4, 8, 2] f32[4, 8, 2]", capacity=16, groups=(4, 4)),
    sample("combine", "f32[4, 16, 4] i64[16, 2] f32[16, 2]", capacity=16, groups=4),
    sample("combine", "f32[4, 8, 4] i64[16, 2] f32[16, 2]", capacity=8, groups=4),
    sample("combine", "f32[4, 16, 4] i64[4, 8, 2] f32[4, 8, 2]", capacity=16, dropless=True),
    # losses
    *_each("cross_entropy nll_loss", "f32[8, 16] i64[8]", ignore_index=-100, reduction="mean"),
    *_each("cross_entropy nll_loss", "f32[4, 8, 16] i64[4, 8]", ignore_index=3, reduction="sum"),
    *_each("cross_entropy nll_loss", "f32[8, 16] i64[8]", reduction="none"),
    sample("cross_entropy", "f32[4, 8, 16] i64[4, 8]", label_smoothing=0.1),
    *_each("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div", "f32[4, 8] f32[4, 8]"),
    *_each("binary_cross_entropy_with_logits", "f32[4, 8] f32[4, 8]"),
    *_each("mse_loss binary_cross_entropy_with_logits", "f32[4, 8] f32[4, 8]", reduction="none"),
    sample("mse_loss", "f32[4, 8] f32[4, 8]", reduction="sum"),
    sample("kl_div", "f32[4, 8] f32[4, 8]", log_target=True),
    # convolutions
    sample("conv1d", "f32[4, 4, 8] f32[8, 4, 3] f32[8]", padding=(1,)),
    sample("conv2d", "f32[4, 4, 8, 8] f32[8, 4, 3, 3] f32[8]", padding=(1, 1), stride=(2, 2)),
    sample("conv2d", "f32[4, 4, 4, 4] f32[8, 4, 1, 1]"),
    sample("conv2d", "f32[4, 16, 4, 4] f32[16, 4, 3, 3]", padding=1, groups=4),
    sample("conv3d", "f32[4, 4, 4, 4, 4] f32[4, 4, 3, 3, 3]", padding=1),
    sample("conv_transpose1d", "f32[4, 4, 8] f32[4, 8, 2]", stride=(2,)),
    sample("conv_transpose2d", "f32[4, 4, 4, 4] f32[4, 8, 2, 2] f32[8]", stride=(2, 2)),
    sample("conv_transpose2d", "f32[4, 4, 4, 4] f32[4, 8, 3, 3]", stride=2, padding=1, output_padding=1),
    sample("conv_transpose3d", "f32[4, 4, 2, 2, 2] f32[4, 4, 2, 2, 2]", stride=2),
    *_each("max_pool1d avg_pool1d", "f32[4, 4, 8]", kernel=(2,)),
    *_each("max_pool2d avg_pool2d", "f32[4, 4, 8, 8]", kernel=(2, 2), stride=(2, 2)),
    *_each("max_pool2d avg_pool2d", "f32[4, 4, 7, 7]", kernel=3, stride=2, padding=1, ceil_mode=True),
    *_each("max_pool3d avg_pool3d", "f32[4, 4, 4, 4, 4]", kernel=2),
    sample("adaptive_avg_pool2d", "f32[4, 4, 8, 8]", output_size=(2, 2)),
    sample("upsample", "f32[4, 4, 4, 4]", size=(8, 8), mode="nearest"),
    sample("upsample", "f32[4, 4, 4, 4]", size=(8, 8), mode="bilinear"),
    sample("upsample", "f32[4, 4, 4, 4]", size=(6, 6), mode="bilinear", align_corners=True),
    sample("upsample", "f32[4, 4, 4]", size=(6,), mode="linear", scales=(1.6,)),
    sample("avg_pool2d", "f32[4, 4, 8, 8]", kernel=3, padding=1, count_include_pad=False),
    # constants, unknowns
    sample("constant", "", shape=(4, 8), dtype="f32", law="cos"),
    sample("full", "", shape=(4, 8), value=2.5, dtype="f32"),
    *_each("zeros ones", "", shape=(4, 8), dtype="bf16"),
    sample("arange", "", start=0, end=8, step=1, dtype="i64"),
    sample("arange", "", start=1.0, end=3.0, step=0.5, dtype="f32"),
    sample("one_hot", "i64[4, 4]", num_classes=8),
    sample("pointwise", "f32[4, 8]", **_named("hardtanh", ("tensor", 0), -0.5, 0.5)),
    sample("pointwise", "f32[4, 8] f32[8]", **_named("logaddexp", ("tensor", 0), ("tensor", 1))),
    sample("opaque", "f64[4, 8]", types=("f64[4, 8]",), target="test::turn"),
]

SAMPLES: dict[str, list[Signature]] = {}
for _signature in _LIST:
    SAMPLES.setdefault(_signature.kind, []).append(_signature)


def _widened(key: str, value: Attr) -> Attr:
    if key == "dtypes" and isinstance(value, tuple):
        return tuple(map(_wide, value))
    return _wide(value) if key == "dtype" else value


def exact(signature: Signature) -> Signature:
    """The same in fp64, for comparisons to rounding."""
    return replace(
        signature,
        operands=tuple(Type(type_.shape, _wide(type_.dtype)) for type_ in signature.operands),
        attrs=tuple((key, _widened(key, value)) for key, value in signature.attrs),
    )


def _wide(dtype: Attr) -> str:
    return "f64" if Type((), str(dtype)).floating else str(dtype)


_POSITIVE = {"log", "log2", "log1p", "sqrt", "rsqrt", "pow", "reciprocal", "prod", "div"}


def _index_bound(signature: Signature, index: int) -> int:
    """Index operands stay below this."""
    first = signature.operands[0].shape
    if signature.kind in ("gather", "index_select", "scatter", "scatter_add"):
        return first[signature.axis()]
    if signature.kind in ("cross_entropy", "nll_loss"):
        return first[-1]
    return {"embedding": first[:1], "one_hot": (8,), "dispatch": (4,), "combine": first[:1]}.get(signature.kind, (4,))[
        0
    ]


def _integers(signature: Signature, index: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    bound = _index_bound(signature, index)
    if signature.kind == "grouped_mm":
        return torch.tensor([2, 2, 5, 8])
    if signature.kind in ("dispatch", "combine", "scatter", "scatter_add"):
        rows = [torch.randperm(bound, generator=random)[: shape[-1]] for _ in range(prod(shape[:-1]))]
        return torch.stack(rows).view(shape)
    least = -bound if signature.kind == "index_select" else 0
    found = torch.randint(least, bound, shape, generator=random)
    if signature.kind in ("cross_entropy", "nll_loss"):
        found.view(-1)[0] = signature.integer("ignore_index", -100)
    return found


def tensors(signature: Signature, seed: int = 0) -> tuple[Tensor, ...]:
    """Random operands that the kind accepts."""
    random = torch.Generator().manual_seed(seed)

    def one(index: int, type_: Type) -> Tensor:
        if type_.dtype == "bool":
            return torch.rand(type_.shape, generator=random) < 0.6
        if not type_.floating:
            return _integers(signature, index, type_.shape, random).to(DTYPES[type_.dtype])
        return _floats(signature, index, torch.randn(type_.shape, generator=random, dtype=torch.float64)).to(
            DTYPES[type_.dtype]
        )

    return tuple(one(index, type_) for index, type_ in enumerate(signature.operands))


def _floats(signature: Signature, index: int, values: Tensor) -> Tensor:
    if signature.kind in _POSITIVE or (signature.kind == "batch_norm" and index == 4):
        return values.abs() + 0.5
    if signature.kind == "batch_normalize" and index == 1:  # a mean square is no less than the square of the mean
        return torch.stack((values[0], values[0].square() + values[1].abs() + 0.5))
    if signature.kind == "kl_div" and index == 1 and not signature.attr("log_target"):
        return values.abs()
    if signature.kind == "binary_cross_entropy":
        return values.sigmoid()
    return values
