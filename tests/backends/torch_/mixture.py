"""A tiny decoder with the experts of Qwen3-MoE from transformers, as a model file."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from llama import Attention, LlamaConfig, rope_table

LLAMA = LlamaConfig(vocab=64, width=32, ffn=48, layers=2, heads=4, kv_heads=2)


class Block(nn.Module):
    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(LLAMA.width, eps=LLAMA.eps)
        self.attention = Attention(LLAMA)
        self.feed_forward_norm = nn.RMSNorm(LLAMA.width, eps=LLAMA.eps)
        self.feed_forward = Qwen3MoeSparseMoeBlock(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Mixture(nn.Module):
    def __init__(self, experts: int = 8, implementation: str = "eager") -> None:
        super().__init__()
        self.config = Qwen3MoeConfig(
            hidden_size=LLAMA.width,
            moe_intermediate_size=24,
            num_experts=experts,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            experts_implementation=implementation,
        )
        self.embedding = nn.Embedding(LLAMA.vocab, LLAMA.width)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(LLAMA.layers))
        self.norm = nn.RMSNorm(LLAMA.width, eps=LLAMA.eps)
        self.head = nn.Linear(LLAMA.width, LLAMA.vocab, bias=False)
        for block in self.blocks:
            for parameter in block.feed_forward.parameters():
                nn.init.normal_(parameter, std=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = rope_table(x, LLAMA)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def tiny() -> Mixture:
    return Mixture()


def few() -> Mixture:
    return Mixture(experts=2)


def grouped() -> Mixture:
    """Experts as grouped products, as models of transformers have them; else they are looped over."""
    return Mixture(implementation="grouped_mm")


dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, LLAMA.vocab, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=-100)
