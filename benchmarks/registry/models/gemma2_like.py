"""Blocks that take turns, as in Gemma 2: a window in every second one, soft caps, norms before and after."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    """RMS norm whose weight is an offset from one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + self.weight.float())).type_as(x)


class Block(nn.Module):
    """Grouped queries, capped scores, and a window or none."""

    def __init__(self, width: int, heads: int, groups: int, ffn: int, window: int | None) -> None:
        super().__init__()
        self.head_dim, self.window, self.shared = width // heads, window, heads // groups
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.head_dim, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, width, bias=False)
        self.before, self.after, self.before_ffn, self.after_ffn = (Norm(width) for _ in range(4))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in (self.q, self.k, self.v))
        k, v = k.repeat_interleave(self.shared, dim=1), v.repeat_interleave(self.shared, dim=1)
        scores = torch.tanh(q @ k.transpose(2, 3) * self.head_dim**-0.5 / 50.0) * 50.0
        at = torch.arange(x.shape[1], device=x.device)
        hidden = at[None, :] > at[:, None]
        if self.window is not None:
            hidden = hidden | (at[:, None] - at[None, :] >= self.window)
        weights = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.after(self.attend(self.before(x)))
        y = self.before_ffn(x)
        return x + self.after_ffn(self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y)))


class Gemma(nn.Module):
    """A scaled embedding, tied to the head, whose logits are capped."""

    def __init__(self, layers: int, width: int, heads: int, groups: int, ffn: int, vocab: int, window: int) -> None:
        super().__init__()
        windows = [window if at % 2 == 0 else None for at in range(layers)]
        self.embed, self.norm, self.width = nn.Embedding(vocab, width), Norm(width), width
        self.layers = nn.ModuleList([Block(width, heads, groups, ffn, one) for one in windows])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.width**0.5
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(F.linear(self.norm(x), self.embed.weight) / 30.0) * 30.0


def build(
    layers: int = 26,
    width: int = 2304,
    heads: int = 8,
    groups: int = 4,
    ffn: int = 9216,
    vocab: int = 256000,
    window: int = 4096,
) -> Gemma:
    return Gemma(layers, width, heads, groups, ffn, vocab, window)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten())
