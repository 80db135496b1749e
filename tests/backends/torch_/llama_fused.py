"""A tiny Llama whose queries, keys and values are one product, cut apart by slices, and its gate and up another one,
whose weight is stored as [in, out]."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from llama import LlamaConfig, dims, example_inputs, loss, optimizer, rope_table, rotate

__all__ = ["clamped", "dims", "example_inputs", "fused", "loss", "optimizer"]
CONFIG = LlamaConfig(vocab=256, width=32, ffn=48, layers=2, heads=4, kv_heads=2)


class Turned(nn.Module):
    """A product whose weight is stored as [in, out]."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.outer = outer
        self.weight, self.bias = nn.Parameter(torch.empty(inner, outer)), nn.Parameter(torch.empty(outer))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.1)
        nn.init.normal_(self.bias, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.outer)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = CONFIG.heads * CONFIG.head_dim, CONFIG.kv_heads * CONFIG.head_dim
        self.qkv = nn.Linear(CONFIG.width, self.queries + 2 * self.keys)
        self.out = Turned(self.queries, CONFIG.width)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fused, end = self.qkv(x), self.queries + self.keys
        return fused[..., : self.queries], fused[..., self.queries : end], fused[..., end:]

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, CONFIG.head_dim)).transpose(1, 2) for part in self.parts(x))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Clamped(Attention):
    """What is done with a product before it is cut is done to all of its sections."""

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).clamp(-8, 8).split((self.queries, self.keys, self.keys), -1)
        return q, k, v


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = Turned(CONFIG.width, 2 * CONFIG.ffn)
        self.down = nn.Linear(CONFIG.ffn, CONFIG.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, attention: type[Attention]) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(CONFIG.width), attention()
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(CONFIG.width), FeedForward()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Fused(nn.Module):
    def __init__(self, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CONFIG.vocab, CONFIG.width)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(CONFIG.layers))
        self.norm = nn.RMSNorm(CONFIG.width)
        self.head = nn.Linear(CONFIG.width, CONFIG.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = rope_table(x, CONFIG)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def fused() -> Fused:
    return Fused()


def clamped() -> Fused:
    return Fused(Clamped)
