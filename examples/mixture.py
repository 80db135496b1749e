"""A decoder with the experts of Qwen3-MoE from transformers, without (`tiny`) and with a capacity (`limited`).

    plan examples/mixture.py:limited --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 16 --dtype fp32 \
        --fix ep=2,dp=4 --out out
    plan verify out

Experts have a capacity where their module has a `capacity_factor`: of each run of `group_size` tokens an expert takes
ceil(capacity_factor * group_size * choices / experts), the first ones, and what comes later contributes nothing.
"""

import math

import torch.nn.functional as F
from llama import Attention, LlamaConfig, dims, example_inputs, loss, rope_table
from torch import Tensor, nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeSparseMoeBlock

__all__ = ["dims", "example_inputs", "limited", "loss", "tiny"]

TINY = LlamaConfig(vocab=256, width=32, ffn=48, layers=4, heads=4, kv_heads=2)


class Limited(Qwen3MoeExperts):
    """Experts with a capacity; without one, if `capacity_factor` is None."""

    capacity_factor: float | None = 1.0
    group_size = 8

    def forward(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        if self.capacity_factor is not None:
            room = math.ceil(self.capacity_factor * self.group_size * chosen.shape[1] / self.num_experts)
            asked = F.one_hot(chosen.view(-1, self.group_size * chosen.shape[1]), self.num_experts)
            place = (asked.cumsum(1) * asked).sum(-1)  # among those of its run that chose the same expert
            weights = weights * (place <= room).view_as(chosen)
        return super().forward(tokens, chosen, weights)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig, experts: Qwen3MoeConfig, *, limited: bool) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.eps)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width, eps=config.eps)
        self.feed_forward = Qwen3MoeSparseMoeBlock(experts)
        if limited:
            self.feed_forward.experts = Limited(experts)
        for parameter in self.feed_forward.parameters():
            nn.init.normal_(parameter, std=0.2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Mixture(nn.Module):
    """`implementation`: how transformers runs experts, in a loop (eager) or as grouped products (grouped_mm)."""

    def __init__(
        self, config: LlamaConfig, *, experts: int = 8, implementation: str = "grouped_mm", limited: bool = False
    ) -> None:
        super().__init__()
        self.llama = config
        self.config = Qwen3MoeConfig(
            hidden_size=config.width,
            moe_intermediate_size=config.ffn // 2,
            num_experts=experts,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            experts_implementation=implementation,
        )
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config, self.config, limited=limited) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.eps)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = rope_table(x, self.llama)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def tiny() -> Mixture:
    return Mixture(TINY)


def limited() -> Mixture:
    return Mixture(TINY, limited=True)
