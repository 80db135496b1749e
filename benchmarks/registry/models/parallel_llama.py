"""A Llama whose blocks run attention and feed-forward side by side, with rotary tables and a mask of -inf."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of halves."""
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, one), dim=-1) * sin


class Block(nn.Module):
    """x + attention(n(x)) + ffn(n(x)), one norm for both."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.head_dim, self.norm = width // heads, nn.RMSNorm(width)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (one(y).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in (self.wq, self.wk, self.wv))
        scores = rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(2, 3) / self.head_dim**0.5
        mixed = F.softmax((scores + mask).float(), dim=-1).type_as(q) @ v
        return x + self.wo(mixed.transpose(1, 2).flatten(2)) + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Tables are computed in forward."""

    def __init__(self, layers: int, width: int, heads: int, ffn: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocab, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Block(width, heads, ffn) for _ in range(layers)])
        self.head, self.head_dim = nn.Linear(width, vocab, bias=False), width // heads

    def forward(self, tokens: Tensor) -> Tensor:
        seq, device = tokens.shape[1], tokens.device
        rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim)
        angles = torch.outer(torch.arange(seq, device=device).float(), rates)
        x = self.embed(tokens)
        cos, sin = (torch.cat((one, one), dim=-1).to(x.dtype) for one in (angles.cos(), angles.sin()))
        mask = torch.full((seq, seq), float("-inf"), device=device, dtype=x.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x))


def build(layers: int = 32, width: int = 4096, heads: int = 32, ffn: int = 11008, vocab: int = 32000) -> Llama:
    return Llama(layers, width, heads, ffn, vocab)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten())
