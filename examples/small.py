"""Models of few operators, of which every plan can be written down (`benchmarks.every_plan`).

Each is a stream of blocks between its ends: what enters is a stream of numbers, or tokens that an embedding looks up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.torch_.operators.moe import combine, dispatch

WIDTH, HIDDEN, HEADS, VOCAB = 512, 2048, 4, 8192
EXPERTS = 4


class Line(nn.Module):
    """A product and a nonlinearity, added to the stream that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.line(x))


class Narrow(nn.Module):
    """Down, a nonlinearity, up, added to the stream that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.up = nn.Linear(WIDTH // 2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(torch.relu(self.down(x)))


class Gated(nn.Module):
    """Two products of one value, and a third of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """One product for queries, keys and values, attention, one product out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    """Attention, then two products."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.attention(x))))


class Hashed(nn.Module):
    """A product of each token with one of four weights; which, the token says and no router (arXiv:2106.04426)."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH))

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        tokens, chosen = x.flatten(0, 1), experts.flatten(0, 1)
        room = -(-tokens.shape[0] // EXPERTS)
        rows = torch.bmm(dispatch(tokens, chosen, EXPERTS, room, dropless=True), self.experts)
        weights = torch.ones(chosen.shape, dtype=x.dtype, device=x.device)
        return combine(rows, chosen, weights, EXPERTS, room, dropless=True).view_as(x)


class Stream(nn.Module):
    """Blocks one after another."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Language(nn.Module):
    """Tokens in, scores of tokens out."""

    def __init__(self, *blocks: nn.Module, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def lines(blocks: int) -> nn.Module:
    return Stream(*(Line() for _ in range(blocks)))


def two_lines() -> nn.Module:
    return lines(2)


def four_lines() -> nn.Module:
    return lines(4)


def narrow() -> nn.Module:
    return Narrow()


def gated() -> nn.Module:
    return Gated()


def attention() -> nn.Module:
    return Attention()


def mixed() -> nn.Module:
    return Mixed()


def hashed() -> nn.Module:
    return Hashed()


def language() -> nn.Module:
    return Language(tied=False)


def tied() -> nn.Module:
    return Language(tied=True)


def blocks_between() -> nn.Module:
    return Language(Line(), Line(), tied=False)


dims = {"x": ("b", "s", ""), "experts": ("b", "s", ""), "tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    tokens = torch.randint(0, VOCAB, (batch, seq + 1))
    stream = torch.randn(batch, seq, WIDTH)
    return {
        "x": stream,
        "experts": tokens[:, :-1, None] % EXPERTS,
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
    }


def loss(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Of scores, the cross entropy with the tokens that follow; of a stream, its mean square."""
    if outputs.shape[-1] == VOCAB:
        return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten())
    return outputs.float().pow(2).mean()
