"""LoRA on the Llama of `llama.py`: a frozen base with small trainable adapters.

    plan inspect examples/lora_llama.py:lora_8b

Frozen parameters (`requires_grad=False`) get no gradient and no optimizer state, and the backward pass skips their
weight gradients; a planner that overlooks this asks for several times too much memory.
"""

import llama
import torch
from llama import Llama, dims, example_inputs, loss
from torch import Tensor, nn

__all__ = ["dims", "example_inputs", "lora_8b", "lora_70b", "loss", "optimizer", "tiny"]


class LoRALinear(nn.Module):
    """y = W x + (alpha / rank) B A x, with W frozen, and B zero at first so that training starts at the base model."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        kind = {"bias": False, "dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_a = nn.Linear(base.in_features, rank, **kind)
        self.lora_b = nn.Linear(rank, base.out_features, **kind)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x)) * self.scale


def with_lora(model: Llama, rank: int = 16, alpha: float = 32.0) -> Llama:
    """Freeze the model and put an adapter on every query and value projection."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.q_proj = LoRALinear(block.attention.q_proj, rank, alpha)
        block.attention.v_proj = LoRALinear(block.attention.v_proj, rank, alpha)
    return model


def tiny() -> Llama:
    return with_lora(llama.tiny(), rank=4)


def lora_8b() -> Llama:
    return with_lora(llama.llama_8b())


def lora_70b() -> Llama:
    return with_lora(llama.llama_70b())


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-4)
