"""A small model in which every name that a user may choose is handed in."""

from __future__ import annotations

from pathlib import Path

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

BLOCKS, FIRST, SECOND, NORM, BIAS, TABLE, TARGETS = {names!r}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(NORM, nn.LayerNorm(16))
        self.add_module(FIRST, nn.Linear(16, 32, bias=False))
        self.add_module(SECOND, nn.Linear(32, 16, bias=False))
        self.register_parameter(BIAS, nn.Parameter(torch.zeros(16)))

    def forward(self, x):
        norm, first, second = (self.get_submodule(name) for name in (NORM, FIRST, SECOND))
        return x + second(F.gelu(first(norm(x)))) + self._parameters[BIAS]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(TABLE, nn.Embedding(64, 16))
        self.add_module(BLOCKS, nn.ModuleList(Block() for _ in range(4)))
        self.add_module(TARGETS, nn.Linear(16, 64, bias=False))
        self.get_submodule(TARGETS).weight = self.get_submodule(TABLE).weight

    def forward(self, tokens):
        x = self.get_submodule(TABLE)(tokens)
        for block in self.get_submodule(BLOCKS):
            x = block(x)
        return self.get_submodule(TARGETS)(x)


def model():
    return Model()


def example_inputs(batch, seq):
    text = torch.randint(0, 64, (batch, seq + 1))
    return {{"tokens": text[:, :-1], TARGETS: text[:, 1:]}}


dims = {{"tokens": ("b", "s"), TARGETS: ("b", "s")}}


def loss(outputs, batch):
    return F.cross_entropy(outputs.flatten(0, 1), batch[TARGETS].flatten(), ignore_index=-100)
"""


def write(folder: Path, file: str, names: tuple[str, ...]) -> str:
    """The reference of the model with these names, in a file of that name."""
    path = folder / f"{file}.py"
    path.write_text(MODEL.format(names=names), encoding="utf-8")
    return f"{path}:model"
