"""A recommender (arXiv:1906.00091): bags of embeddings, products of pairs, one click or none."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TABLES, DENSE, BAG = 4, 16, 4


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Dense features and bags of indices."""

    def __init__(self, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(TABLES)])
        self.bottom = mlp(DENSE, hidden, width)
        pairs = (TABLES + 1) * TABLES // 2
        self.top = mlp(pairs + width, hidden, hidden, 1)
        one, other = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.register_buffer("one", one)
        self.register_buffer("other", other)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = [table(sparse[:, at]) for at, table in enumerate(self.tables)]
        every = torch.stack([x, *bags], dim=1)
        pairs = torch.bmm(every, every.transpose(1, 2))[:, self.one, self.other]
        return self.top(torch.cat((x, pairs), dim=1)).squeeze(1)


def build(rows: int = 1000000, width: int = 128, hidden: int = 512) -> DLRM:
    return DLRM(rows, width, hidden)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    sparse = torch.randint(0, 64, (batch, TABLES, BAG))
    return {"dense": torch.randn(batch, DENSE), "sparse": sparse, "clicks": torch.rand(batch).round()}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.float(), batch["clicks"])
