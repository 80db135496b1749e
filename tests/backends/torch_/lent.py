"""A decoder of two kinds of blocks in turn, of which those of one kind share a projection."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, WORDS = 16, 64


class Block(nn.Module):
    """A feed-forward part that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return made


class Mixing(nn.Module):
    """A feed-forward part behind a projection that others have, too."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.norm, self.shared, self.block = nn.LayerNorm(WIDTH), shared, Block()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.block(x + self.shared(self.norm(x)))
        return made


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        shared = nn.Linear(WIDTH, WIDTH)
        kinds = (Block, Block, Mixing, Block, Block, Mixing)
        self.layers = nn.ModuleList(kind(shared) if kind is Mixing else Block() for kind in kinds)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.head(x)
        return found


def decoder() -> nn.Module:
    return Decoder()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"tokens": torch.randint(0, WORDS, (batch, seq)), "labels": torch.randint(0, WORDS, (batch, seq))}


def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())
