"""Models for `test_emit_losses.py`: losses, forward passes, parameters and random operators of many forms."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES = 16, 4


class Block(nn.Module):
    """A feed-forward part that is added; `F.dropout` with a number of its own."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.rate, training=self.training)
        return made


class Scores(nn.Module):
    """Numbers in, a score for every class out; `form` says what is returned, and may take the loss."""

    def __init__(self, form: Callable[..., Any] = lambda scores: scores, rate: float = 0.0) -> None:
        super().__init__()
        self.form = form
        self.first, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(Block(rate) for _ in range(2))

    def scores(self, x: Tensor) -> Tensor:
        """What is returned, or a loss is taken of."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


class Plain(Scores):
    def forward(self, x: Tensor) -> Any:
        return self.form(self.scores(x))


class WithLoss(Scores):
    def forward(self, x: Tensor, label: Tensor, y: Tensor) -> Any:
        return self.form(self.scores(x), label, y)


class Scattered(Scores):
    """Parameters of the model itself, in a list and a table, read by another module than their own, and
    by none; buffers of no dimension; and `stages` that are no pipeline's."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.unread = nn.Parameter(0.1 * torch.randn(1, 8)), nn.Parameter(torch.ones(3))
        self.listed = nn.ParameterList([nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(WIDTH))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(WIDTH))})
        self.stages = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.bias = nn.Parameter(torch.zeros(CLASSES))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("count", torch.tensor(0))
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages[0](self.first(x + self.shift * self.listed[0] * self.scale))
        for block in self.blocks:
            x = block(x)
        return F.linear(x * self.listed[1] + self.named["a"], self.head.weight, self.bias)


class Around(Scores):
    """Parameters of its own before blocks and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.gain = nn.Parameter(0.1 * torch.randn(8)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.shift)
        for block in self.blocks:
            x = block(x)
        made: Tensor = self.head(x * self.gain)
        return made


class Shared(Scores):
    """A parameter of a block that another block and the model read."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].norm = self.blocks[0].norm

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x) * self.blocks[0].norm.weight.mean()

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x)


class Nested(nn.Module):
    """All that a model holds in one module of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Around()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inside(x)
        return made


def example_inputs(batch: int, _: int) -> dict[str, Tensor]:
    label = torch.randint(0, CLASSES, (batch,))
    label[0] = -100
    return {"x": torch.randn(batch, 8), "label": label, "y": torch.rand(batch, CLASSES)}


def several(scores: Tensor, label: Tensor, y: Tensor) -> Tensor:
    """Terms of which each weighs in its own way."""
    return F.cross_entropy(scores, label) + 0.5 * F.mse_loss(scores, y) + 1e-3 * scores.logsumexp(-1).square().mean()


def plain() -> nn.Module:
    return Plain()


def dropping() -> nn.Module:
    return Plain(rate=0.3)


def scattered() -> nn.Module:
    return Scattered()


def shared() -> nn.Module:
    return Shared()


def nested() -> nn.Module:
    return Nested()


def scalar() -> nn.Module:
    return WithLoss(lambda scores, label, y: F.mse_loss(scores, y))


def pair() -> nn.Module:
    return WithLoss(lambda scores, label, y: (scores + 0 * y, F.cross_entropy(scores, label)))


def table() -> nn.Module:
    return WithLoss(lambda scores, label, y: {"scores": scores, "loss": several(scores, label, y)})


def output() -> nn.Module:
    return WithLoss(lambda scores, label, y: SimpleNamespace(scores=scores, loss=several(scores, label, y)))
