"""Every entry of the ATen table, executed: what a traced function became computes what the function computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.analysis.account import account
from meshwright.ir.frontends.folding.handles import Traced
from meshwright.ir.frontends.torch_.operators.aten import LOWERINGS
from meshwright.ir.frontends.torch_.operators.moe import combine, dispatch
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing.export import trace
from meshwright.ir.graph.graph import Graph
from meshwright.ir.rules import kinds
from meshwright.ir.rules.opaque import register_rule, unregister_rule
from meshwright.ir.verify.graphs import verify_graph
from tests.ir.frontends.run import execute

A = torch.ops.aten
Body = Callable[["Net", Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Some parameters, and a body that is given x [2, 3, 4] and i [2, 3] with values below 4."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.w = nn.Parameter(torch.randn(4, 4))
        self.v = nn.Parameter(torch.randn(4))
        self.experts = nn.Parameter(torch.randn(3, 5, 4))
        self.kernel = nn.Parameter(torch.randn(2, 3, 3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return self.body(self, x * self.v, i)


def image(x: Tensor, dims: int) -> Tensor:
    """[2, 3, 8, …] from x [2, 3, 4]."""
    shape = (2, 3, *(8 for _ in range(dims)))
    return x.repeat_interleave(2, dim=-1).reshape(2, 3, 8, *(1 for _ in range(dims - 1))).expand(shape) * 1.5


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:] = x[:, :-1]
    y[:, 0].mul_(3)
    y.transpose(0, 1).add_(x.transpose(0, 1))
    z = torch.zeros_like(y)
    z[..., :2] = y[..., 2:]
    z[..., 2:] = y[..., :2]
    return z.masked_fill_(z > 3, 0.5).clamp_(min=-4)


def in_place_narrow(x: Tensor) -> Tensor:
    """The sum is of both, and rounded when it is written."""
    narrow = x.bfloat16() * 1.0
    narrow += x
    return narrow.float()


def in_place_parts(n: Net, x: Tensor) -> Tensor:
    """Writes through views: strided, single, of an operator that is made of others, and of one that nobody knows."""
    y = x * 2
    y[..., ::2] = x[..., 1::2]
    y[..., 1::2] += 1
    y[1:, :, ::2] = torch.arange(2.0, dtype=x.dtype)
    steps = torch.ones(2, 3, 4, dtype=x.dtype)
    steps[..., 1::2] = x[..., :2]
    y.narrow(1, 0, 2).mul_(x[:, :2])
    y.movedim(1, 2).add_(x.transpose(1, 2))
    table = torch.zeros(3, 4, dtype=x.dtype)
    position = torch.arange(3.0, dtype=x.dtype)[:, None]
    table[:, 0::2] = torch.sin(position)
    table[:, 1::2] = torch.cos(position)
    return y + table + steps + n.w.mean()


def in_place_gaps(x: Tensor) -> Tensor:
    """Parts of a constant are written; what lies before, between and after them stays."""
    z = torch.ones(2, 7, 4, dtype=x.dtype)
    z[:, 4:6] = x[:, 1:]
    z[:, 1:3].copy_(x[:, :2])
    w = torch.arange(12.0, dtype=x.dtype).view(3, 4)
    w[-2, :] = x[0, 0]
    u = torch.zeros(3, 4, dtype=x.dtype)
    u[:2] = x[0, 1:]
    u[1:] = x[1, :2]
    u[:, 1] = 3
    return z[:, :3] * z[:, 2:5] + z[:, 4:] + w + u + torch.zeros(3, 4, dtype=x.dtype)


def in_place_views(x: Tensor) -> Tensor:
    """Writes through every view that has an inverse."""
    y = x * 2
    y.select(1, -1).mul_(2)
    y.select(-1, 1).neg_()
    y.permute(2, 0, -2).mul_(x.permute(2, 0, 1))
    y[0].t().add_(1)
    y.view(6, 4)[1:4].neg_()
    y.unsqueeze(1).squeeze(1)[..., 1:].flatten(1)[:, 2:5].add_(0.25)
    y.transpose(-1, 0)[3, 1:].sub_(4)
    y[:, -2:-1].mul_(0.125)
    y[:, 0:2][:, 1][..., 2:].add_(x[:, 0, :2])
    return y


def in_place_copies(x: Tensor) -> Tensor:
    """What is written is a copy, where a tensor has to be copied to have another shape, order or dtype; else it is the
    tensor itself."""
    y = x * 2
    y[..., 1:].flatten(1).add_(1)
    y.transpose(0, 1).reshape(3, 8).add_(2)
    y.transpose(0, 1).contiguous().mul_(3)
    y.to(torch.float32).mul_(4)
    y.to(torch.float64, copy=True).mul_(5)
    z = torch.zeros(2, 3, 4, dtype=x.dtype)
    z.transpose(0, 1).reshape(6, 4).add_(x.reshape(6, 4))
    z.reshape(6, 4)[1].add_(x[0, 0])
    kept = y.transpose(0, 1).reshape(3, 8)
    y.flatten(1).add_(6)
    y.reshape(3, 8).add_(7)
    y.contiguous().mul_(1.5)
    y.to(torch.float64).mul_(1.25)
    return y + z + kept.view(3, 2, 4).transpose(0, 1)


def in_place_many(x: Tensor) -> Tensor:
    """Writes through one of several views, which torch does not differentiate; of values and of a constant."""
    y, z = x.detach() * 2, torch.arange(24.0, dtype=x.dtype).view(2, 3, 4)
    for one in (y, z):
        one.split((1, 3), -1)[1].mul_(3)
        one.split(2, -2)[1].sub_(y[:, 1:2])
        one.chunk(2, -1)[0].add_(0.5)
        one.unbind(0)[1].add_(one.unbind(0)[0])
        one.unbind(-2)[2].mul_(1.5)
    return x * y + z


def routed(n: Net, x: Tensor, i: Tensor) -> Tensor:
    tokens, idx = x.flatten(0, 1), i.flatten()[:, None] % 3
    rows = dispatch(tokens, idx, 3, 4)
    y = torch.bmm(torch.bmm(rows, n.experts.transpose(1, 2)), n.experts)
    return combine(y, idx, tokens[:, :1].sigmoid(), 3, 4)


BODIES: Mapping[str, Body] = {
    # products
    "linear": lambda n, x, i: F.linear(x, n.w, n.v) + F.linear(x, n.w),
    "addmm": lambda n, x, i: torch.addmm(n.v, x.view(6, 4), n.w).view(2, 3, 4),
    "mm": lambda n, x, i: (
        torch.mm(x.view(6, 4), n.w) + torch.mm(x.view(6, 4), n.w.t()) + x.view(6, 4).mm(x.view(4, 6)[:, :4])
    ),
    "products and sums": lambda n, x, i: (
        torch.addmm(n.v, x.view(6, 4), x.view(4, 6)[:, :4]).view(2, 3, 4)
        + torch.addmm(n.v, x.view(6, 4), n.w, alpha=2, beta=3).view(2, 3, 4)
        + torch.baddbmm(n.v, x, x.transpose(1, 2) @ x, alpha=0.5)
        + torch.baddbmm(x, x, x.transpose(1, 2) @ x, beta=0)
    ),
    "einsum": lambda n, x, i: (
        torch.einsum("bsd,ed,d->bse", x, n.w, n.v) + torch.einsum("bsd,btd,btd->bsd", x, x, torch.sin(x))
    ),
    "made of others": lambda n, x, i: (
        x.movedim(1, 2).swapaxes(1, 2) * F.one_hot(i, 4).narrow(-1, 0, 4)
        + torch.tile(x, (1, 1, 2))[..., :4]
        + torch.take_along_dim(x, i[..., None], -1)
        + x.square().mT.mT
    ),
    "bmm": lambda n, x, i: torch.bmm(torch.bmm(x, x.transpose(1, 2)), x),
    "matmul": lambda n, x, i: (x @ n.w) @ x.transpose(1, 2) + x @ n.v.view(4, 1),
    "embedding": lambda n, x, i: F.embedding(i, n.w) + F.embedding(i, n.w, padding_idx=2),
    "attention": lambda n, x, i: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], is_causal=True, scale=0.3
    ),
    "attention, masks": lambda n, x, i: sum(
        (
            F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], mask)
            for mask in (
                torch.ones(3, 3, dtype=torch.bool).tril(),
                torch.zeros(3, 3),
                torch.where(torch.ones(3, 3, dtype=torch.bool).tril(), x.mean(), -1e9),
                torch.tensor([[True, False, True], [True, True, False], [False, True, True]]),
                F.linear(x, n.w)[:, None, :, :3],
            )
        ),
        start=x[:, None],
    ),
    "attention, groups": lambda n, x, i: F.scaled_dot_product_attention(
        x.view(2, 3, 2, 2).transpose(1, 2), x[:, None, :, :2], x[:, None, :, 2:], enable_gqa=True
    ),
    "convolutions": lambda n, x, i: (
        F.conv1d(image(x, 1), n.kernel).mean()
        + F.conv2d(image(x, 2), n.kernel[..., None], stride=2, padding=1).mean()
        + F.conv3d(image(x, 3), n.kernel[..., None, None]).mean()
        + F.conv_transpose1d(image(x, 1)[:, :2], n.kernel).mean()
        + F.conv_transpose2d(image(x, 2)[:, :2], n.kernel[..., None], stride=2).mean()
        + F.conv_transpose3d(image(x, 3)[:, :2], n.kernel[..., None, None], output_padding=0).mean()
    ),
    "routed experts": routed,
    # elementwise
    "add": lambda n, x, i: torch.add(x, n.v, alpha=2) + 3 + torch.add(x, 2, alpha=3) + torch.add(x, x > 0, alpha=0.6),
    "sub": lambda n, x, i: torch.sub(x, n.v, alpha=2) - 3 - (1 - x) + torch.rsub(x, n.v),
    "mul": lambda n, x, i: x * n.v * 2.5,
    "div": lambda n, x, i: (
        x / (n.v.abs() + 1) / 3
        + 1 / (x.abs() + 1)
        + torch.div(x * 9, 2, rounding_mode="floor") * x
        + x.detach() * 7 // 2
        + x.detach() * 7 // (n.v.detach().abs() + 1)
        + x % 2
        + x % (n.v.abs() + 1)
    ),
    "pow": lambda n, x, i: (x.abs() + 1) ** 1.5 + (x.abs() + 1) ** n.v + 2.0**x,
    "extrema": lambda n, x, i: (
        torch.maximum(x, n.v) + torch.minimum(x, -n.v) + x.amax(-1, keepdim=True) + x.amin(1, keepdim=True)
    ),
    "comparisons": lambda n, x, i: (
        x
        * (
            (x == n.v) | (x != 0) | (x < n.v) | (x <= 0.5) | (x > n.v) | (x >= -3) | (i[..., None] == 2) | (x <= n.v)
        ).double()
        + ((x < 1) & (x > -1) & (x >= n.v) & (x != n.v)).double()
    ),
    "logic": lambda n, x, i: torch.where(
        torch.logical_and(x > 0, torch.logical_or(x < 1, torch.logical_xor(x > 2, ~(x > 3)))),
        x,
        torch.logical_not(x > 5).double(),
    ),
    "bits": lambda n, x, i: (
        x * torch.bitwise_and(i, 3)[..., None]
        + torch.bitwise_or(i, 1)[..., None]
        + (torch.bitwise_xor(i, i * 2) ^ (i & 3) ^ (i | 1) ^ (i & i) ^ (i | i))[..., None]
    ),
    "functions": lambda n, x, i: sum(
        (
            f(x.abs() + 0.1)
            for f in (
                torch.neg,
                torch.abs,
                torch.exp,
                torch.log,
                torch.log2,
                torch.log1p,
                torch.expm1,
                torch.sqrt,
                torch.rsqrt,
                torch.reciprocal,
                torch.erf,
                torch.sign,
                torch.floor,
                torch.ceil,
                torch.round,
                torch.sin,
                torch.cos,
                torch.tanh,
                torch.sigmoid,
            )
        ),
        start=x,
    ),
    "activations": lambda n, x, i: sum(
        (
            f(x)
            for f in (
                F.relu,
                F.silu,
                F.gelu,
                F.softplus,
                F.elu,
                F.leaky_relu,
                F.hardswish,
                F.hardsigmoid,
                F.relu6,
                F.mish,
                F.logsigmoid,
            )
        ),
        start=F.gelu(x, approximate="tanh"),
    ),
    "clamp": lambda n, x, i: x.clamp(-0.5, 0.5) + x.clamp(min=0) + x.clamp_min(0.1) + x.clamp_max(0.2),
    "three operands": lambda n, x, i: (
        torch.addcmul(x, n.v, x, value=2) + torch.addcdiv(n.v, x, x.abs() + 1) + torch.lerp(n.v, x, 0.3)
    ),
    "dropout": lambda n, x, i: F.dropout(x, 0.0) + F.dropout(x, 0.5, training=False),
    "where": lambda n, x, i: torch.where(x > 0, x, n.v) + torch.where(x > 0, x, 2.0) + torch.where(x > 0, 3.0, x),
    "masked_fill": lambda n, x, i: (
        x.masked_fill(x > 0, -1.0) + x.masked_fill(x > 0, torch.tensor(2.0, dtype=torch.float64))
    ),
    "overloads": lambda n, x, i: (
        A.add.Scalar(x, 2, 3)
        + A.sub.Scalar(x, 2)
        + A.mul.Scalar(x, 2)
        + A.div.Scalar(x, 2)
        + A._to_copy.default(x)
        + A._unsafe_view.default(x, [2, 3, 4])
        + A.alias.default(x)
        + A.to.other(x, n.v)
        + A.bitwise_and.Tensor(i, i)[..., None]
        + A.bitwise_or.Tensor(i, i)[..., None]
        + A.__xor__.Scalar(i, 2)[..., None]
    ),
    # storage and shapes
    "casts": lambda n, x, i: (
        x.to(torch.float32).double() + x.float().type_as(x) + x.to(x) + x.to("cpu") + i[..., None].to(x.dtype)
    ),
    "storage": lambda n, x, i: x.transpose(0, 1).contiguous().transpose(0, 1) + x.clone() + x * x.detach(),
    "views": lambda n, x, i: (
        x.view(6, 4).reshape(2, 12).unflatten(1, (3, 4)).unsqueeze(1).squeeze(1).flatten(1).view_as(x.view(2, 12))
    ),
    "squeezes": lambda n, x, i: x[:, :1].squeeze() + x[:, :1].squeeze(1) + x[:, :1, None].squeeze((1, 2)),
    "ones that come and go": lambda n, x, i: (x.unsqueeze(1).squeeze(1) + 1).unsqueeze(1).squeeze(1).sin(),
    "copies": lambda n, x, i: x.transpose(1, 2).reshape(2, 12) + x.permute(2, 0, 1).reshape(2, 12),
    "expand": lambda n, x, i: n.v.expand(2, 3, 4) * x[:, :1].expand_as(x),
    "parts": lambda n, x, i: x[:, 1:, ::2] + x[:, 0][:, None, :2] + torch.cat(x.chunk(2, dim=-1), dim=0)[:2, :2],
    "splits": lambda n, x, i: (
        torch.cat((x.split(2, -1)[1], *x.split((1, 3), -1)), -1) + torch.stack(x.unbind(1), dim=1).mean()
    ),
    "repeat": lambda n, x, i: x.repeat_interleave(3, dim=1).mean(1) + x.repeat_interleave(2, dim=-1)[:, 0, :4],
    "tiles": lambda n, x, i: x.repeat(2, 1, 3)[:2, :, :4] + x[:1, 0].repeat(3, 1) + x.repeat(1, 1, 1),
    "reorder": lambda n, x, i: x.flip(1) + x.roll(1, 2) + F.pad(x, (1, 2))[..., :4] + x.tril() + x.triu(1),
    "in place": lambda n, x, i: in_place(x),
    "in place, of another dtype": lambda n, x, i: in_place_narrow(x),
    "in place, parts": lambda n, x, i: in_place_parts(n, x),
    "in place, gaps": lambda n, x, i: in_place_gaps(x),
    "in place, views": lambda n, x, i: in_place_views(x),
    "in place, copies": lambda n, x, i: in_place_copies(x),
    "in place, many views": lambda n, x, i: in_place_many(x),
    "filled": lambda n, x, i: (x * 2).zero_() + (x * 2).fill_(3.0) + (x * 2).fill_(n.v[0]) + x,
    # indexing
    "index_select": lambda n, x, i: x.index_select(1, torch.tensor([2, 0])),
    "indexed": lambda n, x, i: x[:, i[0] % 3] + n.w[i] + x[..., i][..., 0, 0][..., None] + x[i[:, 0] % 2],
    "index_add": lambda n, x, i: x.index_add(1, i[0] % 3, x * 2) + x.index_add(-1, i[0], x[..., :3]),
    "topk": lambda n, x, i: x.topk(2, dim=-1)[0] + x.topk(2, dim=-1)[1],
    "gather": lambda n, x, i: x.gather(2, i[..., None]),
    "scatter": lambda n, x, i: (
        x.scatter(2, i[..., None], 2.0)
        + x.scatter(2, i[..., None], x[..., :1])
        + x.scatter_add(2, i[..., None], x[..., 1:2])
    ),
    # reductions
    "sums": lambda n, x, i: x.sum() + x.sum(-1).mean() + x.mean((0, 1)).sum() + x.cumsum(1).mean() + i.sum(),
    "any": lambda n, x, i: (
        x * (x > 0).any() * (x > 0).any(1, keepdim=True) * (x > -9).all() * (x > -9).all(-1, keepdim=True)
    ),
    "softmax": lambda n, x, i: (
        x.softmax(-1) + x.log_softmax(1) + x.logsumexp(-1, keepdim=True) + x.float().softmax(0, dtype=torch.float64)
    ),
    "arguments": lambda n, x, i: x.argmax(-1) + x.max(-1)[0] + x.min(-1)[1],
    # norms and losses
    "norms": lambda n, x, i: (
        F.layer_norm(x, (4,), n.v, n.v) + F.layer_norm(x, (3, 4)) + F.rms_norm(x, (4,), n.v) + F.rms_norm(x, (4,))
    ),
    "group norm": lambda n, x, i: F.group_norm(x.transpose(1, 2), 2, n.v, n.v),
    "instance norm": lambda n, x, i: F.instance_norm(x.transpose(1, 2), weight=n.v, bias=n.v),
    "batch norm": lambda n, x, i: n.norm(x),
    "cross entropy": lambda n, x, i: (
        F.cross_entropy(x.flatten(0, 1), i.flatten(), ignore_index=1, label_smoothing=0.1)
        + F.cross_entropy(x.transpose(1, 2), i, reduction="sum")
    ),
    "losses": lambda n, x, i: (
        F.mse_loss(x, x * 2) + F.l1_loss(x, -x) + F.smooth_l1_loss(x, x * 3) + F.huber_loss(x, x * 4, reduction="sum")
    ),
    # images
    "pools": lambda n, x, i: (
        F.max_pool1d(image(x, 1), 2).mean()
        + F.max_pool2d(image(x, 2), 3, 2, 1).mean()
        + F.max_pool3d(image(x, 3), 2).mean()
        + F.avg_pool1d(image(x, 1), 2).mean()
        + F.avg_pool2d(image(x, 2), 3, stride=2, ceil_mode=True).mean()
        + F.avg_pool3d(image(x, 3), 2).mean()
        + F.adaptive_avg_pool2d(image(x, 2), (2, 4)).mean()
    ),
    "kernels of many numbers": lambda n, x, i: (
        F.conv2d(
            image(x, 2), n.kernel[:, :1, :, None].repeat(3, 1, 1, 1), n.v[:1].repeat(6), (2, 1), (0, 1), (2, 1), 3
        ).sum()
        + F.conv_transpose2d(image(x, 2)[:, :2], n.kernel[..., None], n.v[:3], (2, 3), (1, 0), (1, 2)).sum()
        + F.max_pool2d(image(x, 2), (3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True).sum()
        + F.max_pool1d(image(x, 1), 3, dilation=2).sum()
        + F.avg_pool2d(image(x, 2), (2, 3), (1, 2), (1, 0)).sum()
    ),
    "losses of another kind": lambda n, x, i: (
        F.mse_loss(x, x * 2, reduction="none").sum(-1)
        + F.l1_loss(x, x * n.v, reduction="sum")
        + F.cross_entropy(x.transpose(1, 2), i, reduction="none")
        + F.cross_entropy(x[..., None].permute(0, 2, 1, 3), i[..., None])
        + F.cross_entropy(x.flatten(0, 1), i.int().long().flatten(), label_smoothing=0.2)
    ),
    "flattened and back": lambda n, x, i: (
        (F.linear(x.reshape(6, 4), n.w, n.v) * x.reshape(6, 4) + torch.arange(24.0).double().view(6, 4)).view(2, 3, 4)
        + (x.reshape(6, 4) * n.v).softmax(-1).view(2, 3, 4)
        + (x.reshape(6, 4) * n.v).softmax(0).view(2, 3, 4)
        + x.reshape(6, 4).sum(1, keepdim=True).view(2, 3, 1)
        + x.reshape(6, 4).mean(0)
        + F.rms_norm(x.reshape(6, 4), (4,), n.v).reshape(2, 3, 4)
        + torch.cat((x.reshape(6, 4), x.reshape(6, 4)[:, :2]), 1)[:, 2:].reshape(2, 3, 4)
        + (x.reshape(6, 4)[:, 1:].unflatten(0, (2, 3)).sum(-1, keepdim=True))
        + F.embedding(i.flatten(), n.w).view(2, 3, 4)
        + (x.reshape(2, 12) + n.w.flatten()[:12]).view(2, 3, 4)
        + (x.repeat(1, 1, 2)[..., :6].reshape(6, 6) + n.w.flatten()[:6]).view(2, 3, 6)[..., :4]
    ),
    "upsampling": lambda n, x, i: (
        F.interpolate(image(x, 2), scale_factor=2).mean()
        + F.interpolate(image(x, 2), size=(5, 5), mode="bilinear").sum()
    ),
    "upsampling of another kind": lambda n, x, i: (
        F.interpolate(image(x, 1), scale_factor=1.7).mean()
        + F.interpolate(image(x, 1), size=5, mode="linear", align_corners=True).sum()
        + F.interpolate(image(x, 2), scale_factor=(0.6, 1.5), mode="bilinear").sum()
        + F.interpolate(image(x, 2), size=(3, 9), mode="bicubic").sum()
        + F.interpolate(image(x, 3), scale_factor=2).sum()
        + F.interpolate(image(x, 3), size=(3, 4, 5), mode="trilinear", align_corners=True).mean()
    ),
    "pools of another kind": lambda n, x, i: (
        F.avg_pool2d(image(x, 2), 3, stride=2, padding=1, count_include_pad=False).sum()
        + F.avg_pool2d(image(x, 2), 2, divisor_override=3).sum()
    ),
    "norms of vectors": lambda n, x, i: (
        x.norm(dim=-1)
        + x.norm(p=1, dim=(0, 2)) * x.norm()
        + torch.linalg.vector_norm(x, 3, (1,), keepdim=True).sum()
        + torch.linalg.vector_norm(x, float("inf"), -1)
        + F.normalize(x * (i > 0)[..., None], dim=-1).sum(-1)
    ),
    "spreads": lambda n, x, i: (
        x.var(-1) + x.var((0, 2), unbiased=False) + x.std(-1) + x.std(2, False) + torch.var(x) + x.std(correction=0)
    ),
    "order": lambda n, x, i: (
        x.sort(-1)[0]
        + x.sort(1, descending=True)[1]
        + x.argsort(-1)
        + x.cumprod(1)
        + x.logcumsumexp(-1)
        + x.prod(1, keepdim=True)
        + x.argmin(-1, keepdim=True)
        + x.max() * x.min()
    ),
    "losses of probabilities": lambda n, x, i: (
        F.nll_loss(x.log_softmax(-1).transpose(1, 2), i, ignore_index=2)
        + F.binary_cross_entropy(x.sigmoid(), x.detach().cos().square())
        + F.binary_cross_entropy(x.sigmoid(), x.detach().cos().square(), x.detach().abs())
        + F.binary_cross_entropy_with_logits(x, x.detach().cos().square(), reduction="sum")
        + F.binary_cross_entropy_with_logits(x, x.detach().cos().square(), pos_weight=n.v.detach().abs())
        + F.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="batchmean")
        + F.kl_div(x.log_softmax(-1), (x * 2).detach().log_softmax(-1), reduction="sum", log_target=True)
        + F.smooth_l1_loss(x, x * 3, beta=0.3)
        + F.huber_loss(x, x * 3, delta=0.7)
    ),
    "losses made of others": lambda n, x, i: (
        F.cross_entropy(x.flatten(0, 1), i.flatten(), torch.arange(1.0, 5.0).double())
        + F.cross_entropy(x.transpose(1, 2), x.transpose(1, 2).detach().softmax(1))
        + F.cosine_embedding_loss(x[0], x[1], torch.tensor([1, -1, 1]))
        + F.triplet_margin_loss(x[0], x[1], x[0] * 2)
        + F.hinge_embedding_loss(x, torch.ones(2, 3, 4), 0.3)
        + F.soft_margin_loss(x, torch.ones(2, 3, 4))
        + F.cosine_similarity(x, n.v, dim=-1).sum()
    ),
    "bags": lambda n, x, i: (
        F.embedding_bag(i, n.w)
        + F.embedding_bag(i, n.w, mode="max")
        + F.embedding_bag(i, n.w, mode="sum", per_sample_weights=x[..., 0])
        + F.embedding_bag(i.flatten(), n.w, torch.tensor([0, 3]), mode="sum")
    ),
    "drawn": lambda n, x, i: (
        x
        + 0 * torch.rand(2, 3, 4, dtype=x.dtype)
        + 0 * torch.randn(3, 4, dtype=x.dtype)
        + 0 * (torch.randint(5, (4,)) + torch.randint(2, 5, (4,)))
        + 0 * F.dropout2d(x.unsqueeze(-1)).squeeze(-1)
        + 0 * torch.ones(2, 1, 1, dtype=x.dtype).bernoulli_(0.5)
        + 0 * torch.randn_like(x)
    ),
    "elementwise by name": lambda n, x, i: (
        F.hardtanh(A._softmax.default(x, -1, False), -0.3, 0.4)
        + F.celu(x, 0.7)
        + torch.special.bessel_j0(x.detach())
        + torch.xlogy(i[..., None], x.square())
        + torch.frexp(x)[0]
        + F.threshold_(x * 2, 0.1, -1.0)
    ),
    "no grad": lambda n, x, i: x * x.sum().detach() + _no_grad(x),
}


def _no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.exp()


def traced(body: Body) -> tuple[Net, dict[str, Any], Traced]:
    torch.manual_seed(0)
    net = Net(body).double()
    batch = {"x": torch.randn(2, 3, 4, dtype=torch.float64), "i": torch.randint(0, 4, (2, 3))}
    hooks = Hooks(lambda b, s: batch, lambda outputs, _: outputs.double().sin().sum())
    return net, batch, trace(TorchSource(net, hooks, "Net"), batch)


def test_writes_in_place_go_where_torch_writes() -> None:
    for name in BODIES:
        if name.startswith("in place"):
            assert_computed(name)


@pytest.mark.parametrize("name", [name for name in BODIES if not name.startswith("in place")])
def test_entry_computes_what_torch_computes(name: str) -> None:
    assert_computed(name)


def assert_computed(name: str) -> None:
    """The loss, the gradients and the buffers are torch's."""
    net, batch, found = traced(BODIES[name])
    assert found.notes == () or name == "attention, masks"
    verify_graph(found.graph)
    parameters = [p for p in net.parameters() if p.requires_grad]
    before = {path: buffer.clone() for path, buffer in net.named_buffers()}
    values = execute(found, net, batch)
    assert found.graph.loss is not None
    loss = values[found.graph.loss]
    expected = net.train()(**batch).double().sin().sum()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)
    ours = torch.autograd.grad(loss, parameters, allow_unused=True)
    theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b, rtol=1e-5, atol=1e-7
        )
    for update in found.graph.updates:
        assert update.buffer in before
        torch.testing.assert_close(values[update.value], dict(net.named_buffers())[update.buffer])


def test_every_entry_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[str] = set()
    for target, entry in list(LOWERINGS.items()):

        def noted(t: Any, call: Any, target: str = target, entry: Any = entry) -> Any:
            met.add(target)
            return entry(t, call)

        monkeypatch.setitem(LOWERINGS, target, noted)
    for body in BODIES.values():
        traced(body)
    unmet = sorted(set(LOWERINGS) - met)
    assert not unmet, unmet


def test_every_kind_has_a_rule() -> None:
    known = set(kinds())
    for body in BODIES.values():
        graph: Graph = traced(body)[2].graph
        assert {op.kind for op in graph.ops} <= known


def test_an_unknown_operator_is_opaque() -> None:
    """Where trials show no loop, it is whole; how it was called is kept."""
    _, _, found = traced(lambda n, x, i: x.masked_scatter(x > 0, x * 2))
    (op,) = [op for op in found.graph.ops if op.kind == "opaque"]
    assert op.attr("target") == "aten::masked_scatter"
    assert op.attr("types") == ("f64[2, 3, 4]",)
    assert op.attr("call") == (("", ("tensor", 0)), ("", ("tensor", 1)), ("", ("tensor", 2)))
    assert op.attr("rule") is None
    assert found.notes == ("test_aten.py:42: no rule for aten::masked_scatter; it is opaque",)
    verify_graph(found.graph)


def test_a_rule_that_trials_show_is_kept_and_told() -> None:
    _, _, found = traced(lambda n, x, i: torch.cdist(x, x * 2))
    (op,) = [op for op in found.graph.ops if op.kind == "opaque"]
    assert (op.attr("rule"), op.attr("whole")) == ("n0 n1 w0, n0 n2 w1 -> n0 n1 n2", ("w0", "w1"))
    told = "a rule was found by trial, n0 n1 w0, n0 n2 w1 -> n0 n1 n2"
    assert found.notes == (f"test_aten.py:42: no rule for aten::cdist; {told}",)
    verify_graph(found.graph)
    assert account(found.graph).opaque == ()


def test_an_opaque_operator_is_counted() -> None:
    """What stays whole has the work that torch counts in it."""

    def body(n: Net, x: Tensor, i: Tensor) -> Tensor:
        wide = n.w.repeat(3, 1)
        found: Tensor = torch.gru(x, x.new_zeros(1, 2, 4), [wide, wide], False, 1, 0.0, True, False, True)[0]
        return found

    found = account(traced(body)[2].graph)
    assert found.forward_flops == 2 * (2 * 3) * (4 * 12 + 4 * 12)
    assert found.opaque_flops == 0  # its batch is a loop that trials show


def test_a_write_that_is_opaque() -> None:
    """A strided write that leaves indices of its dimension out: whole, but not lost."""

    def body(n: Net, x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        y[..., 1:3:2] = 0
        return y

    graph = traced(body)[2].graph
    assert [op.attr("target") for op in graph.ops if op.kind == "opaque"] == ["aten::slice_scatter"]
    verify_graph(graph)


def test_nothing_may_be_reshaped() -> None:
    """An empty part takes another shape without a copy: it has no elements that could lie otherwise."""
    found = traced(lambda n, x, i: x.sum() + x[..., 4:].reshape(6, 0).sum())[2]
    views = [op for op in found.graph.ops if op.kind == "view"]
    assert [(op.attr("shape"), op.alias) for op in views] == [((6, 0), 0)]


def test_a_part_of_no_elements_is_none_of_a_split() -> None:
    """As the part of a head that is not rotated, where all of it is: the rest is the operand, or is split."""

    def rotated(n, x, i):
        first, rest = torch.split(x, [x.shape[-1], 0], -1)
        return torch.cat([first * 2, rest], -1).sum()

    graph = traced(rotated)[2].graph
    verify_graph(graph)
    assert [op.kind for op in graph.ops if op.kind in ("split", "cat")] == []

    def apart(n, x, i):
        a, b, c = torch.split(x, [1, 0, x.shape[-1] - 1], -1)
        return torch.cat([c * 2, b, a], -1).sum()

    graph = traced(apart)[2].graph
    verify_graph(graph)
    assert [op.attr("sizes") for op in graph.ops if op.kind == "split"] == [(1, 3)]


def test_a_rule_of_the_users_comes_before_taking_apart() -> None:
    register_rule("aten::movedim", "b s d -> b d s", linear=(0,))
    try:
        found = traced(lambda n, x, i: torch.movedim(x, 1, 2))[2]
        assert account(found.graph).covered_bytes == 1  # it is under a rule, and no longer listed
        assert account(found.graph).opaque == ()
    finally:
        unregister_rule("aten::movedim")
    assert [op.attr("target") for op in found.graph.ops if op.kind == "opaque"] == ["aten::movedim"]
    assert found.notes == ()


def test_tied_parameters_are_one_value() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)).sum()

    graph = trace(TorchSource(Tied(), Hooks(), "Tied"), {"x": torch.zeros(2, 4)}).graph
    assert [param.paths for param in graph.params] == [("a.weight", "b.weight")]


def test_operators_know_their_module_and_line() -> None:
    _, _, found = traced(BODIES["batch norm"])
    (op,) = [op for op in found.graph.ops if op.kind == "batch_norm"]
    assert op.module == "norm"
    assert op.source.startswith("test_aten.py:")
