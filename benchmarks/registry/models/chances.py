"""A perceptron that ends in a sigmoid: binary cross entropy of chances."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from perceptrons import FEATURES, TARGETS
from perceptrons import build as perceptron
from torch import Tensor, nn


def build(layers: int = 16, width: int = 2048) -> nn.Sequential:
    return nn.Sequential(perceptron(layers, width), nn.Sigmoid())


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"input": torch.randn(batch, FEATURES), "wanted": torch.rand(batch, TARGETS).round()}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy(outputs.float(), batch["wanted"])
