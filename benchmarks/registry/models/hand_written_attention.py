"""Multi-head attention by einsum, its weights stacked by head in parameters; a padding mask comes with the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 16


class Heads(nn.Module):
    """Weights [h, d, k]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(heads, width, width // heads) * 0.02) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(heads, width // heads, width) * 0.02)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bsd,hdk->bhsk", x, w) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bhsk,bhtk->bhst", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        return torch.einsum("bhst,bhtk,hkd->bsd", scores.softmax(-1), v, self.wo)


class Block(nn.Module):
    """Normed after, as in 2017."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.one, self.two = Heads(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.one(x + self.attention(x, mask))
        return self.two(x + self.down(F.relu(self.up(x))))


class Classifier(nn.Module):
    """The mean over what is no padding, told apart."""

    def __init__(self, layers: int, width: int, heads: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, CLASSES)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        kept = mask[..., None].to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1))


def build(layers: int = 6, width: int = 512, heads: int = 8, vocab: int = 32000) -> Classifier:
    return Classifier(layers, width, heads, vocab)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    tokens, labels = torch.randint(0, 256, (batch, seq)), torch.randint(0, CLASSES, (batch,))
    return {"tokens": tokens, "mask": torch.ones(batch, seq, dtype=torch.bool), "labels": labels}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.float(), batch["labels"])
