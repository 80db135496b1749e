"""A wide tower for images and a narrow one for words, whose similarities within the batch are the loss
(arXiv:2103.00020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, PATCH, WORDS = 64, 8, 64


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Towers(nn.Module):
    """A wide tower for images, a narrow one for words, and their similarities."""

    def __init__(self, layers: int, wide: int, narrow: int, vocab: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, wide, PATCH, stride=PATCH)
        self.seen = nn.Sequential(*[Block(wide, wide // 64) for _ in range(layers)])
        self.words = nn.Embedding(vocab, narrow)
        self.read = nn.Sequential(*[Block(narrow, narrow // 64) for _ in range(layers)])
        self.one, self.other = nn.Linear(wide, narrow, bias=False), nn.Linear(narrow, narrow, bias=False)

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        seen = self.one(self.seen(self.patches(images).flatten(2).transpose(1, 2)).mean(1))
        read = self.other(self.read(self.words(texts)).mean(1))
        return F.normalize(seen, dim=-1) @ F.normalize(read, dim=-1).t()


def build(layers: int = 12, wide: int = 1024, narrow: int = 512, vocab: int = 49408) -> Towers:
    return Towers(layers, wide, narrow, vocab)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"images": torch.randn(batch, 3, IMAGE, IMAGE), "texts": torch.randint(0, WORDS, (batch, seq))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    same = torch.arange(outputs.shape[0], device=outputs.device)
    return (F.cross_entropy(outputs.float(), same) + F.cross_entropy(outputs.t().float(), same)) / 2
