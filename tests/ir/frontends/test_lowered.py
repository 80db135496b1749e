"""What single calls are lowered to: kinds, attributes and shapes; masks become laws, flattened operators are lifted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.errors import SequenceTooLong
from meshwright.ir.frontends.folding.handles import Traced
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing.export import trace
from meshwright.ir.graph.graph import Op

Body = Callable[["Net", Tensor], Tensor]
BOOL = torch.bool


class Config:
    """As models of Hugging Face have one."""

    _attn_implementation = "sdpa"


class Net(nn.Module):
    """Some parameters, and a body that is given x [2, 3, 4]."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.w = nn.Parameter(torch.empty(4, 4))
        self.wide = nn.Parameter(torch.empty(6, 4))
        self.experts = nn.Parameter(torch.empty(3, 4, 5))
        self.v = nn.Parameter(torch.empty(4))
        self.table = nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x * self.v)


def traced(body: Body, *, hugging_face: bool = False) -> Traced:
    with torch.device("meta"):
        net, x = Net(body), torch.empty(2, 3, 4)
    if hugging_face:
        net.config = Config()  # type: ignore[assignment]
    hooks = Hooks(lambda b, s: {"x": x}, lambda outputs, _: outputs.sum())
    with torch.device("meta"):
        return trace(TorchSource(net, hooks, "Net"), {"x": x})


def told(op: Op, shape: tuple[int, ...]) -> str:
    """As `kind(operands) {attributes} -> shape`, with & before a view."""
    attrs = ", ".join(f"{name}={value}" for name, value in op.attrs)
    return f"{'&' * (op.alias is not None)}{op.kind}({', '.join(op.operands)}) {{{attrs}}} {list(shape)}"


def lines(body: Body, **more: Any) -> list[str]:
    """All operators between the product that x is made by and the sum that is the loss."""
    graph = traced(body, **more).graph
    found = [told(op, graph.types[op.name].shape) for op in graph.ops if op.kind != "constant"]
    assert found[0].startswith("mul(x, p.v)")
    assert found[-1].startswith("sum(")
    return found[1:-1]


LOWERED: Mapping[str, tuple[Body, list[str]]] = {
    "a linear layer": (lambda n, x: F.linear(x, n.w), ["linear(mul, p.w) {} [2, 3, 4]"]),
    "one of flattened tokens": (
        lambda n, x: F.linear(x.view(6, 4), n.w, n.v).view(2, 3, 4),
        ["linear(mul, p.w, p.v) {} [2, 3, 4]"],
    ),
    "one with its weight the other way": (lambda n, x: x @ n.w, ["linear(mul, p.w) {transposed=True} [2, 3, 4]"]),
    "one with its weight turned": (lambda n, x: x @ n.wide.t(), ["linear(mul, p.wide) {} [2, 3, 6]"]),
    "a layer for each expert": (
        lambda n, x: torch.bmm(x.view(1, 6, 4).expand(3, 6, 4), n.experts),
        [
            "&view(mul) {shape=(1, 6, 4)} [1, 6, 4]",
            "&expand(view) {shape=(3, 6, 4)} [3, 6, 4]",
            "grouped_linear(expand, p.experts) {transposed=True} [3, 6, 5]",
        ],
    ),
    "a product of values": (
        lambda n, x: x @ x.mT,
        ["&permute(mul) {perm=(0, 2, 1)} [2, 4, 3]", "matmul(mul, permute) {} [2, 3, 3]"],
    ),
    "a bias first": (
        lambda n, x: torch.addmm(n.v, x.view(6, 4), n.w).view(2, 3, 4),
        ["linear(mul, p.w, p.v) {transposed=True} [2, 3, 4]"],
    ),
    "a bias first, by factors": (
        lambda n, x: torch.addmm(n.v, x.view(6, 4), n.w, beta=2, alpha=3),
        [
            "&view(mul) {shape=(6, 4)} [6, 4]",
            "matmul(view, p.w) {} [6, 4]",
            "mul(matmul) {scalar=3} [6, 4]",
            "mul(p.v) {scalar=2} [4]",
            "add(mul_2, mul_3) {} [6, 4]",
        ],
    ),
    "no bias by a factor of nothing": (
        lambda n, x: torch.addmm(n.v, x.view(6, 4), n.w, beta=0),
        ["&view(mul) {shape=(6, 4)} [6, 4]", "matmul(view, p.w) {} [6, 4]"],
    ),
    "softmax of flattened tokens": (
        lambda n, x: x.view(6, 4).softmax(1).view(2, 3, 4),
        ["softmax(mul) {dim=2} [2, 3, 4]"],
    ),
    "softmax over flattened tokens": (
        lambda n, x: x.view(6, 4).softmax(0).view(2, 3, 4),
        [
            "&view(mul) {shape=(6, 4)} [6, 4]",
            "softmax(view) {dim=0} [6, 4]",
            "&view(softmax) {shape=(2, 3, 4)} [2, 3, 4]",
        ],
    ),
    "a sum of flattened tokens": (
        lambda n, x: x.view(6, 4).sum(1).view(2, 3),
        ["sum(mul) {dim=(2,), keepdim=False} [2, 3]"],
    ),
    "a sum over flattened tokens": (
        lambda n, x: x.view(6, 4).sum((0, 1), keepdim=True),
        ["&view(mul) {shape=(6, 4)} [6, 4]", "sum(view) {dim=(0, 1), keepdim=True} [1, 1]"],
    ),
    "a view of a view": (
        lambda n, x: x.view(3, 8).view(4, 6),
        ["&view(mul) {shape=(4, 6)} [4, 6]"],
    ),
    "a view of flattened tokens": (
        lambda n, x: x.view(6, 4).view(6, 2, 2).relu().view(2, 3, 4),
        [
            "&view(mul) {shape=(2, 3, 2, 2)} [2, 3, 2, 2]",
            "relu(view_2) {} [2, 3, 2, 2]",
            "&view(relu) {shape=(2, 3, 4)} [2, 3, 4]",
        ],
    ),
    "a shape like before": (lambda n, x: x.view(6, 4).view(2, 3, 4).reshape(2, 3, 4).contiguous().expand(2, 3, 4), []),
    "a shape that needs a copy": (
        lambda n, x: x.transpose(1, 2).reshape(2, 12),
        ["&permute(mul) {perm=(0, 2, 1)} [2, 4, 3]", "view(permute) {copy=True, shape=(2, 12)} [2, 12]"],
    ),
    "a copy": (lambda n, x: x.clone(), ["view(mul) {copy=True, shape=(2, 3, 4)} [2, 3, 4]"]),
    "an order": (
        lambda n, x: x.transpose(0, 1).contiguous(),
        ["&permute(mul) {perm=(1, 0, 2)} [3, 2, 4]", "view(permute) {copy=True, shape=(3, 2, 4)} [3, 2, 4]"],
    ),
    "no change of order": (lambda n, x: x.permute(0, 1, 2).transpose(-1, 2), []),
    "the whole slice": (lambda n, x: x[:, 0:3], []),
    "a slice by steps": (
        lambda n, x: x[:, -2:, ::2],
        [
            "&slice(mul) {dim=1, end=3, start=1, step=1} [2, 2, 4]",
            "&slice(slice) {dim=2, end=4, start=0, step=2} [2, 2, 2]",
        ],
    ),
    "an index from the end": (lambda n, x: x[:, -1], ["&select(mul) {dim=1, index=2} [2, 4]"]),
    "one part": (lambda n, x: x.split(4, -1)[0], []),
    "parts": (
        lambda n, x: x.split((1, 3), -1)[1],
        ["&split(mul) {dim=2, sizes=(1, 3)} [2, 3, 1]"],
    ),
    "repeated": (
        lambda n, x: x.repeat_interleave(2, 1),
        [
            "&view(mul) {shape=(2, 3, 1, 4)} [2, 3, 1, 4]",
            "&expand(view) {shape=(2, 3, 2, 4)} [2, 3, 2, 4]",
            "view(expand) {copy=True, shape=(2, 6, 4)} [2, 6, 4]",
        ],
    ),
    "an empty part beside": (
        lambda n, x: torch.cat((x, x[..., 4:]), -1),
        ["view(mul) {copy=True, shape=(2, 3, 4)} [2, 3, 4]"],
    ),
    "put together": (
        lambda n, x: torch.stack((x, x), -2),
        ["&view(mul) {shape=(2, 3, 1, 4)} [2, 3, 1, 4]"] * 2 + ["cat(view, view_2) {dim=2} [2, 3, 2, 4]"],
    ),
    "no dropout": (lambda n, x: F.dropout(x, 0.0) + F.dropout(x, 0.5, training=False), ["add(mul, mul) {} [2, 3, 4]"]),
    "dropout": (lambda n, x: F.dropout(x, 0.25), ["dropout(mul) {p=0.25} [2, 3, 4]"]),
    "a norm": (
        lambda n, x: F.rms_norm(x, (4,), n.v),
        ["rms_norm(mul, p.v) {eps=1.1920928955078125e-07, normalized_shape=(4,)} [2, 3, 4]"],
    ),
    "a norm in half precision": (
        lambda n, x: F.rms_norm(x.bfloat16(), (4,), eps=None),
        ["cast(mul) {dtype=bf16} [2, 3, 4]", "rms_norm(cast) {eps=0.0078125, normalized_shape=(4,)} [2, 3, 4]"],
    ),
    "a norm by its own": (
        lambda n, x: F.layer_norm(x, (4,), None, None, 0.5),
        ["layer_norm(mul) {eps=0.5, normalized_shape=(4,)} [2, 3, 4]"],
    ),
    "other factors": (
        lambda n, x: torch.add(x, n.v, alpha=2) - 3,
        ["mul(p.v) {scalar=2} [4]", "add(mul, mul_2) {} [2, 3, 4]", "sub(add) {scalar=3} [2, 3, 4]"],
    ),
    "a factor of a number": (lambda n, x: torch.add(x, 2, alpha=3), ["add(mul) {scalar=6} [2, 3, 4]"]),
    "a number first": (
        lambda n, x: 2**x,
        ["pow(mul) {reverse=True, scalar=2} [2, 3, 4]"],
    ),
    "a rounded quotient": (
        lambda n, x: torch.div(x, 2, rounding_mode="floor"),
        ["div(mul) {rounding=floor, scalar=2} [2, 3, 4]"],
    ),
    "a table": (
        lambda n, x: n.table(torch.zeros(2, 3, dtype=torch.long)) + x,
        ["embedding(p.table.weight, constant_0) {} [2, 3, 4]", "add(embedding, mul) {} [2, 3, 4]"],
    ),
    "a weighted loss": (
        lambda n, x: F.cross_entropy(x.transpose(1, 2), torch.zeros(2, 3, dtype=torch.long), ignore_index=1),
        [
            "&permute(mul) {perm=(0, 2, 1)} [2, 4, 3]",
            "&permute(permute) {perm=(0, 2, 1)} [2, 3, 4]",
            "cross_entropy(permute_2, constant_0) {ignore_index=1, label_smoothing=0.0, reduction=mean} []",
        ],
    ),
}


def test_what_a_call_becomes() -> None:
    for name, (body, wanted) in LOWERED.items():
        assert lines(body) == wanted, name


Mask = Callable[[Tensor], Tensor | None]


def attended(*calls: tuple[Mask, Mapping[str, Any]], hugging_face: bool = False) -> list[Op]:
    """The attentions of two heads of 4, of 8 tokens, with these masks; each is given a tensor of one number."""

    def body(n: Net, x: Tensor) -> Tensor:
        q = x[:, :1, None].expand(2, 2, 8, 4).contiguous() * n.w[0]
        made = [F.scaled_dot_product_attention(q, q, q, mask(x.mean()), **more) for mask, more in calls]
        return torch.stack(made)

    return [op for op in traced(body, hugging_face=hugging_face).graph.ops if op.kind == "attention"]


def below(width: int = 99) -> Tensor:
    apart = torch.arange(8)[:, None] - torch.arange(8)
    return (apart >= 0) & (apart < width)


MASKS: Mapping[str, tuple[Callable[[Tensor], Tensor | None], dict[str, Any], int, tuple[str, int, Any]]] = {
    "none": (lambda one: None, {}, 3, ("full", 0, None)),
    "told": (lambda one: None, {"is_causal": True}, 3, ("causal", 0, None)),
    "causal": (lambda one: below(), {}, 3, ("causal", 0, (8, 8))),
    "of numbers": (
        lambda one: torch.zeros(8, 8).masked_fill(~below(), float("-inf")),
        {},
        3,
        ("causal", 0, (8, 8)),
    ),
    "a window": (lambda one: below(3)[None, None], {}, 3, ("window", 3, (1, 1, 8, 8))),
    "all seen": (lambda one: torch.ones(2, 1, 8, 8, dtype=BOOL), {}, 3, ("full", 0, (2, 1, 8, 8))),
    "no law": (lambda one: below() & (torch.arange(8) != 3), {}, 4, ("full", 0, None)),
    "of values": (lambda one: torch.zeros(8, 8) + one, {}, 4, ("full", 0, None)),
    "a choice of values": (
        lambda one: torch.where(below(), torch.zeros(8, 8) + one, -1e9),
        {},
        4,
        ("causal", 0, None),
    ),
    "a choice of values in a window": (
        lambda one: torch.where(below(3), torch.zeros(8, 8) + one, torch.full((1,), -1e4)),
        {},
        4,
        ("window", 3, (8, 8)),
    ),
    "a choice of hardly negative values": (
        lambda one: torch.where(below(), torch.zeros(8, 8) + one, -9e3),
        {},
        4,
        ("full", 0, None),
    ),
    "a choice of a number that is not known": (
        lambda one: torch.where(below(), torch.zeros(8, 8) + one, torch.tensor(-1e9)),
        {},
        4,
        ("full", 0, None),
    ),
    "a choice of another tensor": (
        lambda one: torch.where(below(), torch.zeros(8, 8) + one, torch.zeros(8) - 1e9),
        {},
        4,
        ("full", 0, None),
    ),
}


def test_masks_of_attention() -> None:
    """The law and its width, the operands, and the shape of a mask that is kept beside. What is chosen over a very
    negative number is a bias, hidden where the law says."""
    found = attended(*((mask, more) for mask, more, *_ in MASKS.values()))
    for name, op, (_, _, operands, wanted) in zip(MASKS, found, MASKS.values(), strict=True):
        assert len(op.operands) == operands, name
        assert (op.attr("mask"), op.attr("width"), op.attr("mask_shape")) == wanted, name
        assert (op.attr("scale"), op.attr("dropout")) == (0.5, 0.0)


def test_numbers_of_attention() -> None:
    (op,) = attended((lambda one: None, {"scale": 0.3, "dropout_p": 0.125}))
    assert (op.attr("scale"), op.attr("dropout")) == (0.3, 0.125)


def test_masks_that_hugging_face_makes_for_exports_only() -> None:
    """Booleans that hide nothing or the future are not kept; of numbers under booleans that hide nothing, these are."""
    masks: list[tuple[Mask, tuple[int, ...] | None]] = [
        (lambda one: below(), None),
        (lambda one: torch.ones(8, 8, dtype=BOOL), None),
        (lambda one: below(3), (8, 8)),
        (lambda one: torch.zeros(1, 8, 8).masked_fill(~below(), float("-inf")), (1, 8, 8)),
        (lambda one: torch.where(torch.ones(2, 1, 8, 8, dtype=BOOL), torch.zeros(1, 8, 8), -1e9), (1, 8, 8)),
        (lambda one: torch.where(below(), torch.zeros(1, 1, 1), -1e9), (1, 8, 8)),
    ]
    found = attended(*((mask, {}) for mask, _ in masks), hugging_face=True)
    assert [op.attr("mask_shape") for op in found] == [kept for _, kept in masks]


def grouped(width: int = 4, values: int = 4, times: int = 2, hugging_face: bool = True) -> list[tuple[int, ...]]:
    """The shapes of what attention is given where the heads of keys and values are repeated in two steps."""

    def repeated(x: Tensor) -> Tensor:
        b, h, s, d = x.shape
        return x[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)

    def body(n: Net, x: Tensor) -> Tensor:
        def heads(count: int, size: int) -> Tensor:
            return (x.mean() * torch.ones(2, count, 8, size)) * n.v[0]

        return F.scaled_dot_product_attention(
            heads(2 * times, width), repeated(heads(2, width)), repeated(heads(2, values)), is_causal=True
        )

    graph = traced(body, hugging_face=hugging_face).graph
    (op,) = [op for op in graph.ops if op.kind == "attention"]
    return [graph.types[value].shape for value in op.operands]


def test_hugging_faces_keys_are_taken_before_heads_are_repeated() -> None:
    """By kernels that take heads of the same width for keys and values, of 256 at most."""
    assert grouped() == [(2, 4, 8, 4), (2, 2, 8, 4), (2, 2, 8, 4)]
    assert grouped(times=3) == [(2, 6, 8, 4), (2, 2, 8, 4), (2, 2, 8, 4)]
    assert grouped(width=256, values=256)[1:] == [(2, 2, 8, 256)] * 2
    assert grouped(width=258, values=258)[1:] == [(2, 4, 8, 258)] * 2
    assert grouped(values=2)[1:] == [(2, 4, 8, 4), (2, 4, 8, 2)]
    assert grouped(hugging_face=False)[1:] == [(2, 4, 8, 4)] * 2


@pytest.mark.parametrize(
    "body",
    [
        lambda n, x: F.scaled_dot_product_attention(x, x, x),
        lambda n, x: F.conv1d(x.transpose(1, 2), n.w[..., None], padding="same"),
        lambda n, x: F.pad(x, (1, 1), mode="reflect"),
        lambda n, x: x.index_add(1, torch.zeros(3, dtype=torch.long), x, alpha=2),
        lambda n, x: F.instance_norm(x, x[0, :, 0].detach(), x[0, :, 1].detach(), use_input_stats=False),
    ],
)
def test_what_no_kind_of_ours_says_is_opaque(body: Body) -> None:
    assert "opaque" in [op.kind for op in traced(body).graph.ops]


def test_what_writes_in_place_may_name_its_arguments_otherwise() -> None:
    """`dropout_` calls `self` what `dropout` calls `input`; without chances it passes its operand."""
    for p, kinds in ((0.5, ["dropout"]), (0.0, [])):

        def body(n: Net, x: Tensor, p: float = p) -> Tensor:
            return F.dropout(x * 2, p, inplace=True)

        assert [op.kind for op in traced(body).graph.ops if op.kind == "dropout"] == kinds


def test_rows_that_are_looked_up_must_be_there() -> None:
    """Of eight rows the last one is 7."""
    lines(lambda n, x: n.table(torch.arange(8))[:4] + x.mean())
    with pytest.raises(SequenceTooLong) as caught:
        traced(lambda n, x: n.table(torch.arange(9))[:4] + x.mean())
    assert caught.value.cause == "position 8 is looked up, and the table has a row for each of 8 positions"
    assert caught.value.fix == "give sequences of 8 tokens at most (--seq), or the model a longer table"


def test_autocast_is_not_traced() -> None:
    """It is said; and what is inside is like everything else. What is inside `no_grad` lies outside differentiation."""

    def body(n: Net, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.linear(x, n.w)
        with torch.no_grad():
            z = x.exp()
        return y + z.sin()

    found = traced(body)
    assert [(op.kind, op.no_grad) for op in found.graph.ops[1:-1]] == [
        ("linear", False),
        ("exp", True),
        ("sin", False),
        ("add", False),
    ]
    assert found.notes == ("autocast is not traced: give the model the dtype that it computes in",)


@pytest.mark.parametrize(
    ("body", "added"),
    [
        (lambda net, x: 0 + x.sum(), False),
        (lambda net, x: torch.zeros(()) + x.sum() + torch.zeros(()), False),
        (lambda net, x: x.sum() + torch.ones(()), True),
        (lambda net, x: torch.zeros(4) + x, True),
        (lambda net, x: torch.zeros((), dtype=torch.float64) + x.sum(), True),
    ],
)
def test_a_scalar_and_nothing_is_the_scalar(body: Body, added: bool) -> None:
    kinds = [op.kind for op in traced(body).graph.ops]
    assert ("add" in kinds) == added
