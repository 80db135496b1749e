"""An encoder whose positions and class token are parameters of the root, and whose head is the parameter of nobody."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, FEATURES = 16, 64


class Block(nn.Module):
    """Attention by nn.Linear, and a feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ffn(self.two(x))


class Encoder(nn.Module):
    """Parameters beside its modules."""

    def __init__(self, layers: int, width: int, heads: int, positions: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.pos = nn.Parameter(torch.randn(1, positions + 1, width) * 0.02)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.scale = nn.Parameter(torch.ones(()))
        self.classes = nn.Parameter(torch.randn(CLASSES, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((self.cls.expand(x.shape[0], -1, -1), self.embed(x)), dim=1)
        y = y + self.pos[:, : y.shape[1]]
        for block in self.blocks:
            y = block(y)
        return F.linear(y[:, 0], self.classes) * self.scale


def build(layers: int = 12, width: int = 768, heads: int = 12, positions: int = 1024) -> Encoder:
    return Encoder(layers, width, heads, positions)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, seq, FEATURES), "labels": torch.randint(0, CLASSES, (batch,))}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.float(), batch["labels"])
