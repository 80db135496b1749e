"""A recommender whose tables hold nearly all of its parameters (arXiv:1906.00091)."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TABLES, DENSE, ROWS_READ = 16, 13, 64


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Tables(nn.Module):
    """A recommender: large tables, and perceptrons over what is read from them."""

    def __init__(self, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(TABLES)])
        self.bottom = perceptron(DENSE, 512, 256, width)
        self.top = perceptron(width * (TABLES + 1), hidden, hidden, 256, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        read = [table(sparse[:, at]) for at, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *read], 1)).squeeze(1)


def build(rows: int = 2_000_000, width: int = 128, hidden: int = 1024) -> Tables:
    return Tables(rows, width, hidden)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    sparse = torch.randint(0, ROWS_READ, (batch, TABLES))
    return {"dense": torch.randn(batch, DENSE), "sparse": sparse, "clicks": torch.rand(batch).round()}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.float(), batch["clicks"])
