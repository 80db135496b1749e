"""One trunk, three tasks: classes, a regression and tags, whose losses are weighed and added up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, TAGS, FEATURES = 16, 8, 64


class Residual(nn.Module):
    """Two linear layers around a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class MultiTask(nn.Module):
    """Returns a dictionary with its loss in it."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.stem, self.trunk = nn.Linear(FEATURES, width), nn.ModuleList([Residual(width) for _ in range(layers)])
        self.classes, self.value, self.tags = nn.Linear(width, CLASSES), nn.Linear(width, 1), nn.Linear(width, TAGS)

    def forward(self, x: Tensor, labels: Tensor, target: Tensor, tags: Tensor) -> dict[str, Tensor]:
        y = self.stem(x)
        for block in self.trunk:
            y = block(y)
        logits, value, tagged = self.classes(y), self.value(y).squeeze(-1), self.tags(y)
        named = F.cross_entropy(logits, labels)
        near, marked = F.smooth_l1_loss(value, target), F.binary_cross_entropy_with_logits(tagged, tags)
        return {"loss": named + 0.5 * near + 0.1 * marked, "logits": logits}


def build(layers: int = 12, width: int = 1024) -> MultiTask:
    return MultiTask(layers, width)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    labels, tags = torch.randint(0, CLASSES, (batch,)), torch.rand(batch, TAGS).round()
    return {"x": torch.randn(batch, FEATURES), "labels": labels, "target": torch.randn(batch), "tags": tags}
