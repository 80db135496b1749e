"""A model whose own code counts samples: tables for each of them, and samples as an inner dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, CLASSES = 64, 32, 8


class Block(nn.Module):
    """Attention written by hand, of samples and heads in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.qkv(self.norm(x)).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        q, k, v = (one.reshape(b * 4, t, c // 4) for one in qkv.unbind(0))
        y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 3, -1), v).view(b, 4, t, c // 4).transpose(1, 2)
        y = y.reshape(b, t, c).transpose(0, 1).reshape(t, b * c).view(t, b, c).transpose(0, 1)
        return x + self.out(y)  # type: ignore[no-any-return]


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.first, self.queries = (nn.Parameter(torch.randn(one, WIDTH) * 0.1) for one in (1, 4))
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, tokens: Tensor) -> Tensor:
        b = tokens.shape[0]
        x = torch.cat([self.first.expand(b, -1, -1), self.embedding(tokens)], 1)
        x = x + torch.zeros(b, x.shape[1], 1, device=x.device)
        for block in self.blocks:
            x = block(x)
        asked = torch.bmm(self.queries.unsqueeze(0).repeat(b, 1, 1), x.transpose(1, 2))
        return self.head((torch.softmax(asked, -1) @ x).mean(1))  # type: ignore[no-any-return]


def counted() -> nn.Module:
    return Counted()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"tokens": torch.randint(0, VOCABULARY, (batch, seq)), "classes": torch.randint(0, CLASSES, (batch,))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs, batch["classes"])
