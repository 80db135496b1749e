"""Mixtures of two layers, of `examples/mixture.py`, as a model file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "examples"))
import torch
from llama import LlamaConfig
from mixture import Mixture, dims, loss
from torch import Tensor, nn

__all__ = ["dims", "example_inputs", "few", "grouped", "limited", "loss", "normed", "paired", "some", "tiny"]

SMALL = LlamaConfig(vocab=64, width=32, ffn=48, layers=2, heads=4, kv_heads=2)


def tiny() -> Mixture:
    """Experts are looped over, as transformers does where nothing else is said."""
    return Mixture(SMALL, implementation="eager")


def few() -> Mixture:
    return Mixture(SMALL, experts=2, implementation="eager")


def uneven() -> Mixture:
    """Experts that do not divide what tokens choose."""
    return Mixture(SMALL, experts=6, implementation="eager")


def grouped() -> Mixture:
    """Experts as grouped products."""
    return Mixture(SMALL)


def paired() -> Mixture:
    """Both layers in one block."""
    made = Mixture(SMALL)
    made.blocks = nn.ModuleList([Both(*made.blocks)])
    return made


def normed() -> Mixture:
    """Experts of which each norms what it made."""
    made = grouped()
    for block in made.blocks:
        experts = block.get_submodule("feed_forward.experts")
        experts.has_post_expert_norm, experts.post_expert_norm = True, Normed(SMALL.width)
    return made


class Normed(nn.Module):
    """A mean over the width of rows, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Both(nn.Module):
    """Two layers."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        made: Tensor = self.other(self.one(x, cos, sin), cos, sin)
        return made


def limited() -> Mixture:
    """Experts with a capacity."""
    return Mixture(SMALL, limited=True)


def some() -> Mixture:
    """Experts of which those of the first layer alone have a capacity."""
    made = Mixture(SMALL, limited=True)
    made.get_submodule("blocks.1.feed_forward.experts").capacity_factor = None
    return made


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, SMALL.vocab, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}
