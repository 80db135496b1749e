"""The tiny Llama of `examples/llama.py` with sizes that no number of ranks divides: odd rows of the embedding and the
head, a bias of the head, fewer gains than there are ranks, and learned temperatures, of the model and of every block,
that are scalars."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from llama import Llama, LlamaConfig, dims, loss, optimizer, rope_table

__all__ = ["dims", "example_inputs", "loss", "optimizer", "tempered", "uneven"]

VOCABULARY, GAINS = 253, 5


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.9))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value


def tempered(width: int) -> nn.Module:
    """A norm that is scaled by one number besides."""
    return nn.Sequential(nn.RMSNorm(width), Temperature())


class Uneven(Llama):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        for block in self.blocks:
            block.feed_forward_norm = tempered(config.width)
        self.head = nn.Linear(config.width, config.vocab)
        self.gains = nn.Parameter(torch.linspace(0.5, 1.5, GAINS))
        self.logit_scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = rope_table(x, self.config)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x)) * (self.gains.square().mean() * self.logit_scale.exp())


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """Tokens of this vocabulary."""
    text = torch.randint(0, VOCABULARY, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def uneven() -> Uneven:
    return Uneven(LlamaConfig(vocab=VOCABULARY, width=62, ffn=126, layers=2, heads=1, kv_heads=1))
