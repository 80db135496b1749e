"""Two towers (arXiv:2103.00020): images and texts, whose similarities within the batch are the loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, PATCH = 32, 8


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (q, k, v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))
        y = self.fc(self.ln_2(x))
        return x + self.proj(y * torch.sigmoid(1.702 * y))


class Towers(nn.Module):
    """Both, and a temperature that is learned."""

    def __init__(self, layers: int, width: int, heads: int, vocab: int, positions: int, shared: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH, bias=False)
        self.image_position = nn.Parameter(torch.randn((IMAGE // PATCH) ** 2, width) * 0.02)
        self.visual = nn.Sequential(*[Block(width, heads, causal=False) for _ in range(layers)])
        self.tokens = nn.Embedding(vocab, width)
        self.text_position = nn.Parameter(torch.randn(positions, width) * 0.02)
        self.text = nn.Sequential(*[Block(width, heads, causal=True) for _ in range(layers)])
        self.of_image, self.of_text = (nn.Linear(width, shared, bias=False) for _ in range(2))
        self.logit_scale = nn.Parameter(torch.ones(()) * 2.6592)

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        seen = self.visual(self.patches(images).flatten(2).transpose(1, 2) + self.image_position).mean(1)
        read = self.text(self.tokens(texts) + self.text_position[: texts.shape[1]])[:, -1]
        seen, read = F.normalize(self.of_image(seen), dim=-1), F.normalize(self.of_text(read), dim=-1)
        return self.logit_scale.exp() * seen @ read.t()


def build(
    layers: int = 12, width: int = 512, heads: int = 8, vocab: int = 49408, positions: int = 1024, shared: int = 512
) -> Towers:
    return Towers(layers, width, heads, vocab, positions, shared)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"images": torch.randn(batch, 3, IMAGE, IMAGE), "texts": torch.randint(0, 256, (batch, seq))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    same = torch.arange(outputs.shape[0], device=outputs.device)
    return (F.cross_entropy(outputs.float(), same) + F.cross_entropy(outputs.t().float(), same)) / 2
