"""nanoGPT whose forward takes targets and returns (logits, loss), as its training script calls it: no hook `loss`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from nanogpt import GPT
from torch import Tensor


class Trained(GPT):
    """Returns its own loss."""

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(idx)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)


def build(layers: int = 12, heads: int = 12, width: int = 768, positions: int = 1024, vocab: int = 50304) -> Trained:
    return Trained(layers, heads, width, positions, vocab, flash=True)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"idx": text[:, :-1], "targets": text[:, 1:]}
