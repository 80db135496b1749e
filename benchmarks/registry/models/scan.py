"""A linear recurrence by cumulative sums: gated states that flow along the sequence, as in state-space models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scan(nn.Module):
    """h_t = Σ_{s ≤ t} exp(A_t - A_s) x_s, where A is the cumulative sum of the log of the gates."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.RMSNorm(width), nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.inside, self.gate, self.out = nn.Linear(width, 2 * inner), nn.Linear(inner, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        y, z = self.inside(self.norm(x)).chunk(2, dim=-1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        decay = torch.cumsum(F.logsigmoid(self.gate(y)).clamp(min=-0.5), dim=1)
        h = torch.exp(decay) * torch.cumsum(torch.exp(-decay) * y, dim=1)
        return x + self.out(h * F.silu(z))


class Model(nn.Module):
    """A decoder of them."""

    def __init__(self, layers: int, width: int, inner: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(vocab, width), nn.RMSNorm(width), nn.Linear(width, vocab)
        self.layers = nn.ModuleList([Scan(width, inner) for _ in range(layers)])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(layers: int = 24, width: int = 768, inner: int = 1536, vocab: int = 50304) -> Model:
    return Model(layers, width, inner, vocab)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten())
