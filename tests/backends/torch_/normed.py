"""A small model with all kinds of norms: of the batch, in blocks; of groups, samples and vectors, in its head. It has a
mask among its buffers, which is no tensor in a trace of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width, momentum=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.norm(self.conv(x)))


class Normed(nn.Module):
    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.instance_norm = nn.InstanceNorm2d(width, affine=True)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.group_norm = nn.GroupNorm(4, width)
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.batch_norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width * 16, classes)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    def forward(self, image: Tensor) -> Tensor:
        x = self.instance_norm(self.stem(image.masked_fill(self.mask < 0, 0.0)))
        for block in self.blocks:
            x = block(x)
        x = self.pool(self.depth(F.silu(self.group_norm(x))))
        x = self.batch_norm(self.shifted(x).flatten(2))
        return self.head(x.flatten(1))

    def shifted(self, x: Tensor) -> Tensor:
        return x


class Cancelling(Normed):
    """What is added before the norm of a batch changes nothing: its gradient is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(16))

    def shifted(self, x: Tensor) -> Tensor:
        return x + 100 * self.shift[:, None, None]


class ByHand(Normed):
    """The whole image is normalised by two numbers of the batch, in the model's own code."""

    def shifted(self, x: Tensor) -> Tensor:
        mean = x.mean()
        spread = (x * x).mean() - mean * mean
        return (x - mean) * torch.rsqrt(spread + 1e-5)


def by_hand() -> Normed:
    return ByHand()


def tiny() -> Normed:
    return Normed()


def cancelling() -> Normed:
    return Cancelling()


dims = {"image": ("b", "channels", "h", "w"), "labels": ("b",)}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"image": torch.rand(batch, 3, 8, 8), "labels": torch.randint(0, 4, (batch,))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs, batch["labels"])
