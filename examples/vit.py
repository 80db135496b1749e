"""A vision transformer in plain PyTorch (arXiv:2010.11929), with the mean over patches in the place of a class token.

plan examples/vit.py:vit_large --cluster 2x8xH100 --global-batch 1024
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 1000


@dataclass(frozen=True)
class ViTConfig:
    image: int
    patch: int
    width: int
    ffn: int
    layers: int
    heads: int
    classes: int = CLASSES

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


class Patches(nn.Module):
    """Every patch of an image as a vector, with its position."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.position = nn.Parameter(torch.randn(1, config.patches, config.width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(images).flatten(2).transpose(1, 2) + self.position


class Attention(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q_proj = nn.Linear(config.width, config.width)
        self.k_proj = nn.Linear(config.width, config.width)
        self.v_proj = nn.Linear(config.width, config.width)
        self.o_proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        # The head count is read off the tensor, so that the same code runs on a shard of the heads.
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn)
        self.down = nn.Linear(config.ffn, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class ViT(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Patches(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embedding(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


IMAGE = 224


def tiny() -> ViT:
    """Small enough to train on a laptop's CPU: images of 224 x 224 are cut into 16 patches."""
    return ViT(ViTConfig(image=IMAGE, patch=56, width=64, ffn=128, layers=4, heads=8, classes=8))


def vit_large() -> ViT:
    """ViT-L/16, table 1 of the paper."""
    return ViT(ViTConfig(image=IMAGE, patch=16, width=1024, ffn=4096, layers=24, heads=16)).bfloat16()


dims = {"images": ("b", "", "", ""), "labels": ("b",)}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """Images and their classes; there is no sequence length to choose."""
    return {"images": torch.randn(batch, 3, IMAGE, IMAGE), "labels": torch.randint(0, 8, (batch,))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.float(), batch["labels"])


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-4, weight_decay=0.05)
