"""A mixture of experts written by hand: the router's choice is a mask, and every expert is called in a loop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Expert(nn.Module):
    """A gated feed-forward."""

    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(width, ffn), nn.Linear(ffn, width), nn.Linear(width, ffn)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """Every expert sees all tokens; weights of those that were not chosen are zero."""

    def __init__(self, width: int, ffn: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.experts = nn.ModuleList([Expert(width, ffn) for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        scores = F.softmax(self.router(x), dim=-1)
        best, at = torch.topk(scores, self.chosen, dim=-1)
        best = best / best.sum(dim=-1, keepdim=True)
        weights = torch.zeros_like(scores).scatter(-1, at, best)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + weights[..., index : index + 1] * expert(x)
        return out


class Block(nn.Module):
    """Attention, then the mixture."""

    def __init__(self, width: int, heads: int, ffn: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two, self.mixture = nn.RMSNorm(width), nn.RMSNorm(width), Mixture(width, ffn, experts, chosen)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mixture(self.two(x))


class Model(nn.Module):
    """A decoder of them."""

    def __init__(self, layers: int, width: int, heads: int, ffn: int, experts: int, chosen: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(vocab, width), nn.RMSNorm(width), nn.Linear(width, vocab)
        self.blocks = nn.ModuleList([Block(width, heads, ffn, experts, chosen) for _ in range(layers)])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(
    layers: int = 16,
    width: int = 1024,
    heads: int = 16,
    ffn: int = 2048,
    experts: int = 8,
    chosen: int = 2,
    vocab: int = 32000,
) -> Model:
    return Model(layers, width, heads, ffn, experts, chosen, vocab)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten())
