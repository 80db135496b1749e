"""Models of the closed loop (`benchmarks.closed_loop`): small, with enough work in a step to keep two cores busy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB = 1024


class Attention(nn.Module):
    """Causal attention with heads of their own products."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (line(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for line in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """Two products of one value, and a third of theirs."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Plain(nn.Module):
    """A product, GELU, and a product."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, where there is a head width, and a feed-forward part, each behind a norm."""

    def __init__(self, width: int, hidden: int, head_dim: int, *, gated: bool) -> None:
        super().__init__()
        if head_dim:
            self.attention_norm = nn.RMSNorm(width) if gated else nn.LayerNorm(width)
            self.attention = Attention(width, head_dim)
        self.norm = nn.RMSNorm(width) if gated else nn.LayerNorm(width)
        self.mlp = Gated(width, hidden) if gated else Plain(width, hidden)
        self.attends = bool(head_dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.attends:
            x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.norm(x))


class Decoder(nn.Module):
    """An embedding, blocks, and a head."""

    def __init__(self, layers: int, width: int, hidden: int, head_dim: int, *, gated: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(Block(width, hidden, head_dim, gated=gated) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def llama() -> nn.Module:
    """Like Llama: gated, heads of 32."""
    return Decoder(4, 256, 704, 32, gated=True)


def gpt() -> nn.Module:
    """Like GPT-2: biases, GELU, heads of 64."""
    return Decoder(4, 256, 1024, 64, gated=False)


def lines() -> nn.Module:
    """Feed-forward blocks alone."""
    return Decoder(6, 384, 1024, 0, gated=True)


def wide() -> nn.Module:
    """Two blocks that are wide for what they see."""
    return Decoder(2, 640, 1792, 64, gated=True)


dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, VOCAB, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean cross entropy of the tokens that follow."""
    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten())


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-4)
