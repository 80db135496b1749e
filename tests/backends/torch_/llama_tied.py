"""The tiny Llama of `examples/llama.py`, whose embedding is its head."""

import sys
from pathlib import Path

from torch import nn

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from llama import Llama, dims, example_inputs, loss, optimizer, tiny

__all__ = ["dims", "example_inputs", "loss", "optimizer", "tied"]


def tied() -> Llama:
    model = tiny()
    model.head.weight = model.embedding.weight
    nn.init.normal_(model.head.weight, std=0.05)
    return model
