"""Default training of language models without hooks: tokens in, the next token out.

    batch    {tokens: i64[b, s], targets: i64[b, s]}      targets are the tokens one further on; -100 asks for nothing
    loss     mean cross entropy over all targets that ask for something, in fp32

The shift from tokens to targets is the data loader's, so that no position of the batch is wasted and none reads its
neighbour.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.ir.frontends.torch_.sources.factory import Hooks

TARGETS = "targets"


def hooks(*inputs: str) -> Hooks:
    """The hooks of a model that takes these token inputs, each [batch, seq]."""
    names = (*inputs, TARGETS)

    def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch, seq, dtype=torch.long) for name in names}

    return Hooks(example_inputs=example_inputs, loss=loss, dims=dict.fromkeys(names, ("b", "s")))


def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy of logits [b, s, v], or of an output that has them."""
    logits: Tensor = getattr(outputs, "logits", outputs)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[TARGETS].flatten(), ignore_index=-100)
