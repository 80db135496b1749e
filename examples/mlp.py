"""The smallest model worth splitting: two products and what is between them. A model without blocks that repeat."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

WIDTH, HIDDEN = 1024, 4096


class Mlp(nn.Module):
    """Up, a nonlinearity, down."""

    def __init__(self, width: int = WIDTH, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(torch.relu(self.up(x)))
        return down


def build() -> nn.Module:
    return Mlp()


def example_inputs(batch: int, seq: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, seq, WIDTH),)


def loss(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return outputs.float().pow(2).mean()
