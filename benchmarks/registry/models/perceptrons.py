"""A plain perceptron, trained on squared error."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FEATURES, TARGETS = 64, 8


def build(layers: int = 16, width: int = 2048) -> nn.Sequential:
    """Blocks of a Linear, a norm and an activation."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU()) for _ in range(layers)]
    return nn.Sequential(nn.Linear(FEATURES, width), *blocks, nn.Linear(width, TARGETS))


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"input": torch.randn(batch, FEATURES), "wanted": torch.rand(batch, TARGETS)}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return nn.MSELoss()(outputs.float(), batch["wanted"])
