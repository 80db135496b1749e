"""A U-Net (arXiv:1505.04597) with batch norm, pooling, transposed convolutions and copies across."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, CLASSES = 64, 8


class Twice(nn.Module):
    """Two convolutions, normed."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Three levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two, self.three = Twice(3, width), Twice(width, 2 * width), Twice(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up_two = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up_one = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.back_two, self.back_one = Twice(4 * width, 2 * width), Twice(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        one = self.one(images)
        two = self.two(self.pool(one))
        y = self.up_two(self.three(self.pool(two)))
        y = self.up_one(self.back_two(torch.cat((y, two), dim=1)))
        return self.head(self.back_one(torch.cat((y, one), dim=1)))


def build(width: int = 64) -> UNet:
    return UNet(width)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    labels = torch.randint(0, CLASSES, (batch, IMAGE, IMAGE))
    return {"images": torch.randn(batch, 3, IMAGE, IMAGE), "labels": labels}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.float(), batch["labels"])
