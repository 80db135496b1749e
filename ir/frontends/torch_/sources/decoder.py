"""The reference decoder: what a shape file describes.

One plain PyTorch decoder that covers the common families by their numbers alone: multi-head, grouped-query and latent
(MLA) attention, full or sliding-window; gated or plain feed-forward; dense layers or routed experts with shared ones.
It exists to be traced on the meta device, like any model of a user's.

    glu = true     SwiGLU, RMS norm, no biases (Llama, Mixtral, DeepSeek)
    glu = false    GELU, layer norm, biases (GPT)

`biases` adds biases beside a gate, to the router and to every expert too (GPT-OSS).

Positions are rotary in both, or a learned table of `learned_positions` rows added to the embedding. With
`parallel_block`, attention and feed-forward read the same normed stream and are added together (PaLM). Routers
are a softmax over experts and its top k, renormalised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.shape import Shape
from meshwright.ir.frontends.torch_.operators.moe import combine, dispatch
from meshwright.ir.rules.families.moe import dropless_capacity

DROPOUT = 0.1
"""Megatron-LM's default (hidden_dropout, attention_dropout). What is kept depends on whether there is dropout, not on
the rate."""


def norm(shape: Shape, width: int) -> nn.Module:
    return nn.RMSNorm(width, eps=1e-5) if shape.glu else nn.LayerNorm(width, eps=1e-5)


def rope(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """cos and sin [seq, width] for x [batch, seq, hidden]."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, device=x.device).float() / width)
    angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    if cos is None or sin is None:  # positions are in the stream already
        return x
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, window: int, dropout: float) -> Tensor:
    """Causal attention [batch, heads, seq, dim] -> [batch, seq, heads * dim]."""
    grouped = q.shape[1] != k.shape[1]
    if window and window < q.shape[2]:
        position = torch.arange(q.shape[2], device=q.device)
        distance = position[:, None] - position[None, :]
        y = F.scaled_dot_product_attention(q, k, v, (distance >= 0) & (distance < window), dropout, enable_gqa=grouped)
    else:
        y = F.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True, enable_gqa=grouped)
    return y.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head or grouped-query attention."""

    def __init__(self, shape: Shape, window: int) -> None:
        super().__init__()
        self.width, self.window, self.dropout = shape.head, window, DROPOUT * shape.dropout
        kv_heads = shape.kv_heads or shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head, bias=shape.biased)
        self.k_proj = nn.Linear(shape.hidden, kv_heads * shape.head, bias=shape.biased)
        self.v_proj = nn.Linear(shape.hidden, kv_heads * shape.head, bias=shape.biased)
        self.o_proj = nn.Linear(shape.heads * shape.head, shape.hidden, bias=shape.biased)

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(attend(rotate(q, cos, sin), rotate(k, cos, sin), v, self.window, self.dropout))


class LatentAttention(nn.Module):
    """Keys and values from a small latent; part of each head without position, a shared part with it (MLA)."""

    def __init__(self, shape: Shape, window: int) -> None:
        super().__init__()
        self.nope, self.rope, self.window = shape.qk_nope_head_dim, shape.qk_rope_head_dim, window
        self.latent, self.value, self.dropout = shape.kv_lora_rank, shape.v_head_dim, DROPOUT * shape.dropout
        q_width = shape.heads * (self.nope + self.rope)
        if shape.q_lora_rank:
            self.q_proj: nn.Module = nn.Sequential(
                nn.Linear(shape.hidden, shape.q_lora_rank, bias=False),
                norm(shape, shape.q_lora_rank),
                nn.Linear(shape.q_lora_rank, q_width, bias=False),
            )
        else:
            self.q_proj = nn.Linear(shape.hidden, q_width, bias=False)
        self.kv_down = nn.Linear(shape.hidden, self.latent + self.rope, bias=False)
        self.kv_norm = norm(shape, self.latent)
        self.kv_up = nn.Linear(self.latent, shape.heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(shape.heads * self.value, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (-1, self.nope + self.rope)).transpose(1, 2)
        q_nope, q_rope = q.split((self.nope, self.rope), dim=-1)
        latent, k_rope = self.kv_down(x).split((self.latent, self.rope), dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).unflatten(-1, (-1, self.nope + self.value)).transpose(1, 2)
        k_nope, v = kv.split((self.nope, self.value), dim=-1)
        k_rope = rotate(k_rope[:, None], cos, sin).expand(-1, k_nope.shape[1], -1, -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), dim=-1)
        return self.o_proj(attend(q, torch.cat((k_nope, k_rope), dim=-1), v, self.window, self.dropout))


class FeedForward(nn.Module):
    """Two linear layers, or three with a gate."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.gated = shape.glu
        if self.gated:
            self.gate_proj = nn.Linear(shape.hidden, width, bias=shape.biases)
        self.up_proj = nn.Linear(shape.hidden, width, bias=shape.biased)
        self.down_proj = nn.Linear(width, shape.hidden, bias=shape.biased)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.gate_proj(x)) * self.up_proj(x) if self.gated else F.gelu(self.up_proj(x))
        return self.down_proj(inner)


class Experts(nn.Module):
    """Routed experts, and shared ones that every token visits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.moe_ffn or shape.ffn_hidden
        self.experts, self.topk, self.gated = shape.experts, shape.topk, shape.glu
        self.router = nn.Linear(shape.hidden, shape.experts, bias=shape.biases)
        inner = (2 if shape.glu else 1) * width
        self.up = nn.Parameter(torch.empty(shape.experts, inner, shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden, width))
        self.up_bias = nn.Parameter(torch.empty(shape.experts, 1, inner)) if shape.biases else None
        self.down_bias = nn.Parameter(torch.empty(shape.experts, 1, shape.hidden)) if shape.biases else None
        self.shared = FeedForward(shape, shape.shared_experts * width) if shape.shared_experts else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, idx = self.router(tokens).float().softmax(dim=-1).topk(self.topk, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        capacity = dropless_capacity(tokens.shape[0], self.topk, self.experts)
        rows = dispatch(tokens, idx, self.experts, capacity, dropless=True)
        rows = torch.bmm(rows, self.up.transpose(1, 2))
        if self.up_bias is not None:
            rows = rows + self.up_bias
        if self.gated:
            gate, up = rows.chunk(2, dim=-1)
            rows = F.silu(gate) * up
        else:
            rows = F.gelu(rows)
        rows = torch.bmm(rows, self.down.transpose(1, 2))
        if self.down_bias is not None:
            rows = rows + self.down_bias
        y = combine(rows, idx, weights, self.experts, capacity, dropless=True).view_as(x)
        return y if self.shared is None else y + self.shared(x)


class Block(nn.Module):
    """Attention and feed-forward, each added to the stream it reads."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        kind = LatentAttention if shape.latent else Attention
        self.attention_norm = norm(shape, shape.hidden)
        self.attention = kind(shape, shape.window(layer))
        self.feed_forward_norm = None if shape.parallel_block else norm(shape, shape.hidden)
        self.feed_forward = Experts(shape) if shape.routed(layer) else FeedForward(shape, shape.ffn_hidden)
        self.drop = nn.Dropout(DROPOUT) if shape.dropout else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        if self.feed_forward_norm is None:
            normed = self.attention_norm(x)
            return x + self.drop(self.attention(normed, cos, sin) + self.feed_forward(normed))
        x = x + self.drop(self.attention(self.attention_norm(x), cos, sin))
        return x + self.drop(self.feed_forward(self.feed_forward_norm(x)))


class Decoder(nn.Module):
    """The decoder of a shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.rotary = shape.qk_rope_head_dim if shape.latent else shape.head
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.learned_positions, shape.hidden) if shape.learned_positions else None
        self.drop = nn.Dropout(DROPOUT) if shape.dropout else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape, layer) for layer in range(shape.layers))
        self.norm = norm(shape, shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = None, None
        if self.positions is None:
            cos, sin = rope(x, self.rotary)
        else:
            if tokens.shape[1] > self.positions.num_embeddings:
                raise ValueError(f"{tokens.shape[1]} tokens, and learned_positions = {self.positions.num_embeddings}")
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))
