"""MLP-Mixer (arXiv:2105.01601): perceptrons over patches and over channels in turns; dropout by the functional form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, CLASSES = 32, 16


class Mixer(nn.Module):
    """Over patches, then over channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + F.dropout(self.along(self.two(x)), p=0.1, training=self.training)


class Model(nn.Module):
    """Images told apart."""

    def __init__(self, layers: int, width: int, patch: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*[Mixer((IMAGE // patch) ** 2, width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(images).flatten(2).transpose(1, 2))).mean(1))


def build(layers: int = 12, width: int = 768, patch: int = 4) -> Model:
    return Model(layers, width, patch)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"images": torch.randn(batch, 3, IMAGE, IMAGE), "labels": torch.randint(0, CLASSES, (batch,))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.float(), batch["labels"])
