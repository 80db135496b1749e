"""GPT-2 as karpathy/nanoGPT writes it: forward takes tokens alone; `masked` keeps its mask as a buffer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalSelfAttention(nn.Module):
    """Heads that are cut out of one product by `split` and `view`."""

    def __init__(self, width: int, heads: int, positions: int, flash: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd, self.flash = heads, width, flash
        if not flash:
            self.register_buffer("bias", torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class MLP(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    """Attention and MLP, normed before."""

    def __init__(self, width: int, heads: int, positions: int, flash: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), CausalSelfAttention(width, heads, positions, flash)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Everything in a ModuleDict, the head tied to the embedding."""

    def __init__(self, layers: int, heads: int, width: int, positions: int, vocab: int, flash: bool) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab, width),
                "wpe": nn.Embedding(positions, width),
                "h": nn.ModuleList([Block(width, heads, positions, flash) for _ in range(layers)]),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def build(layers: int = 12, heads: int = 12, width: int = 768, positions: int = 1024, vocab: int = 50304) -> GPT:
    return GPT(layers, heads, width, positions, vocab, flash=True)


def masked(layers: int = 12, heads: int = 12, width: int = 768, positions: int = 1024, vocab: int = 50304) -> GPT:
    return GPT(layers, heads, width, positions, vocab, flash=False)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"idx": text[:, :-1], "targets": text[:, 1:]}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), batch["targets"].reshape(-1), ignore_index=-1)
