"""Reference models of a calibration: whole training steps of them say what steps take beyond their kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB = 512


class Block(nn.Module):
    """Attention and a gated feed-forward part, each behind a norm."""

    def __init__(self, width: int, hidden: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add both parts to the stream."""
        read = self.before(x)
        q, k, v = (line(read).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for line in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        read = self.between(x)
        return x + self.down(F.silu(self.gate(read)) * self.up(read))


class Decoder(nn.Module):
    """An embedding, blocks, and a head."""

    def __init__(self, layers: int, width: int, hidden: int, head_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(Block(width, hidden, head_dim) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def narrow() -> nn.Module:
    """Blocks whose steps are launches for the most part."""
    return Decoder(4, 64, 160, 16)


def broad() -> nn.Module:
    """Blocks whose steps are products for the most part."""
    return Decoder(4, 320, 896, 40)


def long() -> nn.Module:
    """Few blocks of middling width, which see more tokens."""
    return Decoder(2, 192, 512, 32)


dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """One batch."""
    text = torch.randint(0, VOCAB, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean cross entropy of the tokens that follow."""
    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten())


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, as priced."""
    return torch.optim.AdamW(params, lr=1e-4)
