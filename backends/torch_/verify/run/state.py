"""Buffers of a model's state, which are compared beside its parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that checkpoints hold, by name: copies, whole, and in a dtype in which they are compared."""
    kept, named = model.state_dict(), dict(model.named_buffers(remove_duplicate=False))
    whole = {n: one.full_tensor() if isinstance(one, DTensor) else one for n, one in named.items() if n in kept}
    kinds = {name: one.is_floating_point() or one.is_complex() for name, one in whole.items()}
    return {name: one.clone() if kinds[name] else one.double() for name, one in whole.items()}
