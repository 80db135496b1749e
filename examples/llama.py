"""A Llama-style decoder in plain PyTorch, and the hooks by which Meshwright reads it.

    plan inspect examples/llama.py:llama_8b

The model is ordinary code: nothing in it knows about parallelism. Beside the factories (`tiny`, `llama_8b`, …) stand
the hooks of the model contract: `example_inputs` builds one batch, `loss` turns the model's output into a scalar, and
`dims` names the axes of the inputs.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    vocab: int
    width: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    rope_theta: float = 500_000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def rope_table(x: Tensor, config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """cos and sin, each [seq, head_dim], for x [batch, seq, width]; the angles are fp32, since half precision loses far
    positions."""
    frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2, device=x.device).float() / config.head_dim)
    angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [batch, heads, seq, head_dim] by its position (first half of head_dim paired with the second)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # The head count is read off the tensor, so that the same code runs on a shard of the heads.
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.eps)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width, eps=config.eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.eps)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = rope_table(x, self.config)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def tiny() -> Llama:
    """Small enough to train on a laptop's CPU; every dimension divides by 2 and 4."""
    return Llama(LlamaConfig(vocab=256, width=64, ffn=128, layers=4, heads=8, kv_heads=4))


def llama_8b() -> Llama:
    return Llama(LlamaConfig(vocab=128_256, width=4096, ffn=14_336, layers=32, heads=32, kv_heads=8)).bfloat16()


def llama_70b() -> Llama:
    return Llama(LlamaConfig(vocab=128_256, width=8192, ffn=28_672, layers=80, heads=64, kv_heads=8)).bfloat16()


def llama_405b() -> Llama:
    return Llama(LlamaConfig(vocab=128_256, width=16_384, ffn=53_248, layers=126, heads=128, kv_heads=8)).bfloat16()


# The model contract. The forward pass receives what it has parameters for; the loss sees the whole batch.

dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """One batch: tokens, and for every position the token that follows it (-100: no target)."""
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy over the positions that have a target."""
    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=-100)


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
