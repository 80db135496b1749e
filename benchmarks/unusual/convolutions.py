"""Stages of residual blocks, each of twice the channels and half the size of the one before (arXiv:1512.03385)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE = 64


class Residual(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.other = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.second = nn.GroupNorm(32, width), nn.GroupNorm(32, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.other(F.relu(self.second(self.one(F.relu(self.norm(x))))))


class Convolutions(nn.Module):
    """Stages of residual blocks, each of twice the channels and half the size."""

    def __init__(self, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for stage in range(4):
            layers += [Residual(width << stage) for _ in range(blocks)]
            if stage < 3:
                layers.append(nn.Conv2d(width << stage, width << stage + 1, 2, stride=2))
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width << 3, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


def build(width: int = 128, blocks: int = 3, classes: int = 1000) -> Convolutions:
    return Convolutions(width, blocks, classes)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"images": torch.randn(batch, 3, IMAGE, IMAGE), "labels": torch.randint(0, 1000, (batch,))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.float(), batch["labels"])
