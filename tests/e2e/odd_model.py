"""A model that gives `plan inspect` something to complain about: an operator without a rule, a norm over samples."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).relu()


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.embed(x))
        z = self.norm(y.mean(1)).detach()
        return z.masked_scatter(z > 0, z) + y.sum(1)


def build() -> Odd:
    return Odd()


dims = {"x": ("b", "s", "")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(batch, seq, 8)}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return outputs.pow(2).mean()
